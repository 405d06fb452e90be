from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from prefix_cache import slots_of
from prefix_cache.bench.cases import KEYS, Case, Mode, Sizes, decode, hit, prefill, slots
from prefix_cache.bench.driver import Driver, checksum
from prefix_cache.bench.engine import Engine, Schedule
from prefix_cache.bench.ours import Ours

TINY = Sizes(width=8, block_size=4, num_blocks=64, step_tokens=64, decode_blocks=4, hit_own=4, resident_blocks=64)


def driver(mode: Mode = "inline") -> Driver:
    return Driver(Ours, TINY, mode, 0.0)


@pytest.mark.parametrize("mode", ["inline", "threaded"])
def test_a_batch_times_every_step(mode: Mode) -> None:
    """A batch has one time per step and call, a copy beside each where the case has one, and the hits' gathers."""
    measured = driver(mode)
    cases = (decode(3, "discard", 8), decode(3, "materialize", 8), prefill(16, 2), hit(16, 4, prefetched=True, steps=3))
    for case in cases:
        measured.start(case)
        sample = measured.batch()
        assert len(sample.begin) == len(sample.save) == len(sample.consume) == len(sample.thread) == case.steps
        assert all(wall > 0 for wall in sample.wall)
        assert len(sample.copy) == (case.steps if case.kind in ("prefill", "hit") else 0)
        assert len(sample.gather) == (case.steps if case.kind == "hit" else 0)
        assert all(seconds > 0 for seconds in sample.gather)
        assert sample.process > 0
    measured.shutdown()


def test_equal_steps_give_equal_checksums() -> None:
    """Two caches that are given the same cases return the same rows, inline and threaded; other rows differ."""
    one, other = driver(), driver("threaded")
    seen: list[tuple[int, ...]] = []
    for case in (decode(3, "discard", 4), prefill(16, 1), hit(16, 4, prefetched=False, steps=1), slots(3, 1, 2)):
        one.start(case)
        other.start(case)
        sums = one.verify()
        assert sums == other.verify()
        seen.append(tuple(sums))
    assert len(set(seen)) == len(seen)
    one.shutdown()
    other.shutdown()


def test_checksum_sees_one_value() -> None:
    """One changed value, a lost row and a swapped request each change the checksum."""
    rows = {"hidden": {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(1, 3)}}
    base = checksum(rows)
    changed = {
        "hidden": {"a": rows["hidden"]["a"].clone().index_fill_(1, torch.tensor([2]), 9.0), "b": rows["hidden"]["b"]}
    }
    lost = {"hidden": {"a": rows["hidden"]["a"][:1], "b": rows["hidden"]["b"]}}
    swapped = {"hidden": {"b": rows["hidden"]["a"], "a": rows["hidden"]["b"]}}
    assert len({base, checksum(changed), checksum(lost), checksum(swapped)}) == 4


def test_a_case_ends_the_case_before() -> None:
    """The first step of a case finishes the requests of the case before, and later steps only decode."""
    schedule = Schedule(TINY)
    (only,) = islice(schedule.steps(prefill(16, 1)), 1)
    first, second = islice(schedule.steps(decode(2, "discard", 4)), 2)
    assert first.finished == only.ids
    assert [arrival.id for arrival in first.arrivals] == first.ids == second.ids
    assert (second.arrivals, second.finished, second.computed) == ([], [], (1, 1))


def test_decode_stays_in_its_blocks() -> None:
    """Decoding requests never share a slot, and start over when their blocks are full."""
    steps = islice(Schedule(TINY).steps(decode(4, "discard", 4)), 2 * TINY.decode_blocks * TINY.block_size)
    engine = Engine(TINY, requests=4)
    seen: dict[int, str] = {}
    for step in steps:
        engine.place(step)
        counts = np.ones(4, dtype=np.int64)
        for request, slot in zip(step.ids, slots_of(engine.table, engine.computed, counts, 4).tolist(), strict=True):
            assert seen.setdefault(slot, request) == request
    assert len(seen) == 4 * TINY.decode_blocks * TINY.block_size


def test_fresh_blocks_are_apart() -> None:
    """The blocks of a fresh cache's first steps are all different."""
    steps = Schedule(TINY).arrivals_apart(Case("first", "first", 2, 8), 6)
    blocks = [block for step in steps for arrival in step.arrivals for block in arrival.blocks]
    assert len(blocks) == len(set(blocks)) == 6 * 2 * 2


def test_forwards_reuse_the_buffers() -> None:
    """Every forward writes new rows into the same memory."""
    engine, schedule = Engine(TINY, requests=4), Schedule(TINY)
    one, two = islice(schedule.steps(prefill(16, 1)), 2)
    rows = engine.place(one)
    engine.forward(rows)
    before = {key: value.clone() for key, value in rows.items()}
    again = engine.place(two)
    engine.forward(again)
    assert set(rows) == set(KEYS)
    for key in KEYS:
        assert again[key].data_ptr() == rows[key].data_ptr()
        assert not torch.equal(again[key], before[key])


def test_first_saves_count() -> None:
    """A fresh cache gives one first save, and later ones on fresh blocks, on used blocks, and decoding."""
    saves = driver("threaded").first_saves(Case("first-decode-4", "first", 4, 1, steps=1))
    for times in (saves.wall, saves.thread):
        assert [len(times.arrival), len(times.decode)] == [1, 1]
        assert min(len(times.arrival_fresh), len(times.arrival_steady), len(times.decode_steady)) >= 6
    assert driver().first_saves(Case("first-prefill-8", "first", 1, 8, steps=1)).wall.decode == []


def test_resident_counts_the_rows_written() -> None:
    """Each share's bytes are those of whole blocks up to that share."""
    resident = driver().resident()
    assert resident.written == {"1%": 0, "10%": 6 * 4 * 8 * 2 * 3, "100%": 64 * 4 * 8 * 2 * 3}
    assert resident.written.keys() == resident.grown.keys()


def test_no_case() -> None:
    """A batch before any case is an error."""
    with pytest.raises(RuntimeError, match="no case was started"):
        driver().batch()
