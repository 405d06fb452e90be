"""The guard: a small program that is the parent of a server and never lets anything of it outlive the harness.

It is run by path and imports only the standard library. It reads one JSON line from standard input:
`{"argv": [...], "env": {...}, "cwd": "...", "log": "...", "stop_timeout": seconds, "harness_pid": pid}`, and then
waits for that pipe to close, which it does when the harness wants the server stopped and also when the harness
dies, even by SIGKILL. It writes JSON lines to standard output:

* `{"event": "started", "pid": n}` or `{"event": "failed", "error": "..."}`
* `{"event": "exited", "status": n, "stopped_by": "sigterm" | "sigkill" | "died"}`; a negative status is a signal
* `{"event": "gone", "leftovers": n, "left": [pid, ...]}`: processes that had to be killed after the server itself
  ended, and those that even SIGKILL did not end; null when some live on that cannot be caught

SIGTERM stops the server too; a further SIGTERM skips the polite wait. On Linux the kernel kills the server should the
guard itself be killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_WAIT_S = 10.0
"""Bound on the wait for processes that were sent SIGKILL."""
LEFTOVER_GRACE_S = 2.0
"""How long descendants may take to end by themselves once the server has."""
POLL_S = 0.05
PARENT_CHECK_S = 0.5
_STATE, _PARENT, _THREADS = 0, 1, 17
"""Places in `/proc/PID/stat` behind the name."""


class Guard:
    """One server, from its start until none of its descendants is left."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.stop_timeout = float(spec["stop_timeout"])
        self.harness_pid = int(spec["harness_pid"])
        self.status: int | None = None
        self.asked = self.stopping = self.hurry = False
        self.harness_gone = self.reaped = False
        self.wakeup, wake = os.pipe()
        for end in (self.wakeup, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Handlers and not SIG_IGN, which the server would inherit.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        with Path(spec["log"]).open("ab") as log:
            # The guard has one thread, which is what makes a preexec_fn safe and the death signal the guard's own.
            self.server = subprocess.Popen(
                spec["argv"], env=spec["env"], cwd=spec["cwd"], stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=die_with_parent(),
            )  # fmt: skip

    def _on_term(self, *_: object) -> None:
        self.asked, self.hurry = True, self.stopping

    def watch(self) -> None:
        """Return when the server has ended by itself or is to be stopped."""
        while not self.asked and not self.harness_gone and not self.server_ended():
            self._reap_adopted()
            self._wait(PARENT_CHECK_S)
        self.stopping = True

    def stop(self) -> str:
        """End the server: SIGTERM to its group, a bounded wait, SIGKILL. Returns what it took."""
        died = self.server_ended()
        self._signal_group(signal.SIGTERM)
        if died:
            return "died"
        deadline = time.monotonic() + self.stop_timeout
        while time.monotonic() < deadline and not self.hurry:
            if self.server_ended():
                return "sigterm"
            self._wait(POLL_S)
        if self.server_ended():
            return "sigterm"
        self._signal_group(signal.SIGKILL)
        deadline = time.monotonic() + KILL_WAIT_S
        while time.monotonic() < deadline and not self.server_ended():
            self._wait(POLL_S)
        return "sigkill"

    def clear(self, polite: bool) -> tuple[int, list[int] | None]:
        """End every descendant that is left. Returns how many had to be killed, and those that could not be.

        None for those: some live on, but never long enough to be seen.
        """
        started, killed = time.monotonic(), set[int]()
        patience = min(LEFTOVER_GRACE_S, self.stop_timeout) if polite else 0.0
        while True:
            alive = self._descendants()
            waited = time.monotonic() - started
            if not alive or waited >= patience or self.hurry:
                self._signal_group(signal.SIGKILL)
                killed.update(alive)
                for pid in alive:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            if not alive and self._reap_all():
                return len(killed), []
            if waited > patience + KILL_WAIT_S:
                return len(killed), alive or None
            self._wait(POLL_S)

    def server_ended(self) -> bool:
        """Whether the server has ended. It stays unreaped, so that its pid and group id cannot be reused."""
        if self.status is None:
            if not hasattr(os, "waitid"):  # macOS before Python 3.13
                pid, status = os.waitpid(self.server.pid, os.WNOHANG)
                if pid != 0:
                    self.status = self.server.returncode = os.waitstatus_to_exitcode(status)
                return self.status is not None
            ended = os.waitid(os.P_PID, self.server.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self.status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return self.status is not None

    def _reap_adopted(self) -> None:
        """Reap orphans that came to this process and have ended; never the server."""
        while hasattr(os, "waitid"):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == self.server.pid:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)

    def _reap_all(self) -> bool:
        """Reap whatever has ended, the server too; True when no child is left, and with that no descendant.

        That proves what a look through /proc cannot: one that forks and ends on the way is missed, and so is its child.
        An orphan comes to this process, so who has no child has no descendant either.
        """
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self.reaped |= pid == self.server.pid
            return False
        self.reaped = True
        return True

    def _signal_group(self, number: signal.Signals) -> None:
        if self.reaped:  # the id may be another's by now
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.server.pid, number)

    def _descendants(self) -> list[int]:
        """Living processes under this one; adopted ones that have ended are reaped on the way."""
        children: dict[int, list[int]] = {}
        ended: set[int] = set()
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # The second field is a name in brackets that may hold anything, brackets and spaces too.
                stat = entry.read_text(errors="replace").rpartition(")")[2].split()
                pid = int(entry.parent.name)
                children.setdefault(int(stat[_PARENT]), []).append(pid)
                # A zombie with threads is one whose first thread has ended: the others work on.
                if stat[_STATE] in "ZX" and int(stat[_THREADS]) <= 1:
                    ended.add(pid)
        found, queue = [], [os.getpid()]
        while queue:
            parent_pid = queue.pop()
            for pid in children.get(parent_pid, ()):
                queue.append(pid)
                if pid not in ended:
                    found.append(pid)
                elif parent_pid == os.getpid() and pid != self.server.pid:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
        return found

    def _wait(self, seconds: float) -> None:
        """Sleep until a signal, the end of the harness, or the time is over."""
        watched = [self.wakeup] if self.harness_gone else [self.wakeup, sys.stdin.fileno()]
        readable, _, _ = select.select(watched, [], [], seconds)
        if self.wakeup in readable:
            os.read(self.wakeup, 4096)
        # A forked child of the harness may hold the pipe open after it; then the parent has changed.
        if (sys.stdin.fileno() in readable and not os.read(sys.stdin.fileno(), 4096)) or (
            os.getppid() != self.harness_pid
        ):
            self.harness_gone = True


def die_with_parent() -> Callable[[], None] | None:
    """What a child does before it becomes the server, so that it is killed when this process ends; None off Linux.

    SIGKILL and not SIGTERM: with the guard gone nobody is left to insist when a server ignores the polite signal.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl, guard_pid = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The guard may have ended before the kernel was asked.
        if os.getppid() != guard_pid:
            os._exit(1)

    return arrange


def report(**event: object) -> None:
    # The harness may be gone; the work goes on without it.
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


def read_line() -> bytes:
    """The first line of standard input, unbuffered: `select` must see what follows."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 1 << 16)
        if not piece:
            return b""
        line += piece
    return line


def main() -> int:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    line = read_line()
    if not line:
        return 0
    try:
        guard = Guard(json.loads(line))
    except OSError as error:
        report(event="failed", error=str(error))
        return 1
    report(event="started", pid=guard.server.pid)
    guard.watch()
    stopped_by = guard.stop()
    report(event="exited", status=guard.status, stopped_by=stopped_by)
    leftovers, left = guard.clear(polite=stopped_by != "sigkill")
    if guard.status is None:
        left = left or [guard.server.pid]
    report(event="gone", leftovers=leftovers, left=left)
    return 0


if __name__ == "__main__":
    sys.exit(main())
