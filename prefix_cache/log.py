"""The ordered log: every read and write of the store, in one FIFO, executed by one worker."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch

from prefix_cache.errors import CacheFailed, CacheTimeout


class Operation(Protocol):
    """One entry of the log."""

    def run(self) -> None:
        """Executes it; an exception makes the whole log fail, for good."""

    def abandon(self, error: BaseException) -> None:
        """Called instead of `run`, or after it failed, so that nobody waits for ever. May be called twice."""


class OrderedLog:
    """A FIFO of operations and the one thread that executes them.

    An operation sees exactly the operations before it. The first failure is sticky: what follows is abandoned,
    and every later `check` raises it.

    Parameters:
        capacity: operations that may wait; `append` blocks beyond.
        wait_timeout: seconds `append`, `drain` and `close` may block.
        threaded: False executes each operation inside `append`.
    """

    def __init__(self, capacity: int, wait_timeout: float, *, threaded: bool) -> None:
        self._capacity, self._timeout = capacity, wait_timeout
        self._pending: deque[tuple[float, Operation]] = deque()
        self._running_since: float | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._failure: BaseException | None = None
        self.waits = 0
        self.wait_seconds = 0.0
        self._worker: threading.Thread | None = None
        if threaded:
            self._worker = threading.Thread(target=self._work, name="prefix-cache-log", daemon=True)
            self._worker.start()

    def append(self, operation: Operation) -> None:
        """Adds an operation behind all others; waits while the log is full.

        Raises:
            CacheTimeout: the log stayed full.
            CacheFailed: an earlier operation failed.
        """
        try:
            self._admit(operation)
        except BaseException as error:
            operation.abandon(error)
            raise

    def check(self) -> None:
        """Raises CacheFailed when anything has failed before."""
        if self._failure is not None:
            raise CacheFailed(f"the prefix cache has failed: {self._failure!r}") from self._failure

    def fail(self, error: BaseException) -> None:
        """Makes the log fail; the first error is the one that is kept."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def depth(self) -> int:
        """Operations not yet finished."""
        with self._changed:
            return len(self._pending) + (self._running_since is not None)

    def age(self) -> float:
        """Seconds the oldest unfinished operation has been in the log; 0 when there is none."""
        with self._changed:
            oldest = self._running_since or (self._pending[0][0] if self._pending else None)
            return 0.0 if oldest is None else time.monotonic() - oldest

    def drain(self) -> None:
        """Waits until every operation appended so far is finished."""
        with self._changed:
            self._wait(lambda: not self._pending and self._running_since is None, "the log to drain")

    def close(self) -> None:
        """Drains, then ends the worker. Idempotent; never raises for an earlier failure."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._worker is not None and self._worker is not threading.current_thread():
            self._worker.join(self._timeout)
            if self._worker.is_alive():
                raise CacheTimeout(f"waited {self._timeout:g} s for the log's worker to end: {self.depth()} left")

    def _admit(self, operation: Operation) -> None:
        if self._worker is None:
            self.check()
            self._execute(operation)
            self.check()
            return
        with self._changed:
            if len(self._pending) >= self._capacity:
                self._wait(lambda: len(self._pending) < self._capacity, "a place in the log")
            self.check()
            if self._closed:
                raise CacheFailed("the prefix cache is shut down")
            self._pending.append((time.monotonic(), operation))
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        self.waits += 1
        start = time.monotonic()
        done = self._changed.wait_for(lambda: ready() or self._failure is not None, self._timeout)
        self.wait_seconds += time.monotonic() - start
        if not done:
            raise CacheTimeout(f"waited {self._timeout:g} s for {what}: {len(self._pending)} operations pending")

    def _work(self) -> None:
        _give_way()
        # Rows are inference tensors and the mode belongs to a thread.
        with torch.inference_mode():
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._pending or self._closed)
                    if not self._pending:
                        return
                    self._running_since, operation = self._pending.popleft()
                self._execute(operation)
                del operation
                with self._changed:
                    self._running_since = None
                    self._changed.notify_all()

    def _execute(self, operation: Operation) -> None:
        if self._failure is not None:
            operation.abandon(self._failure)
            return
        try:
            operation.run()
        except Exception as error:
            self.fail(error)
            operation.abandon(error)


def _give_way() -> None:
    # A batch thread does not push the thread that wakes it off its core: here, the engine's. Whoever has chosen
    # another policy for the engine has it here too.
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
