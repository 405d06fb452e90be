"""The delayed device path is as unkind as it claims: without that, what passes on it proves nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from delayed_copier import DelayedCopier, Lateness

from prefix_cache.errors import CacheTimeout
from prefix_cache.pool import BufferPool

Make = Callable[[Lateness], DelayedCopier]


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool(1 << 20)


@pytest.fixture
def make(pool: BufferPool) -> Iterator[Make]:
    made, before = [], set(threading.enumerate())

    def make(lateness: Lateness) -> DelayedCopier:
        made.append(DelayedCopier(pool, lateness))
        return made[-1]

    yield make
    for copier in made:
        copier.close()
    assert not set(threading.enumerate()) - before


def floats(memory: torch.Tensor) -> torch.Tensor:
    return memory.view(torch.float64)


def test_what_is_held_is_taken_at_once(make: Make) -> None:
    """The engine may spoil its buffer right after `hold`."""
    copier = make(Lateness.WAITED)
    buffer, held = torch.ones(4, dtype=torch.float64), floats(copier.staging(32))
    copier.hold([(buffer, held)])
    buffer.fill_(-1)
    assert held.tolist() == [1] * 4


def test_a_target_is_poison_until_it_lands(make: Make, pool: BufferPool) -> None:
    """A target read before its landing was waited for holds no number at all, not the last step's."""
    copier = make(Lateness.GATE)
    source, target = torch.ones(4, dtype=torch.float64), floats(pool.lease(32)).fill_(5.0)
    landing = copier.land([(source, target)])
    assert target.isnan().all()
    with pytest.raises(CacheTimeout, match="rows to land"):
        landing.wait(0.01)
    copier.gate.set()
    landing.wait(10)
    assert target.tolist() == [1] * 4


@pytest.mark.parametrize("lateness", [Lateness.GATE, Lateness.WAITED])
def test_a_source_is_read_late(make: Make, pool: BufferPool, lateness: Lateness) -> None:
    """Whoever overwrites a source in flight lands the wrong rows."""
    copier = make(lateness)
    source, target = torch.ones(4, dtype=torch.float64), floats(pool.lease(32))
    landing = copier.land([(source, target)])
    source.fill_(2.0)
    copier.gate.set()
    landing.wait(10)
    assert target.tolist() == [2.0] * 4


def test_memory_nobody_refers_to_is_poison_and_handed_out_first(make: Make) -> None:
    """Device memory is recycled the moment its last reference dies; nothing of its content survives."""
    copier = make(Lateness.WAITED)
    memory = copier.staging(32)
    floats(memory).fill_(3.0)
    address = memory.data_ptr()
    assert copier.device_bytes == 512
    del memory
    gc.collect()
    assert copier.device_bytes == 0
    again = copier.staging(64)
    assert again.data_ptr() == address
    assert floats(again).isnan().all()


def test_a_source_in_flight_is_not_recycled(make: Make, pool: BufferPool) -> None:
    """A landing keeps its source as a recorded stream does, until it has landed."""
    copier = make(Lateness.WAITED)
    memory = copier.staging(32)
    floats(memory).fill_(3.0)
    target = floats(pool.lease(32))
    landing = copier.land([(floats(memory), target)])
    del memory
    assert copier.device_bytes == 512
    floats(copier.staging(32)).fill_(4.0)
    landing.wait(10)
    assert target.tolist() == [3.0] * 4
    gc.collect()
    assert copier.device_bytes == 0


def test_a_target_given_back_in_flight_is_a_violation(make: Make, pool: BufferPool) -> None:
    """A copy engine knows an address and no owner: the memory may be somebody else's when the copy arrives."""
    copier = make(Lateness.WAITED)
    landing = copier.land([(torch.ones(4, dtype=torch.float64), floats(pool.lease(32)))])
    landing.wait(10)
    assert copier.violations == ["a landing's target was given back before it landed"]
    copier.violations.clear()


def test_landings_arrive_in_order_on_a_thread(make: Make, pool: BufferPool) -> None:
    """A later landing never arrives before an earlier one, as on one stream."""
    copier = make(Lateness.SOON)
    targets = [floats(pool.lease(8)) for _ in range(20)]
    landings = [copier.land([(torch.full((1,), float(n), dtype=torch.float64), t)]) for n, t in enumerate(targets)]
    landings[-1].wait(10)
    assert [target.item() for target in targets] == list(range(20))
