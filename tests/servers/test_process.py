import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fake_launch import MakeLaunch, logged_pids, runs, wait_for, wait_for_log

from harness.errors import ResumeError, ServerLeft, ServerNotReady
from harness.servers.identity import Identity
from harness.servers.launch import Launch, port_is_free
from harness.servers.process import SERVER_FILE, ServerProcess, recover

DOOMED = Path(__file__).parent / "doomed_harness.py"
PATIENT = 30.0
"""A stop timeout that no test waits out."""


@contextlib.contextmanager
def doomed_harness(launch: Launch, stop_timeout: float = PATIENT) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """Another process that runs the server; gives it, the server's id and the guard's."""
    fields = {
        "argv": launch.argv,
        "cwd": str(launch.cwd),
        "log_path": str(launch.log_path),
        "base_url": launch.base_url,
        "port": launch.port,
    }
    command = [sys.executable, str(DOOMED), json.dumps(fields), str(stop_timeout)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as harness:
        try:
            assert harness.stdout is not None
            told = json.loads(harness.stdout.readline())
            yield harness, told["pid"], told["guard_pid"]
        finally:
            harness.kill()


def test_polite_server_stops_by_sigterm(make_launch: MakeLaunch) -> None:
    """A server that obeys SIGTERM is reported so, with its exit status, and its port is free afterwards."""
    launch = make_launch("--children", "1")
    with ServerProcess.start(launch, PATIENT) as server:
        wait_for_log(launch, "listening")
        assert server.alive
        assert server.returncode is None
        assert not port_is_free(launch.port)
        report = server.stop()
        assert (report.stopped_by, report.exit_status, report.leftovers) == ("sigterm", 0, 0)
        assert not server.alive
        assert server.returncode == 0
        assert server.stop() is report
    assert port_is_free(launch.port)
    assert not any(map(runs, logged_pids(launch, "child")))
    assert not (launch.trial_dir / SERVER_FILE).exists()


def test_server_runs_in_its_own_session_with_our_environment(make_launch: MakeLaunch) -> None:
    """A terminal's Ctrl-C reaches neither server nor guard, and the server sees inherited and added variables."""
    launch = make_launch(env={"ADDED_HERE": "1"})
    with ServerProcess.start(launch, PATIENT) as server:
        assert os.getsid(server.pid) == server.pid
        assert os.getsid(server.guard_pid) == server.guard_pid
        environment = psutil.Process(server.pid).environ()
        assert environment["ADDED_HERE"] == "1"
        assert environment["PATH"] == os.environ["PATH"]
        # SIGINT must keep its default action, or a server could not handle it.
        ignored = next(s for s in Path(f"/proc/{server.pid}/status").read_text().splitlines() if s.startswith("SigIgn"))
        assert not int(ignored.split()[1], 16) & (1 << (signal.SIGINT - 1))


def test_stubborn_server_is_killed(make_launch: MakeLaunch) -> None:
    """A server that ignores SIGTERM is killed when the wait is over."""
    launch = make_launch("--ignore-sigterm")
    with ServerProcess.start(launch, 0.3) as server:
        wait_for_log(launch, "listening")
        report = server.stop()
    assert (report.stopped_by, report.exit_status) == ("sigkill", -signal.SIGKILL)
    assert report.seconds >= 0.3
    assert not runs(server.pid)


def test_detached_and_stubborn_descendants_are_killed(make_launch: MakeLaunch) -> None:
    """Descendants that left the server's group or ignore SIGTERM are gone after the stop, and are counted."""
    launch = make_launch("--children", "1", "--detached", "1", "--stubborn-children")
    with ServerProcess.start(launch, 0.5) as server:
        wait_for_log(launch, "listening")
        members = logged_pids(launch, "child") + logged_pids(launch, "detached")
        assert len(members) == 2
        assert os.getpgid(members[1]) != server.pid
        report = server.stop()
    assert report.stopped_by == "sigterm"
    assert report.leftovers == 2
    assert not any(map(runs, members))


def test_children_of_a_killed_server_are_gone(make_launch: MakeLaunch) -> None:
    """When the server itself is killed, what it leaves behind ends too and the report says it died."""
    launch = make_launch("--children", "1", "--detached", "1")
    with ServerProcess.start(launch, 0.3) as server:
        wait_for_log(launch, "listening")
        members = logged_pids(launch, "child") + logged_pids(launch, "detached")
        os.kill(server.pid, signal.SIGKILL)
        wait_for(lambda: not server.alive, "the death to be noticed")
        assert server.returncode == -signal.SIGKILL
        report = server.stop()
    assert (report.stopped_by, report.exit_status) == ("died", -signal.SIGKILL)
    # Not as zombies either: the guard has seen the end of each.
    assert not any(map(psutil.pid_exists, members))


def test_descendant_that_no_look_at_the_processes_finds_is_killed(make_launch: MakeLaunch) -> None:
    """One that forks and ends faster than /proc can be read is not missed: the stop ends when nobody is left."""
    launch = make_launch("--hopping", "3")
    with ServerProcess.start(launch, PATIENT) as server:
        wait_for_log(launch, "listening")
        (session,) = logged_pids(launch, "hopping")
        assert members_of(session)
        report = server.stop()
    assert report.stopped_by == "sigterm"
    assert members_of(session) == []


def test_process_whose_first_thread_has_ended_is_killed(make_launch: MakeLaunch) -> None:
    """It looks like a zombie for as long as its other threads work, and holds what they hold."""
    launch = make_launch("--headless")
    with ServerProcess.start(launch, 0.3) as server:
        wait_for_log(launch, "listening")
        (pid,) = logged_pids(launch, "headless")
        wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "the end of its first thread")
        assert psutil.Process(pid).num_threads() == 2
        assert Identity.of(pid).alive()
        report = server.stop()
    assert report.leftovers == 1
    assert not psutil.pid_exists(pid)


def members_of(session: int) -> list[int]:
    """Who lives in a session, found by looking until somebody is or for a second."""
    found: list[int] = []
    until = time.monotonic() + 1.0
    while not found and time.monotonic() < until:
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == session and runs(pid):
                    found.append(pid)
    return found


def test_server_that_exits_at_once_reports_its_status(make_launch: MakeLaunch) -> None:
    """An early exit is seen with its status, and the stop after it is orderly."""
    with ServerProcess.start(make_launch("--exit-code", "3"), PATIENT) as server:
        wait_for(lambda: not server.alive, "the exit")
        assert server.returncode == 3
        assert server.stop().stopped_by == "died"


def test_program_that_does_not_exist(make_launch: MakeLaunch) -> None:
    """A program that cannot be executed is one clear error."""
    launch = make_launch()
    absent = Launch(("/nonexistent/python",), {}, launch.cwd, launch.log_path, launch.base_url, launch.port, "m")
    with pytest.raises(ServerNotReady, match=r"cannot start /nonexistent/python: .*No such file"):
        ServerProcess.start(absent, PATIENT)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_server_dies_with_its_harness(make_launch: MakeLaunch, number: signal.Signals) -> None:
    """Killing the harness, even by SIGKILL, ends server, children, detached children and guard."""
    launch = make_launch("--children", "1", "--detached", "1", "--ignore-sigterm")
    with doomed_harness(launch, stop_timeout=0.3) as (harness, pid, guard_pid):
        wait_for_log(launch, "listening")
        members = [pid, guard_pid, *logged_pids(launch, "child"), *logged_pids(launch, "detached")]
        assert len(members) == 4
        assert all(map(runs, members))
        harness.send_signal(number)
        wait_for(lambda: not any(map(runs, members)), "every process to end")
    assert port_is_free(launch.port)


def test_pipe_held_open_by_a_forked_child_does_not_save_the_server(make_launch: MakeLaunch, tmp_path: Path) -> None:
    """The guard also notices the harness' death when a forked child still holds the pipe open."""
    launch = make_launch()
    holder_file = tmp_path / "holder"
    script = (
        "import os, pathlib, signal, sys, time\n"
        "from harness.servers.launch import Launch\n"
        "from harness.servers.process import ServerProcess\n"
        f"folder = pathlib.Path({str(launch.cwd)!r})\n"
        f"launch = Launch({launch.argv!r}, {{}}, folder, folder / 'server.log', '', {launch.port}, 'm')\n"
        "server = ServerProcess.start(launch, 0.3)\n"
        "holder = os.fork()\n"
        "if holder == 0: time.sleep(60)\n"
        f"pathlib.Path({str(holder_file)!r}).write_text(f'{{holder}} {{server.pid}}')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == -signal.SIGKILL
    holder, pid = map(int, holder_file.read_text().split())
    try:
        assert runs(holder)
        wait_for(lambda: not runs(pid), "the server to end")
    finally:
        os.kill(holder, signal.SIGKILL)


def test_second_interrupt_does_not_break_the_stop(make_launch: MakeLaunch) -> None:
    """Ctrl-C during the stop of a stubborn server hastens it, leaves nothing, and is raised when it is done."""
    launch = make_launch("--ignore-sigterm", "--children", "1")
    server = ServerProcess.start(launch, PATIENT)
    wait_for_log(launch, "listening")

    def interrupt() -> None:
        wait_for_log(launch, "ignored SIGTERM")
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    interrupter.join()
    report = server.stop()
    assert report.stopped_by == "sigkill"
    assert report.seconds < PATIENT
    assert not runs(server.pid)
    assert not runs(server.guard_pid)
    assert not any(map(runs, logged_pids(launch, "child")))


def test_interrupted_body_stops_the_server(make_launch: MakeLaunch) -> None:
    """An exception out of the `with` block stops the server before it goes on."""
    launch = make_launch()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ServerProcess.start(launch, PATIENT) as server:
        interrupted()
    assert not runs(server.pid)
    assert not runs(server.guard_pid)


def test_a_killed_guard_takes_the_server_along(make_launch: MakeLaunch) -> None:
    """A server never outlives its guard, not even a stubborn one; that is a death, and the stop clears the rest."""
    launch = make_launch("--children", "1", "--detached", "1", "--ignore-sigterm", "--stubborn-children")
    with ServerProcess.start(launch, PATIENT) as server:
        wait_for_log(launch, "listening")
        members = logged_pids(launch, "child") + logged_pids(launch, "detached")
        os.kill(server.guard_pid, signal.SIGKILL)
        wait_for(lambda: not runs(server.pid), "the server's death")
        wait_for(lambda: not server.alive, "the death to be noticed")
        assert all(map(runs, members))
        report = server.stop()
    assert (report.stopped_by, report.exit_status, report.leftovers) == ("died", None, 2)
    assert not any(map(runs, members))


def test_port_taken_by_another_after_the_stop(make_launch: MakeLaunch) -> None:
    """A port that is still listened on after the stop is an error that names it."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        server = ServerProcess.start(make_launch("--slow-start", "600", port=port), PATIENT)
        with pytest.raises(ServerLeft, match=f"port {port} is still taken"):
            server.stop()
    server.stop()


def test_port_can_be_used_again_at_once(make_launch: MakeLaunch) -> None:
    """A stopped server's port serves the next trial, closed connections notwithstanding."""
    first = make_launch()
    with ServerProcess.start(first, PATIENT):
        wait_for_log(first, "listening")
        with socket.create_connection(("127.0.0.1", first.port)) as client:
            client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert client.recv(100)
    second = make_launch(trial="r01-2-on", port=first.port)
    with ServerProcess.start(second, PATIENT) as server:
        wait_for_log(second, "listening")
        assert server.alive


def test_owns_port(make_launch: MakeLaunch) -> None:
    """The server owns its port once it listens there, and not before."""
    launch = make_launch("--slow-start", "0.5")
    with ServerProcess.start(launch, PATIENT) as server:
        assert not server.owns_port()
        wait_for_log(launch, "listening")
        assert server.owns_port()


def test_recover_without_a_server_file(tmp_path: Path) -> None:
    """A trial that never started a server has nothing to recover."""
    assert recover(tmp_path) is False


def test_recover_after_the_harness_was_killed(make_launch: MakeLaunch) -> None:
    """Recovery waits for, and hastens, a guard that is still stopping a stubborn server."""
    launch = make_launch("--ignore-sigterm", "--children", "1")
    with doomed_harness(launch) as (harness, pid, guard_pid):
        wait_for_log(launch, "listening")
        members = [pid, guard_pid, *logged_pids(launch, "child")]
        harness.kill()
        harness.wait()
        assert recover(launch.trial_dir) is True
        assert not any(map(runs, members))
    assert not (launch.trial_dir / SERVER_FILE).exists()
    assert recover(launch.trial_dir) is False


def test_recover_after_harness_and_guard_were_killed(make_launch: MakeLaunch) -> None:
    """With the guard dead too the server dies by itself, and recovery ends what it had started, detached or not."""
    launch = make_launch("--children", "1", "--detached", "1")
    with doomed_harness(launch) as (harness, pid, guard_pid):
        wait_for_log(launch, "listening")
        os.kill(guard_pid, signal.SIGKILL)
        harness.kill()
        harness.wait()
        wait_for(lambda: not runs(pid), "the server's death")
        members = logged_pids(launch, "child") + logged_pids(launch, "detached")
        assert len(members) == 2
        assert all(map(runs, members))
        assert recover(launch.trial_dir) is True
        assert not any(map(runs, members))


def test_recover_refuses_a_trial_that_is_running(make_launch: MakeLaunch) -> None:
    """A trial whose harness is alive is somebody's work and is left alone."""
    launch = make_launch()
    with doomed_harness(launch) as (harness, pid, _):
        with pytest.raises(ResumeError, match=f"process {harness.pid}, is running this trial"):
            recover(launch.trial_dir)
        assert runs(pid)


def test_recover_never_touches_a_reused_id(tmp_path: Path) -> None:
    """Processes with the recorded ids but another time of creation live on."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]) as bystander:
        created = psutil.Process(bystander.pid).create_time()
        record = {"port": 1, "argv": [], "mark": "0"}
        for role in ("harness_", "guard_", ""):
            record |= {f"{role}pid": bystander.pid, f"{role}create_time": created - 60.0}
        (tmp_path / SERVER_FILE).write_text(json.dumps(record))
        try:
            assert recover(tmp_path) is False
            assert runs(bystander.pid)
            assert not (tmp_path / SERVER_FILE).exists()
        finally:
            bystander.kill()


@pytest.mark.parametrize("text", ["{", "{}", '{"harness_pid": null}', "[]"])
def test_recover_names_a_damaged_file(tmp_path: Path, text: str) -> None:
    """A damaged `.server.json` is named; nothing is guessed."""
    (tmp_path / SERVER_FILE).write_text(text)
    with pytest.raises(ResumeError, match=r"server\.json is unreadable"):
        recover(tmp_path)
