"""The same suite on a real device: side stream, events and pinned landing instead of their delayed stand-in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_sim import Path, SimConfig
from hypothesis import settings
from random_walk import walk
from test_cache_machine import HARD_CASES, SETTINGS, SHAPES, CacheMachine

from prefix_cache import CacheConfig, NewRequest, PrefixCache
from prefix_cache.copier import CudaCopier

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA device; the delayed copier stands in for it"
    ),
]


class CudaCacheMachine(CacheMachine):
    path = Path.CUDA


TestCuda = CudaCacheMachine.TestCase
TestCuda.settings = settings(SETTINGS, max_examples=40)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", SHAPES, ids=[f"shape {index}" for index in range(len(SHAPES))])
def test_a_walk_on_the_device_hands_out_true_rows(shape: dict[str, object]) -> None:
    """An engine whose rows are made, kept and spoilt on the device, on a stream of its own."""
    config = replace(SimConfig(Path.CUDA, num_blocks=24), **shape)
    with torch.cuda.stream(torch.cuda.Stream()):
        seen = walk(config, seed=1, steps=1500)
    assert not [case for case in HARD_CASES if not seen[case]]


@pytest.mark.parametrize("decode", [True, False], ids=["parked", "by itself"])
def test_rows_are_taken_in_the_engines_order_however_late(decode: bool) -> None:
    """A save returns while the device is still busy; what the engine queues afterwards does not reach the rows."""
    device = torch.device("cuda")
    cache = PrefixCache(CacheConfig(8, 4, warm_bytes=0), copier=lambda _: CudaCopier(device), pinned=True)
    buffer = torch.empty(1, 1024, device=device)
    handles = []
    for slot in range(8):
        new = [NewRequest("a", 0, [0, 1])] if slot == 0 else []
        cache.begin_step({"a": 1}, new, resumed=set() if decode else {"a"})
        torch.cuda._sleep(20_000_000)
        buffer.fill_(float(slot))
        handles.append(cache.save_step(["a"], np.array([1]), np.array([slot]), {"hidden": buffer}))
        buffer.fill_(-1.0)
    for slot, handle in enumerate(handles):
        assert cache.materialize(handle, ["a"]).rows["hidden"]["a"].eq(float(slot)).all()
    cache.begin_step({"b": 1}, [NewRequest("b", 8, [0, 1, 2])], finished={"a"})
    buffer.fill_(9.0)
    handle = cache.save_step(["b"], np.array([1]), np.array([8]), {"hidden": buffer})
    assert cache.materialize(handle, ["b"]).rows["hidden"]["b"][:, 0].tolist() == [*range(8), 9]
    cache.shutdown()
    assert cache.stats().staged_bytes == 0
