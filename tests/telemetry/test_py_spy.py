"""py-spy from outside: a real profile of a real process, and every way in which there is none."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HarnessFailure, MissingDependency
from harness.telemetry import py_spy
from harness.telemetry.profile_shares import profile_shares
from harness.telemetry.py_spy import find_py_spy, record_profile

BUSY = "import threading\ndef hot():\n    while True: sum(range(1000))\nprint('up', flush=True)\nhot()\n"


@pytest.fixture
def busy(tmp_path):
    """A process that does nothing but run `prefix_cache/hot.py`."""
    folder = tmp_path / "prefix_cache"
    folder.mkdir()
    (folder / "hot.py").write_text(BUSY)
    process = subprocess.Popen([sys.executable, folder / "hot.py"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def program(folder: Path, body: str) -> str:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


async def test_a_busy_function_is_found(tmp_path, busy):
    """Nearly every sample of a process that does one thing is in that one function."""
    path = tmp_path / "profile.json"
    try:
        await record_profile(find_py_spy(), busy.pid, 1.0, path)
    except HarnessFailure as refused:
        if "may not read process" not in str(refused):
            raise
        pytest.skip(f"this machine lets no process be traced: {refused}")
    found = profile_shares(path.read_bytes())
    assert found.samples > 10
    first = found.cache[0]
    assert (first.function, first.file, first.thread) == ("hot", "prefix_cache/hot.py", "MainThread")
    assert first.samples > 0.9 * found.samples


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1", "SYS_PTRACE"),
        ("echo 'Error: it broke' >&2; echo '  0: anyhow::context'; exit 1", "py-spy failed: Error: it broke"),
        ("exit 3", "py-spy failed: it said nothing"),
    ],
)
async def test_a_refusal_is_one_sentence(tmp_path, body, says):
    """A missing permission says what would give it; anything else is py-spy's own first line."""
    with pytest.raises(HarnessFailure) as failed:
        await record_profile(program(tmp_path, body), 1, 1.0, tmp_path / "out")
    assert says in str(failed.value)
    assert "\n" not in str(failed.value)


async def test_it_is_bounded_in_time(tmp_path, monkeypatch):
    """A profiler that hangs is ended."""
    monkeypatch.setattr(py_spy, "_GRACE_S", -0.8)
    with pytest.raises(HarnessFailure, match="did not end within"):
        await record_profile(
            program(tmp_path, f"exec {sys.executable} -c 'import time; time.sleep(60)'"), 1, 1.0, tmp_path / "out"
        )


async def test_cancelling_ends_it(tmp_path):
    """No profiler is left behind: its process is reaped before the cancellation goes on."""
    marker = tmp_path / "pid"
    task = asyncio.create_task(
        record_profile(program(tmp_path, f"echo $$ > {marker}; exec sleep 60"), 1, 30.0, tmp_path / "out")
    )
    while not marker.exists() or not marker.read_text().strip():  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{marker.read_text().strip()}").exists()  # noqa: ASYNC240


async def test_no_program(tmp_path, monkeypatch):
    """Not installed is a missing dependency that names the extra."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(py_spy.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(MissingDependency, match=r"omni-prefix-bench\[profile\]"):
        find_py_spy()
