"""A child program: what it prints and returns, and that nothing of it is left however the wait for it ends."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.client.child import run_child
from harness.errors import HarnessFailure

STUBBORN = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("pids.tmp").write_text(f"{os.getpid()} {child.pid}")
pathlib.Path("pids.tmp").rename("pids")
time.sleep(600)
"""
DOOMED = """
import asyncio, os, pathlib, sys
from harness.client.child import run_child
program, here = [sys.executable, "-c", sys.argv[1]], pathlib.Path.cwd()
asyncio.run(run_child(program, env=os.environ, cwd=here, log_path=here / "log", timeout_s=60))
"""


async def run(folder: Path, program: str, timeout_s: float = 60.0) -> int | None:
    return await run_child(
        [sys.executable, "-c", program], env=os.environ, cwd=folder, log_path=folder / "log", timeout_s=timeout_s
    )


async def pids_of(folder: Path) -> list[int]:
    """The stubborn program and its own child, once they run."""
    for _ in range(600):
        if (folder / "pids").exists():
            return [int(word) for word in (folder / "pids").read_text().split()]
        await asyncio.sleep(0.05)
    raise AssertionError("the program did not start in 30 s")


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("status", [0, 3])
async def test_the_exit_status_comes_back_and_the_output_is_kept(tmp_path: Path, status: int) -> None:
    program = f"import sys; print('out'); print('err', file=sys.stderr); sys.exit({status})"
    assert await run(tmp_path, program) == status
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


async def test_a_program_that_cannot_start_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(HarnessFailure, match=r"cannot start /nowhere/python: .*No such file"):
        await run_child(["/nowhere/python"], env={}, cwd=tmp_path, log_path=tmp_path / "log", timeout_s=30.0)


async def test_one_that_does_not_end_in_time_is_stopped_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.client.child._STOP_S", 0.2)
    running = asyncio.create_task(run(tmp_path, STUBBORN, timeout_s=3.0))
    pids = await pids_of(tmp_path)
    assert len(living(pids)) == 2
    assert await running is None
    assert living(pids) == []


async def test_cancelling_ends_it_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C and the watchdog do; the program is deaf to SIGTERM."""
    monkeypatch.setattr("harness.client.child._STOP_S", 0.2)
    running = asyncio.create_task(run(tmp_path, STUBBORN))
    pids = await pids_of(tmp_path)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert living(pids) == []


async def test_it_does_not_outlive_a_harness_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL leaves the harness no time for anything: the guard ends the program."""
    doomed = await asyncio.create_subprocess_exec(sys.executable, "-c", DOOMED, STUBBORN, cwd=tmp_path)
    try:
        pids = await pids_of(tmp_path)
    finally:
        doomed.kill()
        await doomed.wait()
    deadline = time.monotonic() + 30.0
    while living(pids):
        assert time.monotonic() < deadline, f"{living(pids)} outlived the harness"
        await asyncio.sleep(0.1)
