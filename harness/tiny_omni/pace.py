"""How long a step takes beyond its own computing: a simulated device's time, and the fault slow-step."""

from __future__ import annotations

import time

LEAST_SLEEP = 0.0005
"""Seconds; the system's timers are late by about a tenth of it."""


class Pace:
    """The end of every step, held back on the engine's thread.

    A step lasts at least `least` from the begin of its forward, as if a device were computing it and this thread
    waited; nothing of that is measured, it is simulated. On top it lasts longer by `share` of what it took. Thread
    time and that wait are what counts: the time an idle engine waits for work belongs to no step. Without a wait,
    shares too small for one sleep are saved up, and a sleep that took too long is taken off the next, so that the share
    holds over any number of steps.

    Parameters:
        least: seconds.
        share: of the fault slow-step.
    """

    def __init__(self, least: float, share: float) -> None:
        self._least, self._share = least, share
        self._began = self._owed = 0.0
        self._before: float | None = None

    def begin(self) -> None:
        """Right before a step's forward."""
        if self._before is None:
            self._before = time.thread_time()
        self._began = time.perf_counter()

    def end(self) -> None:
        """Once the forward's result is there: sleep for what the step still has to take."""
        now, computed = time.perf_counter(), time.thread_time()
        wait = max(self._began + self._least - now, 0.0)
        assert self._before is not None
        self._owed += self._share * (computed - self._before + wait)
        self._before = computed
        if wait > 0.0:
            # Never shortened for a sleep that was late before: no step is shorter than a device's.
            time.sleep(wait + max(self._owed, 0.0))
            self._owed = min(self._owed, 0.0)
        elif self._owed >= LEAST_SLEEP:
            time.sleep(self._owed)
            self._owed -= time.perf_counter() - now
