"""Where a step's rows wait between the engine's buffers and the store."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from torch import Tensor

from prefix_cache.budget import Budget, Ticket
from prefix_cache.copier import Copier, Landing, Move
from prefix_cache.pool import BufferPool, Layout, carve, row_bytes
from prefix_cache.slots import Slots


class StagedRows(Protocol):
    """Rows on their way to the store, and to whoever asks for them."""

    @property
    def shared(self) -> bool:
        """Whether the memory holds other steps' rows too: whoever keeps rows for long must copy them."""

    def host(self, timeout: float) -> Mapping[str, Tensor]:
        """Per key [n, *row_shape] in host memory, from any thread.

        Raises:
            CacheTimeout: they did not arrive within `timeout` seconds.
        """

    def written(self) -> None:
        """They are in the store: only their host memory is still of use."""


class StepRows:
    """One step's rows in memory of their own."""

    __slots__ = ("_landing", "_rows")
    shared = False

    def __init__(self, rows: Mapping[str, Tensor], landing: Landing | None) -> None:
        self._rows, self._landing = rows, landing

    @classmethod
    def hold(cls, rows: Mapping[str, Tensor], layout: Layout, count: int, copier: Copier, pool: BufferPool) -> StepRows:
        """Takes `rows` [count, *row_shape] out of the engine's buffers."""
        held = carve(copier.staging(row_bytes(layout, count)), layout, count)
        copier.hold([(value, held[key]) for key, value in rows.items()])
        return cls._land(held, layout, count, copier, pool)

    @classmethod
    def adopt(
        cls, rows: Mapping[str, Tensor], layout: Layout, count: int, copier: Copier, pool: BufferPool
    ) -> StepRows:
        """Takes over `rows`, which nobody else will write to: they are copied no further than to the host."""
        copier.hold([])
        return cls._land(rows, layout, count, copier, pool)

    @classmethod
    def _land(
        cls, held: Mapping[str, Tensor], layout: Layout, count: int, copier: Copier, pool: BufferPool
    ) -> StepRows:
        if copier.on_host:
            return cls(held, None)
        landed = pool.lease_rows(layout, count)
        return cls(landed, copier.land([(value, landed[key]) for key, value in held.items()]))

    def host(self, timeout: float) -> Mapping[str, Tensor]:
        if self._landing is not None:
            self._landing.wait(timeout)
        return self._rows

    def written(self) -> None:
        pass


class Segment:
    """Rows of several decode steps, one behind the other, that will be one WRITE.

    Parameters:
        layout: keys, row shapes and dtypes.
        capacity: rows it can hold.
        ticket: what its memory is charged to, until it is written.
    """

    def __init__(self, layout: Layout, capacity: int, copier: Copier, pool: BufferPool, ticket: Ticket) -> None:
        self.layout, self.capacity, self.ticket = layout, capacity, ticket
        self.slots = np.empty(capacity, dtype=np.int64)
        self.used = self.steps = 0
        self._copier = copier
        self._held: Mapping[str, Tensor] = carve(copier.staging(row_bytes(layout, capacity)), layout, capacity)
        self._landed = self._held if copier.on_host else pool.lease_rows(layout, capacity)
        self._landings: list[tuple[int, Landing]] = []
        self._lock = threading.Lock()

    def park(self, slots: Slots, rows: Mapping[str, Tensor]) -> ParkedRows:
        start, stop = self.used, self.used + len(slots)
        self._copier.hold([(value, self._held[key][start:stop]) for key, value in rows.items()])
        self.slots[start:stop] = slots
        self.used, self.steps = stop, self.steps + 1
        return ParkedRows(self, start, stop)

    def host(self, start: int, stop: int, timeout: float) -> Mapping[str, Tensor]:
        """Rows `start` to `stop` in host memory. What has landed for one asker lands for nobody else again."""
        if not self._copier.on_host:
            for landing in self._land(start, stop):
                landing.wait(timeout)
        return {key: value[start:stop] for key, value in self._landed.items()}

    def let_go(self) -> None:
        """Gives the device memory back; everything has landed."""
        with self._lock:
            self._held = {}

    def _land(self, start: int, stop: int) -> list[Landing]:
        with self._lock:
            done = self._landings[-1][0] if self._landings else 0
            if done < stop:
                moves: list[Move] = [
                    (held[done:stop], self._landed[key][done:stop]) for key, held in self._held.items()
                ]
                self._landings.append((stop, self._copier.land(moves)))
            return [landing for end, landing in self._landings if end > start]


class ParkedRows:
    """One step's rows inside a segment; with the whole segment, what the WRITE takes."""

    __slots__ = ("_segment", "_start", "_stop")
    shared = True

    def __init__(self, segment: Segment, start: int, stop: int) -> None:
        self._segment, self._start, self._stop = segment, start, stop

    def host(self, timeout: float) -> Mapping[str, Tensor]:
        return self._segment.host(self._start, self._stop, timeout)

    def written(self) -> None:
        self._segment.let_go()


class DecodeBuffer:
    """Parks the rows of pure decode steps, so that many steps become one WRITE. Used by the engine's thread only.

    Parameters:
        max_steps: steps a segment takes before it must be written.
        max_rows: rows a segment takes.
        budget: charged for a segment from its first row until it is written.
    """

    def __init__(self, max_steps: int, max_rows: int, budget: Budget, copier: Copier, pool: BufferPool) -> None:
        self._max_steps, self._max_rows, self._budget = max_steps, max_rows, budget
        self._copier, self._pool = copier, pool
        self._filling: Segment | None = None

    def takes(self, count: int) -> bool:
        """Whether a step of `count` rows can be parked at all."""
        return 0 < count <= self._max_rows

    def has_room(self, count: int, layout: Layout) -> bool:
        """Whether the segment now filling can take the step; if not, `take` it first."""
        segment = self._filling
        return segment is None or (segment.used + count <= segment.capacity and segment.layout == layout)

    def park(self, slots: Slots, rows: Mapping[str, Tensor], layout: Layout) -> ParkedRows:
        if self._filling is None:
            capacity = min(self._max_rows, len(slots) * self._max_steps)
            ticket = self._budget.reserve(row_bytes(layout, capacity), "parked decode rows")
            try:
                self._filling = Segment(layout, capacity, self._copier, self._pool, ticket)
            except BaseException:
                ticket.release()
                raise
        return self._filling.park(slots, rows)

    @property
    def full(self) -> bool:
        return self._filling is not None and self._filling.steps >= self._max_steps

    def take(self) -> Segment | None:
        """Ends the segment now filling and hands it over to be written; None when nothing is parked."""
        segment, self._filling = self._filling, None
        return segment
