"""What a real engine also does: empty steps, arguments it uses again, failures in the middle of a step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from delayed_copier import DelayedCopier, Lateness

from prefix_cache import CacheConfig, CacheFailed, NewRequest, PrefixCache, StepError, StepHandle
from prefix_cache.copier import Copier, InlineCopier, Move
from prefix_cache.pool import BufferPool

BLOCK = 4


Make = Callable[..., PrefixCache]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes caches, with the device path that is asked for, and ends their threads."""
    made: list[PrefixCache] = []
    copiers: list[DelayedCopier] = []

    def make(copier: Callable[[BufferPool], Copier] = InlineCopier, **bounds: object) -> PrefixCache:
        def note(pool: BufferPool) -> Copier:
            path = copier(pool)
            if isinstance(path, DelayedCopier):
                copiers.append(path)
            return path

        made.append(PrefixCache(CacheConfig(8, BLOCK, warm_bytes=0, wait_timeout=10.0, **bounds), copier=note))
        return made[-1]

    yield make
    for path in copiers:
        path.close()
    for cache in made:
        cache.shutdown()


@pytest.fixture(params=[True, False], ids=["threaded", "inline"])
def cache(request: pytest.FixtureRequest, make: Make) -> PrefixCache:
    return make(threaded=request.param)


def save(cache: PrefixCache, ids: list[str], counts: list[int], slots: list[int], **rows: float) -> StepHandle:
    given = {key: torch.full((len(slots), 2), value) for key, value in rows.items()}
    return cache.save_step(ids, np.array(counts, dtype=np.int64), np.array(slots, dtype=np.int64), given)


def test_a_step_of_no_tokens_may_be_saved(cache: PrefixCache) -> None:
    """An engine whose step ran for nobody saves empty tensors; that is no failure, not even as the first step."""
    cache.begin_step({})
    handle = save(cache, [], [], [], hidden=1.0)
    assert cache.materialize(handle, []).rows == {"hidden": {}}
    cache.begin_step({"a": BLOCK}, [NewRequest("a", 0, [0])])
    handle = save(cache, ["a"], [BLOCK], [0, 1, 2, 3], hidden=2.0)
    assert cache.materialize(handle, ["a"]).rows["hidden"]["a"].eq(2.0).all()


def test_a_hit_on_rows_without_any_key_reads_zeros(make: Make) -> None:
    """Where no key is required, the first key of all may come with a step that hits tokens which emitted none."""
    cache = make(required=frozenset())
    cache.begin_step({"a": BLOCK}, [NewRequest("a", 0, [0])])
    cache.discard(save(cache, ["a"], [BLOCK], [0, 1, 2, 3]))
    cache.begin_step({"b": 1}, [NewRequest("b", BLOCK, [0, 1])])
    handle = save(cache, ["b"], [1], [4], aux=5.0)
    assert cache.materialize(handle, ["b"]).rows["aux"]["b"][:, 0].tolist() == [0, 0, 0, 0, 5]


def test_a_hit_with_a_key_seen_for_the_first_time_reads_zeros(cache: PrefixCache) -> None:
    """An optional key first emitted after a prefix was computed has a prefix of zeros, of the step's own kind."""
    cache.begin_step({"a": BLOCK}, [NewRequest("a", 0, [0])])
    cache.discard(save(cache, ["a"], [BLOCK], [0, 1, 2, 3], hidden=1.0))
    cache.begin_step({"b": 1}, [NewRequest("b", BLOCK, [0, 1])])
    outputs = cache.materialize(save(cache, ["b"], [1], [4], hidden=2.0, aux=5.0), ["b"])
    assert outputs.rows["aux"]["b"][:, 0].tolist() == [0, 0, 0, 0, 5]
    assert outputs.rows["hidden"]["b"][:, 0].tolist() == [1, 1, 1, 1, 2]


@pytest.mark.parametrize("threaded", [True, False])
def test_an_engine_may_use_its_arguments_again(make: Make, threaded: bool) -> None:
    """Ids, counts and slots are as free as the rows once `save_step` returns: runners reuse the lists they live in."""
    cache = make(threaded=threaded)
    ids, counts, slots = ["a", "b"], np.array([1, 3]), np.array([0, 4, 5, 6])
    cache.begin_step({"a": 1, "b": 3}, [NewRequest("a", 0, [0]), NewRequest("b", 0, [1])])
    handle = cache.save_step(ids, counts, slots, {"hidden": torch.arange(4.0)[:, None].repeat(1, 2)})
    ids[:], counts[:], slots[:] = ["x", "y"], [2, 2], 31
    rows = cache.materialize(handle, ["a", "b"]).rows["hidden"]
    assert rows["a"][:, 0].tolist() == [0]
    assert rows["b"][:, 0].tolist() == [1, 2, 3]


def test_counts_that_differ_from_the_schedule_are_refused(cache: PrefixCache) -> None:
    """The room behind a hit is that of the schedule: with other counts of the same sum the prefix would be lost."""
    cache.begin_step({"a": BLOCK}, [NewRequest("a", 0, [0])])
    cache.discard(save(cache, ["a"], [BLOCK], [0, 1, 2, 3], hidden=1.0))
    cache.begin_step({"a": 3, "b": 1}, [NewRequest("b", BLOCK, [0, 1])])
    with pytest.raises(StepError):
        save(cache, ["a", "b"], [1, 3], [8, 4, 5, 6], hidden=9.0)


def test_device_memory_is_charged_for_as_long_as_it_is_held(make: Make) -> None:
    """What is written no longer counts as staged, so its device memory must be free, though its handles are open."""
    copiers: list[DelayedCopier] = []

    def delayed(pool: BufferPool) -> DelayedCopier:
        copiers.append(DelayedCopier(pool, Lateness.SOON))
        return copiers[0]

    cache = make(delayed)
    cache.begin_step({"a": 1}, [NewRequest("a", 0, [0])])
    handles = [save(cache, ["a"], [1], [0], hidden=0.0)]
    for slot in range(1, 11):
        cache.begin_step({"a": 1})
        handles.append(save(cache, ["a"], [1], [slot], hidden=float(slot)))
    cache.begin_step({}, finished={"a"})
    cache._log.drain()
    gc.collect()
    assert cache.stats().staged_bytes == 0
    assert copiers[0].device_bytes == 0
    read = [cache.materialize(handle, ["a"]).rows["hidden"]["a"][0, 0].item() for handle in handles]
    assert read == list(range(11))


def decode(cache: PrefixCache, slots: list[int], **rows: float) -> list[StepHandle]:
    """Steps in which one live request, "a", decodes one token each."""
    handles = []
    for slot in slots:
        cache.begin_step({"a": 1})
        handles.append(save(cache, ["a"], [1], [slot], **{key: value + slot for key, value in rows.items()}))
    return handles


def start(cache: PrefixCache) -> None:
    cache.begin_step({"a": 1}, [NewRequest("a", 0, [0, 1])])
    cache.discard(save(cache, ["a"], [1], [0], hidden=10.0))


def hit(cache: PrefixCache, finished: set[str], *, name: str = "b", **rows: float) -> dict[str, list[float]]:
    """What a request reads that hits block 0 and computes one token."""
    cache.begin_step({name: 1}, [NewRequest(name, BLOCK, [0, 5])], finished=finished)
    outputs = cache.materialize(save(cache, [name], [1], [5 * BLOCK], **rows), [name])
    return {key: by_id[name][:, 0].tolist() for key, by_id in outputs.rows.items()}


def test_an_aborted_request_leaves_its_rows_behind(cache: PrefixCache) -> None:
    """The hashes of an aborted request stay published, so the rows it had parked must reach the store."""
    start(cache)
    for handle in decode(cache, [1, 2, 3], hidden=10.0):
        cache.discard(handle)
    assert hit(cache, {"a"}, hidden=20.0) == {"hidden": [10, 11, 12, 13, 20]}


def test_rows_parked_before_an_end_are_hit_later(cache: PrefixCache) -> None:
    """The same when nothing else happens in the step that tells of the end."""
    start(cache)
    for handle in decode(cache, [1, 2, 3], hidden=10.0):
        cache.discard(handle)
    cache.begin_step({}, finished={"a"})
    assert hit(cache, set(), hidden=20.0) == {"hidden": [10, 11, 12, 13, 20]}


def test_a_request_that_ended_may_come_back_under_its_name(cache: PrefixCache) -> None:
    """Preempted, told as finished and announced as new in one step: what it hits stands in front."""
    start(cache)
    for handle in decode(cache, [1, 2, 3], hidden=10.0):
        cache.discard(handle)
    assert hit(cache, {"a"}, name="a", hidden=20.0) == {"hidden": [10, 11, 12, 13, 20]}


def test_an_open_handle_keeps_its_parked_rows(cache: PrefixCache) -> None:
    """Handles consumed long after their rows were written and others parked still read their own."""
    start(cache)
    handles = decode(cache, list(range(1, 2 * BLOCK)), hidden=10.0)
    assert cache.stats().flushes_total > 0
    read = [cache.materialize(handle, ["a"]).rows["hidden"]["a"][0, 0].item() for handle in handles]
    assert read == [10.0 + slot for slot in range(1, 2 * BLOCK)]


def test_a_key_that_a_decode_step_omits_is_absent_there(cache: PrefixCache) -> None:
    """Parked steps with other keys are not one write: the omitted key reads as zeros, exactly where it was omitted."""
    start(cache)
    both = decode(cache, [1], hidden=10.0, aux=30.0) + decode(cache, [2], hidden=10.0)
    both += decode(cache, [3], hidden=10.0, aux=30.0)
    keys = [set(cache.materialize(handle, ["a"]).rows) for handle in both]
    assert keys == [{"hidden", "aux"}, {"hidden"}, {"hidden", "aux"}]
    assert hit(cache, {"a"}, hidden=20.0, aux=40.0) == {"hidden": [10, 11, 12, 13, 20], "aux": [0, 31, 0, 33, 40]}


def test_owned_rows_are_copied_no_further(cache: PrefixCache) -> None:
    """A consumer on the host is handed the very memory that the engine gave away."""
    given = torch.arange(8.0).view(BLOCK, 2)
    cache.begin_step({"a": BLOCK}, [NewRequest("a", 0, [0])])
    handle = cache.save_step(["a"], np.array([BLOCK]), np.arange(BLOCK), {"hidden": given}, owned=True)
    assert cache.materialize(handle, ["a"]).rows["hidden"]["a"].data_ptr() == given.data_ptr()
    assert cache.stats().copied_out_bytes_total == 0


def test_parked_rows_and_rows_in_flight_share_one_budget(make: Make) -> None:
    """A segment is charged from its first row to its last write, and a step beside it is charged on top."""
    copiers: list[DelayedCopier] = []

    def gated(pool: BufferPool) -> DelayedCopier:
        copiers.append(DelayedCopier(pool, Lateness.GATE))
        return copiers[0]

    cache, row = make(gated), torch.zeros(1, 256)
    for slot, new in enumerate([[NewRequest("a", 0, [0, 1])], []]):
        cache.begin_step({"a": 1}, new)
        cache.discard(cache.save_step(["a"], np.array([1]), np.array([slot]), {"hidden": row}))
    assert cache.stats().buffered_steps_total == 1
    assert cache.stats().staged_bytes == row.nbytes + BLOCK * row.nbytes
    copiers[0].gate.set()
    cache.shutdown()
    assert cache.stats().staged_bytes == 0


def test_parked_rows_land_once(make: Make) -> None:
    """A parked row that a consumer has asked for is not fetched from the device again to be written."""
    copiers: list[DelayedCopier] = []

    def soon(pool: BufferPool) -> DelayedCopier:
        copiers.append(DelayedCopier(pool))
        return copiers[0]

    cache = make(soon)
    start(cache)
    for handle in decode(cache, [1, 2], hidden=10.0):
        cache.materialize(handle, ["a"])
    cache.discard(decode(cache, [3], hidden=10.0)[0])
    cache.shutdown()
    assert cache.stats().rows_written_total == BLOCK
    assert copiers[0].landed_rows == BLOCK


class TroubledCopier(InlineCopier):
    """A device path in which something happens at the second call of one kind."""

    def __init__(self, pool: BufferPool, where: str, trouble: Callable[[], None]) -> None:
        super().__init__(pool)
        self._left, self._where, self._trouble = 2, where, trouble

    def staging(self, nbytes: int) -> torch.Tensor:
        self._meet("staging")
        return super().staging(nbytes)

    def hold(self, moves: Sequence[Move]) -> None:
        self._meet("hold")
        super().hold(moves)

    def _meet(self, where: str) -> None:
        self._left -= where == self._where
        if not self._left:
            self._trouble()


def device_is_full() -> None:
    raise MemoryError("the device is full")


def two_steps(cache: PrefixCache, *, decode: bool) -> None:
    """The second is parked when it only decodes, and written by itself when a request has resumed."""
    cache.begin_step({"a": 1}, [NewRequest("a", 0, [0])])
    cache.discard(save(cache, ["a"], [1], [0], hidden=1.0))
    cache.begin_step({"a": 1}, resumed=set() if decode else {"a"})
    cache.discard(save(cache, ["a"], [1], [1], hidden=1.0))


@pytest.mark.parametrize(
    ("where", "decode"),
    [
        ("staging", True),
        ("staging", False),
        ("hold", True),
        ("hold", False),
    ],
)
def test_a_copy_that_fails_gives_its_budget_back(make: Make, where: str, decode: bool) -> None:
    """An error of the device path reaches the engine, and what was reserved for the step is free again."""
    cache = make(lambda pool: TroubledCopier(pool, where, device_is_full), threaded=False)
    with pytest.raises(MemoryError):
        two_steps(cache, decode=decode)
    assert cache.stats().staged_bytes == 0


@pytest.mark.parametrize("decode", [True, False], ids=["parked", "by itself"])
def test_after_a_failure_nothing_stays_reserved(make: Make, decode: bool) -> None:
    """The worker's failure ends the cache, not the accounting: no ticket is left, whatever was on its way."""
    cache = make(lambda pool: TroubledCopier(pool, "hold", lambda: cache._log.fail(OSError("the store is gone"))))
    with pytest.raises(CacheFailed, match="the store is gone"):
        two_steps(cache, decode=decode)
    cache.shutdown()
    assert cache.stats().staged_bytes == 0
