"""For every test: one torch thread, here and in the servers we start; two cores are shared by client and server."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
