"""The watchdog: notices that a server hangs, so that a bench need not wait for every request to time out."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import aiohttp

from harness.client import LoadResult
from harness.client.stream import unsent

PATIENCE_S = 30.0
_FAILURES = 3
_INTERVAL_S = 2.0


async def hung(session: aiohttp.ClientSession, base_url: str, patience_s: float) -> None:
    """Returns once `/health` has left three requests in a row without any answer; else never: to be cancelled.

    Any status is an answer, and so is a refused or broken connection: a server that is gone fails its requests at once.
    Waits are counted rather than added up, so a laptop that wakes from sleep is one failure and no hang.

    Parameters:
        patience_s: seconds for all three together.
    """
    limit = aiohttp.ClientTimeout(total=patience_s / _FAILURES)
    failures = 0
    while failures < _FAILURES:
        try:
            async with session.get(f"{base_url}/health", timeout=limit):
                failures = 0
        except TimeoutError:
            failures += 1
            continue
        except aiohttp.ClientError:
            failures = 0
        await asyncio.sleep(min(_INTERVAL_S, patience_s / _FAILURES))


def called_off(prompts: int, started_at: datetime, reason: str) -> LoadResult:
    """The result of a load that was called off now: every request failed with `reason`, and no lag was measured.

    Answers that had come before the hang are not kept: a bench is measured whole or not at all.
    """
    now = time.perf_counter_ns()
    duration_s = (datetime.now(UTC) - started_at).total_seconds()
    begun = now - int(duration_s * 1e9)
    return LoadResult(
        started_at=started_at,
        started_ns=begun,
        duration_s=duration_s,
        client_lag=None,
        requests=tuple(unsent(index, due_ns=begun, reason=reason) for index in range(prompts)),
    )
