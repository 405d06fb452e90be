"""The running server as a trial sees it: one of ours, or one we only attached to."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from harness.servers.launch import Launch
from harness.servers.process import StopReport


class RunningServer(Protocol):
    """A server to measure. `with` stops it, as far as it is ours to stop."""

    @property
    def launch(self) -> Launch: ...

    @property
    def started(self) -> float:
        """`time.monotonic()` at the start: of the server, or of our attaching to it."""
        ...

    @property
    def ours(self) -> bool:
        """Whether the harness started it, so that its time to ready means something."""
        ...

    @property
    def pid(self) -> int | None:
        """The server's process; None where it is not to be seen from here."""
        ...

    @property
    def root_pid(self) -> int | None:
        """The process under which all of the server runs; None where it is not to be seen from here."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it runs, as far as can be known."""
        ...

    @property
    def returncode(self) -> int | None:
        """Exit status once it has ended and somebody saw it, negative for a signal."""
        ...

    def owns_port(self) -> bool:
        """Whether it is this server that answers at the address; True where the system does not let us see."""
        ...

    def look_at_shared_memory(self) -> None:
        """Remember what it has of shared memory, for its stop; nothing where it is not ours to stop."""
        ...

    def stop(self) -> StopReport:
        """End it; see `ServerProcess.stop`."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
