"""The server process: started under a guard, stopped to its last descendant, found again after a crash."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, Self

import psutil

from harness.atomic import write_atomic
from harness.errors import HarnessFailure, ResumeError, ServerLeft, ServerNotReady
from harness.servers import guard as guard_program
from harness.servers.identity import Identity, alive, kill_all, marked
from harness.servers.launch import Launch, port_is_free
from harness.servers.shared_memory import Leftovers, SharedMemory

SERVER_FILE = ".server.json"
"""Written into the trial's folder. A bench's name starts with a letter or digit, so no record can take this one."""
_MARK = "OMNI_PREFIX_BENCH_SERVER"
"""The variable by which whatever a server started is known once server and guard are gone."""
_GUARD_START_S = 30.0
_SLACK_S = 10.0
_PORT_FREE_S = 2.0
_POLL_S = 0.02

StoppedBy = Literal["sigterm", "sigkill", "died", "left running"]


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a server ended.

    Parameters:
        stopped_by: `died` when it, or the guard with it, had ended before it was asked to; `left running` when it is
            not ours to stop.
        seconds: from the request to stop until nothing of it was left.
        exit_status: the server's own; negative for a signal, None when nobody saw it.
        leftovers: descendants that had to be killed after the server itself had ended.
        shared_memory: what it left in /dev/shm.
    """

    stopped_by: StoppedBy
    seconds: float
    exit_status: int | None
    leftovers: int = 0
    shared_memory: Leftovers = field(default_factory=Leftovers)


class ServerProcess:
    """One running server. `stop` may be called from any path, any number of times; `with` calls it."""

    def __init__(self, launch: Launch, stop_timeout: float, guard: subprocess.Popen[bytes]) -> None:
        """Take over a guard that has not been told its task yet; use `ServerProcess.start`."""
        self.launch = launch
        self.started = time.monotonic()
        """`time.monotonic()` at the start, the zero of the time to ready."""
        self._stop_timeout = stop_timeout
        self._guard = guard
        self._mark = secrets.token_hex(8)
        self._events: dict[str, Mapping[str, Any]] = {}
        self._unread = b""
        self._lost = False
        self._server: Identity | None = None
        self._report: StopReport | None = None
        self._lock = threading.Lock()
        self._shared_memory = SharedMemory()

    @classmethod
    def start(cls, launch: Launch, stop_timeout: float) -> ServerProcess:
        """Start the server and write `.server.json` into the trial's folder.

        Parameters:
            stop_timeout: seconds from SIGTERM to SIGKILL.

        Raises:
            ServerNotReady: the program could not be executed.
            HarnessFailure: the guard itself did not start.
        """
        with launch.log_path.open("ab") as log:
            program = subprocess.Popen(
                [sys.executable, "-I", "-S", guard_program.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # A terminal's Ctrl-C must reach neither the guard nor the server: the harness drives the stop.
                start_new_session=True,
            )
        server = cls(launch, stop_timeout, program)
        try:
            server._begin()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def pid(self) -> int:
        """Process id of the server, which is also the id of its process group."""
        assert self._server is not None
        return self._server.pid

    @property
    def guard_pid(self) -> int:
        return self._guard.pid

    @property
    def root_pid(self) -> int:
        """The guard: all of the server runs below it, orphans too."""
        return self._guard.pid

    @property
    def ours(self) -> bool:
        return True

    @property
    def alive(self) -> bool:
        """Whether the server runs under its guard: one without its guard is as good as dead, and soon is."""
        self._read_events(0.0)
        return not (self._lost or "exited" in self._events or self._server is None)

    @property
    def returncode(self) -> int | None:
        """Exit status once the server has ended, negative for a signal; None while it runs or when nobody saw it."""
        self._read_events(0.0)
        status: int | None = self._events.get("exited", {}).get("status")
        return status

    def owns_port(self) -> bool:
        """Whether the server or a descendant listens on its port; True where the system does not let us see."""
        try:
            for process in self._tree():
                with contextlib.suppress(psutil.NoSuchProcess):
                    for connection in process.net_connections(kind="tcp"):
                        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == self.launch.port:
                            return True
        except psutil.AccessDenied:
            return True
        return False

    def look_at_shared_memory(self) -> None:
        """Remember what of /dev/shm the server has mapped, should it die before its stop looks."""
        self._shared_memory.look(process.pid for process in self._tree())

    def stop(self) -> StopReport:
        """Stop the server and everything it started, prove that no process is left, and clear its shared memory.

        Ctrl-C during the stop shortens the polite wait and takes effect once the stop is complete.

        Raises:
            ServerLeft: a descendant lives on, or the port is still taken.
        """
        with _interrupts_held(self._hasten), self._lock:
            if self._report is None:
                self._report = self._stop()
            return self._report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _begin(self) -> None:
        spec = {
            "argv": self.launch.child_argv(),
            "env": {**self.launch.child_env(), _MARK: self._mark},
            "cwd": str(self.launch.cwd),
            "log": str(self.launch.log_path),
            "stop_timeout": self._stop_timeout,
            "harness_pid": os.getpid(),
        }
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(json.dumps(spec).encode() + b"\n")
            self._guard.stdin.flush()
        deadline = time.monotonic() + _GUARD_START_S
        while not (self._events or self._lost) and time.monotonic() < deadline:
            self._read_events(deadline - time.monotonic())
        if "failed" in self._events:
            raise ServerNotReady(f"cannot start {self.launch.argv[0]}: {self._events['failed']['error']}")
        if "started" not in self._events:
            raise HarnessFailure(f"the guard of the server did not start; its log: {self.launch.log_path}")
        pid: int = self._events["started"]["pid"]
        self._server = Identity.of(pid)
        record = {
            "harness_pid": os.getpid(),
            "harness_create_time": Identity.of(os.getpid()).create_time,
            "guard_pid": self._guard.pid,
            "guard_create_time": Identity.of(self._guard.pid).create_time,
            "pid": pid,
            "create_time": self._server.create_time,
            "mark": self._mark,
            "port": self.launch.port,
            "argv": self.launch.recorded_argv(),
        }
        write_atomic(self.launch.trial_dir / SERVER_FILE, json.dumps(record, indent=2).encode() + b"\n")

    def _tree(self) -> list[psutil.Process]:
        """The server and its descendants, adopted ones too."""
        if self._guard.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                return psutil.Process(self._guard.pid).children(recursive=True)
        return [] if self._server is None else _remains(self._server, self._mark)

    def _stop(self) -> StopReport:
        asked = time.monotonic()
        self._read_events(0.0)
        lost = self._lost
        before = [Identity.of(process.pid) for process in self._tree()]
        self._shared_memory.look(member.pid for member in before)
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
        deadline = asked + self._stop_timeout + 2 * guard_program.KILL_WAIT_S + _SLACK_S
        while not self._lost and time.monotonic() < deadline:
            self._read_events(0.5)
        if not self._lost:
            self._guard.kill()
        self._guard.wait()
        assert self._guard.stdout is not None
        self._guard.stdout.close()
        exited, gone = self._events.get("exited"), self._events.get("gone")
        seen = (gone or {}).get("left", ())
        left = [Identity.of(pid) for pid in seen or ()]
        killed = kill_all([*before, *left], guard_program.KILL_WAIT_S)
        self._prove_gone([*before, *left])
        if seen is None:
            raise ServerLeft(f"a process of the server outlived its stop, uncaught; log: {self.launch.log_path}")
        (self.launch.trial_dir / SERVER_FILE).unlink(missing_ok=True)
        seconds, shared_memory = time.monotonic() - asked, self._shared_memory.clear()
        if exited is None:
            return StopReport("died" if lost else "sigkill", seconds, None, len(killed), shared_memory)
        return StopReport(
            stopped_by=exited["stopped_by"],
            seconds=seconds,
            exit_status=exited["status"],
            leftovers=(gone or {}).get("leftovers", 0) + len(killed),
            shared_memory=shared_memory,
        )

    def _prove_gone(self, members: Iterable[Identity]) -> None:
        living = alive(members)
        if living:
            names = ", ".join(str(member.pid) for member in living)
            raise ServerLeft(f"processes {names} of the server outlived its stop; log: {self.launch.log_path}")
        if self._server is None:
            return
        deadline = time.monotonic() + _PORT_FREE_S
        while not port_is_free(self.launch.port):
            if time.monotonic() > deadline:
                raise ServerLeft(
                    f"port {self.launch.port} is still taken after the server stopped; log: {self.launch.log_path}"
                )
            time.sleep(_POLL_S)

    def _hasten(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._guard.send_signal(signal.SIGTERM)

    def _read_events(self, timeout: float) -> None:
        """Take in what the guard has reported; wait up to `timeout` seconds for the first of it."""
        stdout = self._guard.stdout
        assert stdout is not None
        if stdout.closed:
            self._lost = True
        while not self._lost and select.select([stdout], [], [], max(timeout, 0.0))[0]:
            piece = os.read(stdout.fileno(), 1 << 16)
            self._lost = not piece
            *lines, self._unread = (self._unread + piece).split(b"\n")
            for line in lines:
                event = json.loads(line)
                self._events[event["event"]] = event
            timeout = 0.0


def recover(trial_dir: Path) -> bool:
    """Stop what an earlier, killed harness may have left of this trial; True when something was.

    Processes are known by id and time of creation, so a reused id is never touched.

    Raises:
        ResumeError: the harness that started the trial still runs, or its `.server.json` is damaged.
        ServerLeft: something could not be stopped.
    """
    path = trial_dir / SERVER_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        harness = Identity(int(record["harness_pid"]), float(record["harness_create_time"]))
        guard = Identity(int(record["guard_pid"]), float(record["guard_create_time"]))
        server = Identity(int(record["pid"]), float(record["create_time"]))
        mark = str(record["mark"])
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError) as error:
        raise ResumeError(f"{path} is unreadable ({error!r}); stop its server by hand, then delete it") from error
    if harness.pid != os.getpid() and harness.alive():
        raise ResumeError(f"{trial_dir}: another bench, process {harness.pid}, is running this trial now")
    members = [guard, server, *(Identity.of(p.pid) for p in (*guard.tree(), *_remains(server, mark)))]
    found = bool(alive(members))
    deadline = time.monotonic() + guard_program.KILL_WAIT_S + _SLACK_S
    # With its harness dead the guard is stopping already, or is about to; a repeated SIGTERM makes it quick.
    while guard.signal(signal.SIGTERM) and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_all(members, guard_program.KILL_WAIT_S)
    living = alive(members)
    if living:
        names = ", ".join(str(member.pid) for member in living)
        raise ServerLeft(f"processes {names} of an earlier run cannot be stopped; see {path}")
    path.unlink()
    return found


def _remains(server: Identity, mark: str) -> list[psutil.Process]:
    """What runs of a server, be it the server, a descendant, or what outlived both server and guard."""
    found = (*server.tree(), *server.group(), *marked(_MARK, mark))
    return list({process.pid: process for process in found}.values())


@contextlib.contextmanager
def _interrupts_held(on_interrupt: Callable[[], None]) -> Iterator[None]:
    """Hold SIGINT back for the length of the block: each calls `on_interrupt`, and one takes effect at the end."""
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield
        return
    held = 0

    def hold(_number: int, _frame: FrameType | None) -> None:
        nonlocal held
        held += 1
        on_interrupt()

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if held:
            signal.raise_signal(signal.SIGINT)
