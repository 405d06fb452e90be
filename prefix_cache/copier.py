"""The device path: how rows get out of the engine's buffers, behind one small interface."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from prefix_cache.errors import CacheTimeout
from prefix_cache.pool import BufferPool

Move = tuple[Tensor, Tensor]
"""A source and the target it is copied to, of equal shape and dtype."""


class Landing(Protocol):
    """Copies on their way to the host."""

    def wait(self, timeout: float) -> None:
        """Returns when they have arrived.

        Raises:
            CacheTimeout: not within `timeout` seconds.
        """


class Copier(Protocol):
    """Takes rows out of buffers that the engine will use again.

    `hold` is ordered with the engine's own work: what the engine writes to the source afterwards does not reach the
    target. `land` is not: it goes on in the background, and its source must stay as it is until the landing has
    been waited for.
    """

    @property
    def on_host(self) -> bool:
        """Whether held rows are host memory already, so that nothing needs to land."""

    def staging(self, nbytes: int) -> Tensor:
        """Memory to hold rows in, uint8 [nbytes]."""

    def hold(self, moves: Sequence[Move]) -> None:
        """Copies in the engine's order; called on the engine's thread, before any `land` of the targets."""

    def land(self, moves: Sequence[Move]) -> Landing:
        """Starts copying what has been held; called on any thread."""


class Arrived:
    """Nothing to wait for."""

    def wait(self, timeout: float) -> None: ...


class InlineCopier:
    """For engines on the CPU: holding a row is copying it, once, into recycled host memory."""

    on_host = True

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool

    def staging(self, nbytes: int) -> Tensor:
        return self._pool.lease(nbytes)

    def hold(self, moves: Sequence[Move]) -> None:
        for source, target in moves:
            target.copy_(source)

    def land(self, moves: Sequence[Move]) -> Landing:
        for source, target in moves:
            target.copy_(source)
        return Arrived()


class CudaCopier:
    """For engines on CUDA: held on the device by the engine's own stream, landed in pinned memory by a side stream.

    Parameters:
        device: the engine's.
    """

    on_host = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)
        self._held = torch.cuda.Event()

    def staging(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def hold(self, moves: Sequence[Move]) -> None:
        for source, target in moves:
            target.copy_(source, non_blocking=True)
        # `land` may be called on a thread whose current stream is another.
        held = torch.cuda.Event()
        held.record(torch.cuda.current_stream(self._device))
        self._held = held

    def land(self, moves: Sequence[Move]) -> Landing:
        self._side.wait_event(self._held)
        with torch.cuda.stream(self._side):
            for source, target in moves:
                target.copy_(source, non_blocking=True)
                # The allocator must not give the memory to the engine's stream before this one has read it.
                source.record_stream(self._side)
            return CudaLanding.recorded(self._device)


class CudaLanding:
    """What a stream had been given to do when this was recorded."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    @classmethod
    def recorded(cls, device: torch.device) -> CudaLanding:
        """Everything up to here on the calling thread's current stream."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return cls(event)

    def wait(self, timeout: float) -> None:
        # An event has no wait with a timeout; a device that hangs is found out here.
        deadline = time.monotonic() + timeout
        pause = 20e-6
        while not self._event.query():
            if time.monotonic() > deadline:
                raise CacheTimeout(f"waited {timeout:g} s for rows to land from the device")
            time.sleep(pause)
            pause = min(pause * 2, 1e-3)
