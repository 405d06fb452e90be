"""py-spy at a running server: a sampled profile of one process, taken from outside and bounded in time."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sysconfig
from pathlib import Path

from harness.errors import HarnessFailure, MissingDependency

_RATE = 100
"""Samples a second."""
_GRACE_S = 30.0
"""For attaching, and for writing the file."""


def find_py_spy() -> str:
    """The program: of this environment, else on PATH.

    Raises:
        MissingDependency: it is in neither.
    """
    own = Path(sysconfig.get_path("scripts")) / "py-spy"
    found = shutil.which(own) or shutil.which("py-spy")
    if found is None:
        raise MissingDependency("py-spy is not installed: pip install 'omni-prefix-bench[profile]'")
    return found


async def record_profile(program: str, pid: int, seconds: float, path: Path) -> None:
    """Sample all running threads of a process for some seconds and write the profile, in speedscope's format.

    The process is held for an instant at each sample. Cancelling detaches from it.

    Parameters:
        program: py-spy.

    Raises:
        HarnessFailure: it may not read the process, or failed; one sentence.
    """
    command = [program, "record", "--pid", str(pid), "--duration", str(max(1, round(seconds))), "--rate", str(_RATE)]
    command += ["--format", "speedscope", "--full-filenames", "--output", str(path)]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise HarnessFailure(f"py-spy did not start: {error.strerror}") from error
    try:
        output, _ = await asyncio.wait_for(process.communicate(), seconds + _GRACE_S)
    except TimeoutError:
        raise HarnessFailure(f"py-spy did not end within {seconds + _GRACE_S:.0f} s") from None
    finally:
        await _end(process)
    if process.returncode != 0:
        raise HarnessFailure(_said(output.decode(errors="replace"), pid))


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        # On an interrupt it lets go of the process in good order.
        process.send_signal(signal.SIGINT)
    try:
        await asyncio.wait_for(process.wait(), 5.0)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _said(output: str, pid: int) -> str:
    if "permission denied" in output.lower():
        return (
            f"py-spy may not read process {pid}; allowed: root, the capability SYS_PTRACE in a container, or "
            "kernel.yama.ptrace_scope=0 for processes of one's own"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"py-spy failed: {lines[0][:200] if lines else 'it said nothing'}"
