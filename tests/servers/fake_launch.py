"""Launches of the fake server, and patient looks at what it does."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from harness.servers.launch import Launch, free_port

FAKE_SERVER = Path(__file__).parent / "fake_server.py"

MakeLaunch = Callable[..., Launch]


def fake_launch(folder: Path, *options: str, env: dict[str, str] | None = None, port: int = 0) -> Launch:
    """A launch of the fake server with the given options, in a trial's folder that is made if need be."""
    folder.mkdir(exist_ok=True)
    port = port or free_port()
    return Launch(
        argv=(sys.executable, "-I", "-S", str(FAKE_SERVER), "--port", str(port), *options),
        env=env or {},
        cwd=folder,
        log_path=folder / "server.log",
        base_url=f"http://127.0.0.1:{port}",
        port=port,
        model_name="m",
    )


def wait_for(condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
    """Poll until the condition holds; fail after a time no working machine needs."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.01)


def wait_for_log(launch: Launch, text: str) -> str:
    wait_for(lambda: launch.log_path.exists() and text in launch.log_path.read_text(), f"{text!r} in the log")
    return launch.log_path.read_text()


def logged_pids(launch: Launch, name: str) -> list[int]:
    """Ids that the server printed as `NAME PID`."""
    lines = [line.split() for line in launch.log_path.read_text().splitlines()]
    return [int(line[1]) for line in lines if line and line[0] == name]


def runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie, by the operating system and not by the code under test."""
    try:
        os.kill(pid, 0)
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
