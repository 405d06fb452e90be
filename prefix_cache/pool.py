"""Host memory that comes back by itself: the steady state touches no fresh pages."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Mapping
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prefix_cache.pages import lazy_pages

Layout = Mapping[str, tuple[torch.Size, torch.dtype]]
"""Shape of one row and dtype, by key."""

_SMALLEST = 1 << 16
_SLACK = 8  # a buffer serves requests down to an eighth of its size
_ALIGN = 64
_HUGE = 1 << 23  # four huge pages: what the last one wastes is at most a quarter


class BufferPool:
    """Recycles host buffers through the reference count of the tensors made from them.

    A lease is a tensor over a buffer. When the last view of it dies, wherever that is, the buffer is idle again: the
    holder of a row owes the pool nothing but to let go of it.

    Parameters:
        retain_bytes: idle memory kept for reuse; beyond it the longest idle goes back to the system.
        pinned: page-locked memory, for copies from a device.
    """

    def __init__(self, retain_bytes: int, *, pinned: bool = False) -> None:
        self._retain, self._pinned = retain_bytes, pinned
        self._idle: list[npt.NDArray[np.uint8]] = []
        # A buffer may come back inside any of our own lines, from a garbage collection: it only queues here.
        self._returned: deque[npt.NDArray[np.uint8]] = deque()
        self._lock = threading.Lock()

    def warm(self, nbytes: int) -> None:
        """Adds idle buffers whose pages are there already: half of `nbytes` in one, a quarter in the next, ..."""
        size = 1 << max(nbytes // 2, 1).bit_length() - 1
        while size >= _SMALLEST:
            buffer = self._allocate(size)
            buffer.fill(0)
            self._returned.append(buffer)
            size //= 2

    def lease(self, nbytes: int) -> Tensor:
        """Uninitialised memory: uint8 [nbytes], aligned for every dtype."""
        with self._lock:
            self._collect()
            buffer = self._take(nbytes)
        if buffer is None:
            buffer = self._allocate(nbytes)
        view = buffer[:nbytes]
        # torch keeps `view` alive for as long as anything shares the tensor's storage.
        finalizer = weakref.finalize(view, self._returned.append, buffer)
        finalizer.atexit = False
        return torch.from_numpy(view)

    def lease_rows(self, layout: Layout, count: int) -> dict[str, Tensor]:
        """One lease cut into a tensor [count, *row_shape] per key."""
        return carve(self.lease(row_bytes(layout, count)), layout, count)

    @property
    def idle_bytes(self) -> int:
        with self._lock:
            self._collect()
            return sum(buffer.nbytes for buffer in self._idle)

    def _collect(self) -> None:
        while self._returned:
            self._idle.append(self._returned.popleft())
        surplus = sum(buffer.nbytes for buffer in self._idle) - self._retain
        while self._idle and surplus > 0:
            surplus -= self._idle.pop(0).nbytes

    def _take(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        best: int | None = None
        # From the warmest: of equal sizes the one used last.
        for index in range(len(self._idle) - 1, -1, -1):
            size = self._idle[index].nbytes
            fits = nbytes <= size <= max(nbytes, _SMALLEST) * _SLACK
            if fits and (best is None or size < self._idle[best].nbytes):
                best = index
        return None if best is None else self._idle.pop(best)

    def _allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        if self._pinned or size < _HUGE:
            memory = torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)
        else:
            memory = lazy_pages(size, huge=True)
        buffer: npt.NDArray[np.uint8] = memory.numpy()
        return buffer


def row_bytes(layout: Layout, count: int) -> int:
    """Bytes that `carve` needs for `count` rows of every key."""
    return max(1, sum(_padded(shape, dtype, count) for shape, dtype in layout.values()))


def carve(memory: Tensor, layout: Layout, count: int) -> dict[str, Tensor]:
    """Cuts uint8 memory into one tensor [count, *row_shape] per key."""
    sizes = [_padded(shape, dtype, count) for shape, dtype in layout.values()]
    return {
        key: memory[start : start + count * shape.numel() * dtype.itemsize].view(dtype).view(count, *shape)
        for (key, (shape, dtype)), start in zip(layout.items(), accumulate(sizes, initial=0), strict=False)
    }


def layout_of(rows: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {key: (value.shape[1:], value.dtype) for key, value in rows.items()}


def _padded(shape: torch.Size, dtype: torch.dtype, count: int) -> int:
    return -(-count * shape.numel() * dtype.itemsize // _ALIGN) * _ALIGN
