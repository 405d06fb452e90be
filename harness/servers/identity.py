"""Who a process is: its id together with the time it was created, so that a reused id is not mistaken for it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

_SAME_S = 1.0
"""Clock corrections move a process' computed time of creation; a reused id is always created later than this."""
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, for as long as it exists.

    Parameters:
        pid: process id.
        create_time: seconds since the epoch, 0.0 for a process that was already gone when it was looked at.
    """

    pid: int
    create_time: float

    @classmethod
    def of(cls, pid: int) -> Identity:
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return cls(pid, 0.0)

    def process(self) -> psutil.Process | None:
        """The process while it runs; None once it has ended (a zombie has) or the id belongs to another."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.create_time) > _SAME_S:
                return None
            return None if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else process
        except psutil.NoSuchProcess:
            return None

    def alive(self) -> bool:
        return self.process() is not None

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal if the process still is who it was; whether it was sent."""
        process = self.process()
        if process is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
        return True

    def tree(self) -> list[psutil.Process]:
        """The process, its descendants, and the members of the group it leads; empty once it has ended."""
        process = self.process()
        if process is None:
            return []
        found = {process.pid: process}
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {child.pid: child for child in process.children(recursive=True)}
        for other in psutil.process_iter():
            with contextlib.suppress(OSError):
                if os.getpgid(other.pid) == self.pid:
                    found.setdefault(other.pid, other)
        return list(found.values())


def alive(members: Iterable[Identity]) -> list[Identity]:
    """Those that still run."""
    return [member for member in members if member.alive()]


def kill_all(members: Iterable[Identity], timeout: float) -> list[Identity]:
    """SIGKILL those that still run and wait until they are gone, at most `timeout` seconds. Returns those it killed."""
    killed = [member for member in members if member.signal(signal.SIGKILL)]
    deadline = time.monotonic() + timeout
    while alive(killed) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return killed
