"""Where a step's rows wait between the engine's buffers and the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from prefix_cache.budget import Budget, Ticket
from prefix_cache.slots import Slots

Layout = Mapping[str, tuple[torch.Size, torch.dtype]]
"""Shape of one row and dtype, by key."""


class StepRows(Protocol):
    """A saved step's rows, alive until released."""

    def rows(self) -> Mapping[str, Tensor]:
        """Per key [n, *row_shape]."""

    @property
    def reusable(self) -> bool:
        """Whether the memory is used again after `release`: then whoever keeps rows must copy them."""

    def release(self) -> None: ...


class FreshRows:
    """Rows in memory of their own: they live as long as anybody holds them."""

    __slots__ = ("_rows",)
    reusable = False

    def __init__(self, rows: Mapping[str, Tensor]) -> None:
        self._rows = rows

    def rows(self) -> Mapping[str, Tensor]:
        return self._rows

    def release(self) -> None:
        pass


class Segment:
    """A piece of the decode buffer's memory: rows of several steps, one behind the other.

    Parameters:
        layout: keys, row shapes and dtypes.
        capacity: rows it can hold.
        recycle: called when the last hold is gone.
    """

    def __init__(self, layout: Layout, capacity: int, recycle: Callable[[Segment], None]) -> None:
        self.layout, self.capacity = dict(layout), capacity
        self.tensors = {key: torch.empty((capacity, *shape), dtype=dtype) for key, (shape, dtype) in layout.items()}
        self.slots = np.empty(capacity, dtype=np.int64)
        self.used = self.steps = 0
        self.ticket: Ticket | None = None
        self._recycle = recycle
        self._holds = 1
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def park(self, slots: Slots, rows: Mapping[str, Tensor]) -> ParkedRows:
        """Copies a step's rows in; the returned view holds the segment until it is released."""
        start, stop = self.used, self.used + len(slots)
        for key, value in rows.items():
            self.tensors[key][start:stop].copy_(value)
        self.slots[start:stop] = slots
        self.used, self.steps = stop, self.steps + 1
        with self._lock:
            self._holds += 1
        return ParkedRows(self, start, stop)

    def written(self) -> None:
        """The WRITE is done with it."""
        if self.ticket is not None:
            self.ticket.release()
        self.release()

    def release(self) -> None:
        with self._lock:
            self._holds -= 1
            idle = self._holds == 0
        if idle:
            self._recycle(self)

    def reuse(self) -> None:
        self.used = self.steps = 0
        self._holds = 1


class ParkedRows:
    """One step's rows inside a segment."""

    __slots__ = ("_segment", "_start", "_stop")
    reusable = True

    def __init__(self, segment: Segment, start: int, stop: int) -> None:
        self._segment, self._start, self._stop = segment, start, stop

    def rows(self) -> Mapping[str, Tensor]:
        return {key: tensor[self._start : self._stop] for key, tensor in self._segment.tensors.items()}

    def release(self) -> None:
        self._segment.release()


class DecodeBuffer:
    """Parks the rows of pure decode steps, so that many steps become one WRITE.

    Only the engine's thread parks and takes; segments come back from any thread.

    Parameters:
        max_steps: steps a segment takes before it must be written.
        max_rows: rows a segment takes.
        budget: charged for a segment from its first row until it is written.
    """

    def __init__(self, max_steps: int, max_rows: int, budget: Budget) -> None:
        self._max_steps, self._max_rows, self._budget = max_steps, max_rows, budget
        self._filling: Segment | None = None
        self._idle: list[Segment] = []

    def takes(self, count: int) -> bool:
        """Whether a step of `count` rows can be parked at all."""
        return 0 < count <= self._max_rows

    def room_for(self, count: int, layout: Layout) -> bool:
        """Whether `park` can go on in the segment now filling; if not, `take` it first."""
        segment = self._filling
        return segment is None or (segment.used + count <= segment.capacity and segment.layout == layout)

    def park(self, slots: Slots, rows: Mapping[str, Tensor], layout: Layout) -> ParkedRows:
        if self._filling is None:
            self._filling = self._acquire(layout)
        return self._filling.park(slots, rows)

    @property
    def full(self) -> bool:
        return self._filling is not None and self._filling.steps >= self._max_steps

    def take(self) -> Segment | None:
        """Ends the segment now filling and hands it over to be written; None when nothing is parked."""
        segment, self._filling = self._filling, None
        return segment

    def _acquire(self, layout: Layout) -> Segment:
        while self._idle:
            segment = self._idle.pop()
            if segment.layout == layout:
                segment.reuse()
                break
        else:
            segment = Segment(layout, self._max_rows, self._idle.append)
        segment.ticket = self._budget.reserve(segment.nbytes, "parked decode rows")
        return segment
