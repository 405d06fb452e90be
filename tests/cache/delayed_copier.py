"""A device path for machines without a device, as late and as unkind as the interface allows.

What is *held* lies in memory of its own, never in host memory. What *lands* lands late: until then its target is
poison, and the source is read only then. Memory that nobody can read any more is poison too and is handed out again
first, as a caching allocator does. So whoever reads before waiting, waits for the wrong landing, overwrites a source in
flight or gives a target back too early hands out wrong rows on a CPU as well.
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from enum import Enum

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from prefix_cache.copier import Landing, Move
from prefix_cache.errors import CacheTimeout
from prefix_cache.pool import BufferPool

_POISON = 0xFF  # NaN as a float, -1 as an integer
_GRAIN = 512


class Lateness(Enum):
    """When landings happen: later, in order, on a thread; when somebody waits; once the test opens the gate."""

    SOON = "soon"
    WAITED = "waited"
    GATE = "gate"


class DelayedCopier:
    """A `Copier` with a device made of ordinary memory.

    Parameters:
        pool: the cache's host memory.
        lateness: when landings happen.
        seed: of the delays.
        delay: longest pause before a landing, in seconds.
        deaf: waits for a landing ignore their timeout, as a driver that hangs does.

    What `breaks` is set to when a landing starts is raised by whoever waits for it.
    """

    on_host = False

    def __init__(
        self,
        pool: BufferPool,
        lateness: Lateness = Lateness.SOON,
        *,
        seed: int = 0,
        delay: float = 1e-3,
        deaf: bool = False,
    ) -> None:
        self._pool = pool
        self._lateness, self._random, self._delay = lateness, random.Random(seed), delay
        self._patience = 60.0 if deaf else 0.0
        self._device = _DeviceMemory()
        self.gate = threading.Event()
        self.violations: list[str] = []
        self.landed_rows = 0
        self.breaks: Exception | None = None
        self._queue: deque[_LateLanding] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._stream: threading.Thread | None = None
        if lateness is not Lateness.WAITED:
            self._stream = threading.Thread(target=self._run, name="delayed-copier", daemon=True)
            self._stream.start()

    def staging(self, nbytes: int) -> Tensor:
        return self._device.take(nbytes)

    def hold(self, moves: Sequence[Move]) -> None:
        for source, target in moves:
            target.copy_(source)

    def land(self, moves: Sequence[Move]) -> Landing:
        landing = _LateLanding(moves, self.violations, self._patience, self.breaks)
        self.landed_rows += len(moves[0][0]) if moves else 0
        if self._stream is None:
            landing.on_wait = True
            return landing
        with self._changed:
            self._queue.append(landing)
            self._changed.notify()
        return landing

    @property
    def device_bytes(self) -> int:
        """Device memory that somebody still refers to, the copier's own landings included."""
        return self._device.used

    @property
    def peak_device_bytes(self) -> int:
        return self._device.peak

    def close(self) -> None:
        """Lands what is queued and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self.gate.set()
        if self._stream is not None:
            self._stream.join(10)
            assert not self._stream.is_alive(), "the delayed copier's thread did not end"

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._queue or self._closed, 60):
                    continue
                if not self._queue:
                    return
                landing = self._queue.popleft()
            if self._lateness is Lateness.GATE:
                self.gate.wait(60)
            elif not self._closed:
                time.sleep(self._random.uniform(0, self._delay))
            landing.land()
            del landing


class _LateLanding:
    """Copies that have not happened yet. It keeps its sources, as `record_stream` does, and not its targets."""

    def __init__(self, moves: Sequence[Move], violations: list[str], patience: float, breaks: Exception | None) -> None:
        self._patience, self._breaks = patience, breaks
        self.on_wait = False
        self._sources = [source for source, _ in moves]
        self._targets = [_Target(target) for _, target in moves]
        self._violations = violations
        self._landed = threading.Event()
        self._lock = threading.Lock()
        # In the caller's mode, as a real copy would be issued.
        for source, target in moves:
            if source.shape != target.shape or source.dtype != target.dtype:
                violations.append(f"a move from {source.shape} {source.dtype} to {target.shape} {target.dtype}")
            poison(target)

    def wait(self, timeout: float) -> None:
        if self.on_wait:
            self.land()
        if not self._landed.wait(max(timeout, self._patience)):
            raise CacheTimeout(f"waited {timeout:g} s for rows to land from the delayed device")
        if self._breaks is not None:
            raise self._breaks

    def land(self) -> None:
        with self._lock, torch.inference_mode():
            if self._landed.is_set():
                return
            for source, late in zip(self._sources, self._targets, strict=True):
                target = late.revive()
                if target is None:
                    # A real copy would write into memory that may be somebody else's by now.
                    self._violations.append("a landing's target was given back before it landed")
                else:
                    target.copy_(source)
            self._sources = []
            self._landed.set()


class _Target:
    """A tensor that is not kept alive: a copy engine knows an address and no owner."""

    def __init__(self, tensor: Tensor) -> None:
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self._dtype = tensor.dtype
        self._where = (tensor.storage_offset(), tensor.shape, tensor.stride())

    def revive(self) -> Tensor | None:
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        return None if storage is None else torch.empty(0, dtype=self._dtype).set_(storage, *self._where)


class _DeviceMemory:
    """Memory that is poison whenever nobody refers to it, and is handed out again first."""

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        # Memory may come back from a garbage collection inside `take`.
        self._lock = threading.RLock()
        self.used = self.peak = 0

    def take(self, nbytes: int) -> Tensor:
        size = -(-nbytes // _GRAIN) * _GRAIN
        with self._lock:
            free = self._free.setdefault(size, [])
            block = free.pop() if free else np.full(size, _POISON, dtype=np.uint8)
            self.used += size
            self.peak = max(self.peak, self.used)
        view = block[:nbytes]
        weakref.finalize(view, self._give_back, block).atexit = False
        return torch.from_numpy(view)

    def _give_back(self, block: np.ndarray) -> None:
        block.fill(_POISON)
        with self._lock:
            self.used -= block.nbytes
            self._free[block.nbytes].append(block)


def poison(tensor: Tensor) -> None:
    """Overwrites a tensor with what no test expects."""
    tensor.fill_(float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)
