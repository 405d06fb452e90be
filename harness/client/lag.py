"""The loop's lag: how late the client's own event loop ran."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import TracebackType
from typing import Self


class LoopLag:
    """Measures the worst oversleep of a task that only sleeps, while the `async with` block runs.

    A client that is starved of CPU sees every chunk late and measures itself; this is how late, at worst.

    Parameters:
        period_s: one sleep; stalls much shorter than it may go unseen.
    """

    def __init__(self, period_s: float = 0.02) -> None:
        self._period_s = period_s
        self._worst_ns = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def worst_ms(self) -> float:
        """Worst oversleep so far, in milliseconds; the selector's own granularity of about 1 ms included."""
        return self._worst_ns / 1e6

    async def _sample(self) -> None:
        period_ns = int(self._period_s * 1e9)
        while True:
            asleep = time.perf_counter_ns()
            try:
                await asyncio.sleep(self._period_s)
            finally:
                # Also when cancelled: a stall at the very end of the bench counts.
                self._worst_ns = max(self._worst_ns, time.perf_counter_ns() - asleep - period_ns)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._sample(), name="loop-lag")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
