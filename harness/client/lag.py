"""Measures the lag of the client's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.lag import Lag

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Nanoseconds this thread ran, and nanoseconds it was runnable without a CPU (the kernel's sched-stats.rst)."""


class LoopLag:
    """Measures the worst oversleep of a task that only sleeps, while the `async with` block runs.

    A client that is starved of CPU sees every chunk late and measures itself; this is how late, at worst.

    Parameters:
        period_s: one sleep; stalls much shorter than it may go unseen.
        schedstat: where the kernel counts what the calling thread waited.
    """

    def __init__(self, period_s: float = 0.02, schedstat: Path = _SCHEDSTAT) -> None:
        self._period_s = period_s
        self._worst = Lag(0.0)
        self._task: asyncio.Task[None] | None = None
        self._path, self._schedstat = schedstat, -1

    @property
    def worst(self) -> Lag:
        """Worst oversleep so far; the selector's own granularity of about 1 ms included."""
        return self._worst

    async def _sample(self) -> None:
        period_ns = int(self._period_s * 1e9)
        while True:
            asleep, waited = time.perf_counter_ns(), self._waited_ns()
            try:
                await asyncio.sleep(self._period_s)
            finally:
                # Also when cancelled: a stall at the very end of the bench counts.
                late_ms = (time.perf_counter_ns() - asleep - period_ns) / 1e6
                if late_ms > self._worst.late_ms:
                    now = self._waited_ns()
                    self._worst = Lag(late_ms, None if waited is None or now is None else (now - waited) / 1e6)

    def _waited_ns(self) -> int | None:
        if self._schedstat < 0:
            return None
        try:
            ran, waited, *_ = map(int, os.pread(self._schedstat, 128, 0).split())
        except (OSError, ValueError):
            return None
        # A kernel that keeps no such statistics says 0 of everything.
        return waited if ran else None

    async def __aenter__(self) -> Self:
        # Opened once, on the loop's own thread, whose file it then stays.
        with contextlib.suppress(OSError):
            self._schedstat = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._task = asyncio.create_task(self._sample(), name="loop-lag")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1
