"""What the reference server's engine refuses or reports.

* BenchError
  * TinyOmniError
    * RequestRefused         one request that can never run, or comes too late; the engine is fine
    * EngineFailed           sticky: the engine's thread failed, the cause is chained; every later submit raises it
"""

from __future__ import annotations

from harness.errors import BenchError


class TinyOmniError(BenchError):
    pass


class RequestRefused(TinyOmniError):
    pass


class EngineFailed(TinyOmniError):
    pass
