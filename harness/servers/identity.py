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
        """The process while it runs; None once it has ended, or the id belongs to another.

        A zombie has ended, unless it has threads: then only its first one has, and the others work on.
        """
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.create_time) > _SAME_S:
                return None
            ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) and process.num_threads() <= 1
            return None if ended else process
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
        """The process and its descendants; empty once it has ended."""
        process = self.process()
        if process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [process, *process.children(recursive=True)]
        return []

    def group(self) -> list[psutil.Process]:
        """The living members of the process group it leads or led, even once it has ended itself."""
        if psutil.pid_exists(self.pid) and not self._is_or_was():
            return []
        found = []
        for other in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                # An id stays taken while a group bears it; a member is never older than its group.
                if os.getpgid(other.pid) == self.pid and other.create_time() >= self.create_time - _SAME_S:
                    found.append(other)
        return found

    def _is_or_was(self) -> bool:
        """Whether the id is still this process' own, a zombie's too."""
        try:
            return abs(psutil.Process(self.pid).create_time() - self.create_time) <= _SAME_S
        except psutil.NoSuchProcess:
            return True


def marked(name: str, value: str) -> list[psutil.Process]:
    """The processes, other than this one, that were started with this environment variable or inherited it.

    Processes of other people, and those that have overwritten their environment, are not found.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(name) == value:
                found.append(process)
    return found


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
