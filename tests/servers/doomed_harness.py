"""A harness that starts one server and then waits to be killed: `doomed_harness.py LAUNCH_JSON STOP_TIMEOUT`."""

import json
import signal
import sys
from pathlib import Path

from harness.servers.launch import Launch
from harness.servers.process import ServerProcess


def main() -> None:
    fields = json.loads(sys.argv[1])
    launch = Launch(
        argv=tuple(fields["argv"]),
        env={},
        cwd=Path(fields["cwd"]),
        log_path=Path(fields["log_path"]),
        base_url=fields["base_url"],
        port=fields["port"],
        model_name="m",
    )
    with ServerProcess.start(launch, stop_timeout=float(sys.argv[2])) as server:
        print(json.dumps({"pid": server.pid, "guard_pid": server.guard_pid}), flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
