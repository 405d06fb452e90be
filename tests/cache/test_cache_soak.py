"""Memory over a million steps: resident memory, idle buffers and page faults stay where they were."""

from __future__ import annotations

import gc
import resource
from collections import deque

import numpy as np
import psutil
import pytest
import torch

from prefix_cache import CacheConfig, NewRequest, PrefixCache, StepHandle

BLOCK = 16
MIB = 1 << 20


class DecodeLoop:
    """A lean engine: every lane decodes one request, which ends after `life` tokens and is replaced at once.

    A lane's first block is a prefix that all its requests share and hit; the others are recycled by each new request.
    Rows carry the number of their step, so that what is read can be told apart.
    """

    def __init__(self, lanes: int, life: int, width: int, keys: tuple[str, ...], **bounds: int) -> None:
        assert life % BLOCK == 0
        per_lane = life // BLOCK
        self.cache = PrefixCache(CacheConfig(lanes * per_lane, BLOCK, **bounds))
        self._lanes, self._life = lanes, life
        self._blocks = [list(range(lane * per_lane, (lane + 1) * per_lane)) for lane in range(lanes)]
        self._first = np.array([blocks[0] * BLOCK for blocks in self._blocks], dtype=np.int64)
        self._ones = np.ones(lanes, dtype=np.int64)
        self._rows = {key: torch.zeros(lanes + 2, width, dtype=torch.bfloat16) for key in keys}
        self._names = [f"{lane}-0" for lane in range(lanes)]
        self._ends = deque(range(lanes))
        self._positions = np.zeros(lanes, dtype=np.int64)
        self._open: deque[tuple[StepHandle, float, list[str]]] = deque()
        self.steps = self.hits = 0
        self._prefill()

    def run(self, steps: int) -> None:
        every = (self._life - BLOCK) // self._lanes
        for _ in range(steps):
            self.steps += 1
            fresh = None
            if self.steps % every == 0:
                fresh = self._replace()
            else:
                self.cache.begin_step(dict.fromkeys(self._names, 1))
            value = float(self.steps % 200)
            for rows in self._rows.values():
                rows.fill_(value)
            slots = self._first + self._positions
            handle = self.cache.save_step(list(self._names), self._ones, slots, self._rows)
            self._positions += 1
            self._consume(handle, value, fresh)

    def finish(self) -> None:
        while self._open:
            self._read()
        self.cache.shutdown()

    def _prefill(self) -> None:
        """Writes every slot once, so that the store's pages are there."""
        for lane, name in enumerate(self._names):
            self.cache.begin_step({name: self._life}, [NewRequest(name, 0, self._blocks[lane])])
            slots = self._first[lane] + np.arange(self._life)
            rows = {
                key: torch.full((self._life, value.shape[1]), 250.0).bfloat16() for key, value in self._rows.items()
            }
            self.cache.discard(self.cache.save_step([name], np.array([self._life]), slots, rows))
        self.cache.begin_step({}, finished=set(self._names))
        scheduled = dict.fromkeys(self._names, 1)
        self.cache.begin_step(scheduled, [NewRequest(name, 0, self._blocks[i]) for i, name in enumerate(self._names)])
        handle = self.cache.save_step(list(self._names), self._ones, self._first + BLOCK, self._rows)
        self.cache.discard(handle)
        stagger = (self._life - BLOCK) // self._lanes
        self._positions = BLOCK + 1 + stagger * np.arange(self._lanes - 1, -1, -1, dtype=np.int64)

    def _replace(self) -> str:
        lane = self._ends[0]
        self._ends.rotate(-1)
        gone, self._names[lane] = self._names[lane], f"{lane}-{self.steps}"
        self._positions[lane] = BLOCK
        new = [NewRequest(self._names[lane], BLOCK, self._blocks[lane])]
        self.cache.begin_step(dict.fromkeys(self._names, 1), new, finished={gone})
        self.hits += 1
        return self._names[lane]

    def _consume(self, handle: StepHandle, value: float, fresh: str | None) -> None:
        """Reads every hit and every sixteenth step, some steps late; discards the rest."""
        if fresh is None and self.steps % 16:
            self.cache.discard(handle)
            return
        self._open.append((handle, value, list(self._names) if fresh is None else [fresh]))
        if len(self._open) > 2:
            self._read()

    def _read(self) -> None:
        handle, value, ids = self._open.popleft()
        for by_id in self.cache.materialize(handle, ids).rows.values():
            for got in by_id.values():
                assert got[-1, 0] == value
                assert len(got) == (BLOCK + 1 if len(ids) == 1 else 1)
                assert got[:-1, 0].eq(250.0).all()


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_steps_leave_resident_memory_flat() -> None:
    """Four requests decode a million steps, with arrivals and ends between; nothing grows."""
    loop = DecodeLoop(4, 16 * BLOCK, 8, ("hidden",), warm_bytes=MIB, retain_bytes=4 * MIB)
    loop.run(100_000)
    before, counted = resident(), loop.cache.stats()
    loop.run(900_000)
    after, stats = resident(), loop.cache.stats()
    loop.finish()
    print(
        f"\nVmRSS {before / MIB:.1f} -> {after / MIB:.1f} MiB, {loop.hits} hits, idle {loop.cache._pool.idle_bytes} B"
    )
    assert after - before < 2 * MIB
    assert stats.resident_bytes == counted.resident_bytes
    assert loop.cache._pool.idle_bytes <= 4 * MIB
    assert loop.hits > 15_000
    assert loop.cache.stats().hits_total == loop.hits
    assert (loop.cache.stats().staged_bytes, loop.cache.stats().open_handles) == (0, 0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wide_decode_touches_no_fresh_pages() -> None:
    """32 requests with three keys of 2048 bf16 rows: once warm, steps fault no pages in."""
    loop = DecodeLoop(32, 16 * BLOCK, 2048, ("hidden", "embedding", "audio"))
    loop.run(600)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    steps = 3000
    loop.run(steps)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    loop.finish()
    print(f"\n{faults} minor faults in {steps} steps, {loop.hits} hits")
    assert faults < steps * 0.2
