"""The manager under the random walks of tests/cache: every row it hands out is the naive oracle's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from engine_sim import EngineSim, Path, SimConfig
from random_walk import RandomWalk
from vllm_omni_imitation import (
    HIDDEN_KEY,
    Batch,
    CachedRequestData,
    NewRequestData,
    PrefixCacheConfig,
    Runner,
    SchedulerOutput,
    pretend_installed,
)

from prefix_cache import CacheStats, NewRequest, StepHandle, StepOutputs
from prefix_cache.integrations.vllm_omni.engine import building_for
from prefix_cache.integrations.vllm_omni.manager import BundledManager


class ThroughTheManager:
    """The calls of a PrefixCache, each translated into what vLLM-Omni would say to its manager.

    Each step also emits a list that is no row, in a buffer that the engine overwrites.
    """

    def __init__(self, sim: EngineSim) -> None:
        config = sim.config
        self._sim, self._runner = sim, Runner(config.block_size, hidden=config.hidden_required)
        with building_for(self._runner):
            self._manager = BundledManager(PrefixCacheConfig(config.num_blocks, config.block_size), None)
        self._list = [torch.zeros(1, 1, 4)]
        self._extras: dict[int, tuple[Any, int]] = {}
        self.read_lists = 0

    def begin_step(
        self,
        scheduled: Mapping[str, int],
        new: Sequence[NewRequest],
        finished: Collection[str],
        resumed: Collection[str],
    ) -> None:
        announced = [NewRequestData(each.id, each.computed, (list(each.blocks),)) for each in new]
        cached = CachedRequestData(set(resumed))
        self._manager.new_step_starts(SchedulerOutput(dict(scheduled), announced, set(finished), cached))

    def save_step(
        self,
        ids: Sequence[str],
        counts: np.ndarray[Any, Any],
        slots: np.ndarray[Any, Any],
        rows: Mapping[str, torch.Tensor],
        extra: Any,
        *,
        owned: bool,  # noqa: ARG002 - vLLM-Omni never gives its buffers away
    ) -> StepHandle:
        live = {request.id: request for request in self._sim.scheduler.requests}
        # A new object at every step, as after a runner has replaced its own.
        self._runner.input_batch = Batch([(each, live[each].computed, live[each].blocks) for each in ids])
        outputs: dict[str, Any] = {key: value for key, value in rows.items() if key != "hidden"}
        total, padded = len(slots), len(next(iter(rows.values()))) if rows else len(slots)
        self._list[0].fill_(total)
        step = self._manager.save_outputs(
            rows.get("hidden"),
            {**outputs, "a list": self._list},
            num_tokens_unpadded=int(counts.sum()),
            num_tokens_padded=padded,
        )
        self._list[0].fill_(-1)
        self._extras[step] = extra, total
        return StepHandle(step)

    def materialize(self, handle: StepHandle, ids: Sequence[str]) -> StepOutputs:
        outputs = self._manager.materialize(handle.step, list(ids))
        extra, total = self._extras.pop(handle.step)
        rows = dict(outputs.mm_outputs)
        handed_out = rows.pop("a list")
        for request in ids:
            [value] = handed_out[request]
            assert value.unique().tolist() == [total]
            self.read_lists += 1
        if outputs.hidden_states is not None:
            rows["hidden"] = outputs.hidden_states
        assert HIDDEN_KEY not in rows
        return StepOutputs(rows, extra)

    def discard(self, handle: StepHandle, ids: Collection[str] | None = None) -> None:
        if ids is None:  # of single requests vLLM-Omni says nothing: it only does not read them
            self._manager.discard_step(handle.step)

    def stats(self) -> CacheStats:
        return self._manager._cache.stats()

    def shutdown(self) -> None:
        self._manager.shutdown()


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch)
    for bound, value in {"STAGING_ROWS": 4, "DEVICE_BYTES": 1 << 20, "RETAIN_BYTES": 1 << 20, "WARM_BYTES": 0}.items():
        monkeypatch.setenv(f"PREFIX_CACHE_{bound}", str(value))


def walk(config: SimConfig, seed: int, steps: int) -> Counter[str]:
    sim = EngineSim(config)
    sim.cache.shutdown()
    through = ThroughTheManager(sim)
    sim.cache = through  # type: ignore[assignment]  # the same calls
    try:
        RandomWalk(sim, seed).run(steps)
        sim.finish()
    finally:
        sim.close()
    sim.seen["lists"] = through.read_lists
    return sim.seen


@pytest.mark.parametrize("inline", ["0", "1"])
@pytest.mark.parametrize("lifo", [False, True])
def test_every_row_is_the_oracles(monkeypatch: pytest.MonkeyPatch, inline: str, lifo: bool) -> None:
    """Whatever is hit, recycled, preempted, resumed, padded or read late, subset or on another thread."""
    monkeypatch.setenv("PREFIX_CACHE_INLINE", inline)
    seen: Counter[str] = Counter()
    for seed in range(3):
        seen += walk(SimConfig(Path.INLINE, lifo=lifo), seed, 200)
    hard = {"hits", "same-step hits", "continuations", "resumes", "steps without a save", "key-set changes"}
    hard |= {"hits of steps without a save", "optional rows read as zeros", "buffered steps", "padded steps"}
    hard |= {"subsets", "discards", "reads on another thread", "lists"}
    assert {each for each in hard if not seen[each]} == set()


def test_a_model_that_needs_no_hidden_states_stores_none() -> None:
    """Its other rows are kept all the same, and nothing is handed out as hidden."""
    seen = walk_without_hidden(seed=3, steps=120)
    assert seen["hits"] > 0


def walk_without_hidden(seed: int, steps: int) -> Counter[str]:
    """As `walk`, of an engine whose hidden states the manager must not take; they are left out of the comparison."""
    sim = EngineSim(SimConfig(Path.INLINE, hidden_required=False))
    sim.cache.shutdown()
    through = ThroughTheManager(sim)
    sim.cache = through  # type: ignore[assignment]  # the same calls
    read = sim.read

    def without_hidden(item: Any, ids: Sequence[str]) -> None:
        item.expected.pop("hidden", None)
        read(item, ids)

    sim.read = without_hidden  # type: ignore[method-assign]
    try:
        RandomWalk(sim, seed).run(steps)
        sim.finish()
    finally:
        sim.close()
    assert "hidden" not in through.stats().resident_bytes
    assert HIDDEN_KEY not in through.stats().resident_bytes
    return sim.seen
