"""The two operations of the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from torch import Tensor

from prefix_cache.budget import Ticket
from prefix_cache.errors import AbsentRow, CacheFailed, CacheTimeout
from prefix_cache.gather import Gather
from prefix_cache.pool import BufferPool
from prefix_cache.slots import Slots
from prefix_cache.staging import StagedRows
from prefix_cache.stats import Counters
from prefix_cache.store import RowStore


class Write:
    """Stores staged rows; then, whatever happened, their memory is charged to nobody."""

    __slots__ = ("_counters", "_rows", "_slots", "_store", "_ticket", "_timeout")

    def __init__(
        self, store: RowStore, slots: Slots, rows: StagedRows, ticket: Ticket, timeout: float, counters: Counters
    ) -> None:
        self._store, self._slots, self._rows, self._ticket = store, slots, rows, ticket
        self._timeout, self._counters = timeout, counters

    def run(self) -> None:
        rows = self._rows.host(self._timeout)
        start = time.perf_counter()
        self._store.write(self._slots, rows)
        self._counters.writes_total += 1
        self._counters.rows_written_total += len(self._slots)
        self._counters.written_bytes_total += sum(value.nbytes for value in rows.values())
        self._counters.write_seconds_total += time.perf_counter() - start
        self._rows.written()
        self._ticket.release()

    def abandon(self, error: BaseException) -> None:  # noqa: ARG002 - the error is the log's to report
        self._ticket.release()


class Read:
    """Gathers a hit's blocks, for whoever asks later.

    A read may come too early: the rows may be written by the very step that hits them. So an absent row is only
    remembered until the step is saved; then the read is either superseded by one behind the step's WRITE, or
    `finalise` makes what it found binding.
    """

    __slots__ = (
        "_begun",
        "_cancelled",
        "_counters",
        "_error",
        "_final",
        "_finished",
        "_gather",
        "_lock",
        "_pool",
        "_rows",
        "_store",
        "_timeout",
        "blocks",
        "room",
    )

    def __init__(
        self, store: RowStore, blocks: Slots, room: int, pool: BufferPool, timeout: float, counters: Counters
    ) -> None:
        self._store, self.blocks, self.room = store, blocks, room
        self._pool, self._timeout, self._counters = pool, timeout, counters
        self._lock = threading.Lock()
        self._begun, self._finished = threading.Event(), threading.Event()
        self._final = self._cancelled = False
        self._gather: Gather | None = None
        self._rows: Mapping[str, Tensor] | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        if self._cancelled:
            self._end()
            return
        start = time.perf_counter()
        try:
            gather = self._gather = self._store.read(self.blocks, self.room, self._pool)
        except AbsentRow as error:
            with self._lock:
                self._error = error
                final = self._final
            self._end()
            if final:
                raise
            return
        self._begun.set()
        zeroed = gather.finish(self._timeout)
        self._counters.reads_total += 1
        self._counters.optional_rows_zeroed_total += zeroed
        self._counters.gathered_bytes_total += sum(value.nbytes for value in gather.rows.values())
        self._counters.gather_seconds_total += time.perf_counter() - start
        self._rows = gather.rows
        self._end()

    def abandon(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._end()

    def _end(self) -> None:
        self._gather = None
        self._finished.set()
        self._begun.set()

    def finalise(self) -> BaseException | None:
        """Makes the outcome binding; returns the error if the read has already failed."""
        with self._lock:
            self._final = True
            return self._error

    def cancel(self) -> None:
        """Nobody will ask: skip the gathering if it has not begun."""
        self._cancelled = True

    def result(self, request_id: str, timeout: float) -> Mapping[str, Tensor]:
        """The rows by key, each [hit + room, *row_shape] with only the hit filled. Helps if they are being gathered.

        Raises:
            CacheTimeout: not executed within `timeout` seconds.
            CacheFailed: it failed, or an operation before it did.
        """
        deadline = time.monotonic() + timeout
        if self._begun.wait(timeout) and (gather := self._gather) is not None:
            gather.help()
        if not self._finished.wait(max(0.0, deadline - time.monotonic())):
            raise CacheTimeout(f"waited {timeout:g} s for the hit of request {request_id!r} to be read")
        if self._error is not None:
            raise CacheFailed(f"the hit of request {request_id!r} cannot be read: {self._error}") from self._error
        if self._rows is None:
            raise CacheFailed(f"the hit of request {request_id!r} was cancelled before it was asked for")
        return self._rows
