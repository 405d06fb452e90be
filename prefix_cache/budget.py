"""One bound on everything the cache holds outside its store."""

from __future__ import annotations

import threading
import time

from prefix_cache.errors import CacheTimeout


class Ticket:
    """A reservation; released exactly once, by whichever thread finishes the copy it stands for."""

    __slots__ = ("_budget", "nbytes")

    def __init__(self, budget: Budget, nbytes: int) -> None:
        self._budget: Budget | None = budget
        self.nbytes = nbytes

    def release(self) -> None:
        budget, self._budget = self._budget, None
        if budget is not None:
            budget._give_back(self.nbytes)


class Budget:
    """Bytes shared by parked rows and copies in flight, so that the two together keep one limit.

    A reservation larger than the whole limit is granted once nothing else is held: it must be possible to make
    progress with any step the engine can produce.
    """

    def __init__(self, limit: int, wait_timeout: float) -> None:
        self._limit, self._timeout = limit, wait_timeout
        self._held = 0
        self._changed = threading.Condition()
        self.waits = 0
        self.wait_seconds = 0.0

    @property
    def held(self) -> int:
        return self._held

    def try_reserve(self, nbytes: int) -> Ticket | None:
        """A ticket if it can be had now."""
        with self._changed:
            return self._grant(nbytes) if self._fits(nbytes) else None

    def reserve(self, nbytes: int, what: str) -> Ticket:
        """A ticket, after waiting if need be.

        Raises:
            CacheTimeout: not within the timeout; the message names `what` it was for.
        """
        with self._changed:
            if not self._fits(nbytes):
                self.waits += 1
                start = time.monotonic()
                done = self._changed.wait_for(lambda: self._fits(nbytes), self._timeout)
                self.wait_seconds += time.monotonic() - start
                if not done:
                    raise CacheTimeout(
                        f"waited {self._timeout:g} s for {nbytes} bytes of staging for {what}: "
                        f"{self._held} of {self._limit} are held by copies in flight"
                    )
            return self._grant(nbytes)

    def _fits(self, nbytes: int) -> bool:
        return self._held == 0 or self._held + nbytes <= self._limit

    def _grant(self, nbytes: int) -> Ticket:
        self._held += nbytes
        return Ticket(self, nbytes)

    def _give_back(self, nbytes: int) -> None:
        with self._changed:
            self._held -= nbytes
            self._changed.notify_all()
