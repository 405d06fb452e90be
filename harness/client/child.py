"""A child program: another load generator, run under the guard that servers run under, so that nothing outlives us."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import HarnessFailure
from harness.servers import guard as guard_program

_STOP_S = 5.0
"""From SIGTERM to SIGKILL."""
_SLACK_S = 10.0


async def run_child(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log_path: Path, timeout_s: float
) -> int | None:
    """Run a program to its end, in a process group of its own, and return its exit status (negative: a signal).

    It and whatever it started is gone when this returns or raises, cancelled or not; should this process be killed,
    the guard ends it, and should the guard be killed, the kernel does.

    Parameters:
        env: its whole environment.
        log_path: what it prints is appended there.
        timeout_s: bound on the whole run.

    Returns:
        None when it did not end in time and was stopped.

    Raises:
        HarnessFailure: it could not be started, or could not be stopped.
    """
    with log_path.open("ab") as log:
        guard = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", guard_program.__file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            # A terminal's Ctrl-C must reach neither the guard nor its child: cancelling drives the stop.
            start_new_session=True,
        )
    task = {
        "argv": list(argv),
        "env": dict(env),
        "cwd": str(cwd),
        "log": str(log_path),
        "stop_timeout": _STOP_S,
        "harness_pid": os.getpid(),
    }
    try:
        assert guard.stdin is not None
        guard.stdin.write(json.dumps(task).encode() + b"\n")
        async with asyncio.timeout(timeout_s):
            return await _exit_status(guard, argv[0], log_path)
    except TimeoutError:
        return None
    finally:
        await _end(guard, argv[0])


async def _exit_status(guard: asyncio.subprocess.Process, program: str, log_path: Path) -> int:
    while (event := await _next_event(guard)) is not None:
        if event["event"] == "failed":
            raise HarnessFailure(f"cannot start {program}: {event['error']}")
        if event["event"] == "exited":
            status: int = event["status"]
            return status
    raise HarnessFailure(f"the guard of {program} ended before it; log: {log_path}")


async def _end(guard: asyncio.subprocess.Process, program: str) -> None:
    """Have the guard stop what is left, and wait until it has."""
    assert guard.stdin is not None
    guard.stdin.close()
    left: list[int] = []
    try:
        async with asyncio.timeout(_STOP_S + 2 * guard_program.KILL_WAIT_S + _SLACK_S):
            while (event := await _next_event(guard)) is not None:
                left = event.get("left", left)
            await guard.wait()
    except TimeoutError:
        raise HarnessFailure(f"the guard of {program}, process {guard.pid}, does not end") from None
    finally:
        # Also when cancelled once more: its child dies with it.
        if guard.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                guard.send_signal(signal.SIGKILL)
    if left:
        raise HarnessFailure(f"processes {', '.join(map(str, left))} of {program} outlived its stop")


async def _next_event(guard: asyncio.subprocess.Process) -> dict[str, Any] | None:
    """The next line of its report; None after the last."""
    assert guard.stdout is not None
    line = await guard.stdout.readline()
    return json.loads(line) if line else None
