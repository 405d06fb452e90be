"""The cache's protocol, one behaviour at a time."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from prefix_cache import (
    CacheConfig,
    CacheFailed,
    CacheTimeout,
    ConfigError,
    EngineLayout,
    NewRequest,
    PrefixCache,
    StepError,
    StepHandle,
    errors,
    slots_of,
)
from prefix_cache.budget import Budget
from prefix_cache.log import OrderedLog
from prefix_cache.pool import BufferPool
from prefix_cache.store import RowStore

BLOCK = 4


def make(*, threaded: bool = True, **settings: int) -> PrefixCache:
    return PrefixCache(CacheConfig(num_blocks=8, block_size=BLOCK, threaded=threaded, wait_timeout=5.0, **settings))


def rows(count: int, value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"hidden": torch.full((count, 2), value)}


def save(cache: PrefixCache, ids: list[str], counts: list[int], slots: list[int], value: float = 1.0) -> StepHandle:
    return cache.save_step(ids, np.array(counts), np.array(slots, dtype=np.int64), rows(len(slots), value))


@pytest.fixture(params=[True, False], ids=["threaded", "inline"])
def cache(request: pytest.FixtureRequest):
    cache = make(threaded=request.param)
    yield cache
    cache.shutdown()


def fill(cache: PrefixCache, name: str = "a", value: float = 1.0) -> None:
    """A request computes block 0 and ends."""
    cache.begin_step({name: BLOCK}, [NewRequest(name, 0, [0])])
    cache.discard(save(cache, [name], [BLOCK], [0, 1, 2, 3], value))


def test_a_hit_stands_in_front_of_the_first_step_only(cache: PrefixCache) -> None:
    """Rows of the hit prefix come with the request's first step and not again."""
    fill(cache, value=7.0)
    cache.begin_step({"b": 1}, [NewRequest("b", BLOCK, [0, 1])], finished={"a"})
    first = cache.materialize(save(cache, ["b"], [1], [4], 8.0), ["b"])
    assert first.rows["hidden"]["b"][:, 0].tolist() == [7.0] * BLOCK + [8.0]
    cache.begin_step({"b": 1})
    second = cache.materialize(save(cache, ["b"], [1], [5], 9.0), ["b"])
    assert second.rows["hidden"]["b"][:, 0].tolist() == [9.0]


def test_rows_are_copied_out_before_save_returns(cache: PrefixCache) -> None:
    """The engine may overwrite its buffers at once."""
    buffer = rows(BLOCK, 3.0)
    cache.begin_step({"a": BLOCK}, [NewRequest("a", 0, [0])])
    handle = cache.save_step(["a"], np.array([BLOCK]), np.arange(BLOCK), buffer)
    buffer["hidden"].fill_(-1.0)
    assert cache.materialize(handle, ["a"]).rows["hidden"]["a"].eq(3.0).all()


def test_a_handle_is_consumed_once(cache: PrefixCache) -> None:
    cache.begin_step({"a": 1}, [NewRequest("a", 0, [0])])
    handle = save(cache, ["a"], [1], [0])
    cache.discard(handle)
    with pytest.raises(StepError, match="step 1 was consumed before"):
        cache.materialize(handle, ["a"])


def test_an_unknown_request_does_not_consume_the_handle(cache: PrefixCache) -> None:
    cache.begin_step({"a": 1}, [NewRequest("a", 0, [0])])
    handle = save(cache, ["a"], [1], [0])
    with pytest.raises(StepError, match="not in step 1: z"):
        cache.materialize(handle, ["z"])
    cache.discard(handle)


def test_a_hit_over_rows_never_written_is_an_error_for_good(cache: PrefixCache) -> None:
    """Absent hidden rows are never served as zeros, and the failure stays."""
    fill(cache)
    cache.begin_step({"b": 1}, [NewRequest("b", BLOCK, [5, 6])], finished={"a"})
    with pytest.raises(CacheFailed, match="absent"):
        cache.materialize(save(cache, ["b"], [1], [24]), ["b"])
    with pytest.raises(CacheFailed, match="absent"):
        cache.begin_step({"b": 1})


def test_a_recycled_block_forgets_the_keys_its_new_tenant_does_not_emit(cache: PrefixCache) -> None:
    """An optional key reads as zeros where the slot's last writer did not emit it, not as an old tenant's row."""
    cache.begin_step({"a": BLOCK}, [NewRequest("a", 0, [0])])
    both = {"hidden": torch.full((BLOCK, 2), 1.0), "aux": torch.full((BLOCK, 2), 5.0)}
    cache.discard(cache.save_step(["a"], np.array([BLOCK]), np.arange(BLOCK), both))
    fill(cache, "b", 2.0)
    cache.begin_step({"c": 1}, [NewRequest("c", BLOCK, [0, 1])], finished={"a", "b"})
    step = {"hidden": torch.full((1, 2), 3.0), "aux": torch.full((1, 2), 6.0)}
    out = cache.materialize(cache.save_step(["c"], np.array([1]), np.array([4]), step), ["c"])
    assert out.rows["hidden"]["c"][:, 0].tolist() == [2.0] * BLOCK + [3.0]
    assert out.rows["aux"]["c"][:, 0].tolist() == [0.0] * BLOCK + [6.0]


def test_a_live_request_that_comes_again_is_a_continuation(cache: PrefixCache) -> None:
    """A request announced as new while it lives shows computed tokens and is no hit."""
    fill(cache)
    cache.begin_step({"a": 1}, [NewRequest("a", BLOCK, [0, 1])])
    out = cache.materialize(save(cache, ["a"], [1], [4], 2.0), ["a"])
    assert out.rows["hidden"]["a"].shape == (1, 2)
    assert cache.stats().continuations_total == 1


def test_a_step_without_a_save_leaks_no_hit(cache: PrefixCache) -> None:
    """A hit planned in a step that saved nothing does not appear in the next one."""
    fill(cache)
    cache.begin_step({}, [NewRequest("b", BLOCK, [0, 1])], finished={"a"})
    cache.begin_step({"b": 1})
    out = cache.materialize(save(cache, ["b"], [1], [4], 2.0), ["b"])
    assert out.rows["hidden"]["b"].shape == (1, 2)


def decode(cache: PrefixCache, ids: list[str], offset: int) -> None:
    cache.begin_step(dict.fromkeys(ids, 1))
    slots = [BLOCK * index + offset for index in range(len(ids))]
    cache.discard(save(cache, ids, [1] * len(ids), slots))


def start(cache: PrefixCache, ids: list[str]) -> None:
    cache.begin_step(dict.fromkeys(ids, 1), [NewRequest(name, 0, [block]) for block, name in enumerate(ids)])
    cache.discard(save(cache, ids, [1] * len(ids), [BLOCK * block for block in range(len(ids))]))


def test_pure_decode_steps_become_one_write(cache: PrefixCache) -> None:
    """Up to block_size pure decode steps are parked and written at once."""
    start(cache, ["a", "b"])
    before = cache.stats()
    for offset in (1, 2, 3):
        decode(cache, ["a", "b"], offset)
    cache.begin_step({}, finished={"a", "b"})
    cache.shutdown()
    after = cache.stats()
    assert after.buffered_steps_total - before.buffered_steps_total == 3
    assert after.writes_total == 2
    assert after.rows_written_total == 2 + 6


@pytest.mark.parametrize(
    "event",
    [
        {"scheduled": {"a": 1, "b": 1, "c": 1}, "new": [NewRequest("c", 0, [2])]},
        {"scheduled": {"a": 1}, "finished": {"b"}},
        {"scheduled": {"a": 1, "b": 1}, "finished": {"ghost"}},
        {"scheduled": {"a": 1}},
        {"scheduled": {"a": 1, "b": 1}, "resumed": {"b"}},
        {"scheduled": {"a": 2, "b": 1}},
        {"scheduled": {}},
    ],
    ids=["arrival", "finish", "finish of another", "fewer requests", "resume", "more than one token", "no tokens"],
)
def test_whatever_is_not_pure_decode_flushes_first(cache: PrefixCache, event: dict[str, object]) -> None:
    """Partial blocks included, parked rows reach the log before anything else is registered."""
    start(cache, ["a", "b"])
    decode(cache, ["a", "b"], 1)
    assert cache.stats().flushes_total == 0
    cache.begin_step(**event)
    assert cache.stats().flushes_total == 1


def test_parked_rows_are_hit_like_any_other(cache: PrefixCache) -> None:
    """A hit over rows that are still parked when it arrives reads them."""
    start(cache, ["a"])
    for offset in (1, 2, 3):
        cache.begin_step({"a": 1})
        cache.discard(save(cache, ["a"], [1], [offset], 10.0 + offset))
    cache.begin_step({"b": 1}, [NewRequest("b", BLOCK, [0, 1])])
    out = cache.materialize(save(cache, ["b"], [1], [4], 20.0), ["b"])
    assert out.rows["hidden"]["b"][:, 0].tolist() == [1.0, 11.0, 12.0, 13.0, 20.0]


def test_a_hit_on_rows_of_the_same_step_reads_them(cache: PrefixCache) -> None:
    """Hashes are published at schedule time: a request may hit what another computes in the very same step."""
    new = [NewRequest("a", 0, [0]), NewRequest("b", BLOCK, [0, 1])]
    cache.begin_step({"a": BLOCK, "b": 1}, new)
    step = {"hidden": torch.arange(5.0)[:, None].repeat(1, 2)}
    handle = cache.save_step(["a", "b"], np.array([BLOCK, 1]), np.array([0, 1, 2, 3, 4]), step)
    assert cache.materialize(handle, ["b"]).rows["hidden"]["b"][:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert cache.stats().same_step_hits_total == 1


@pytest.mark.parametrize(
    ("ids", "counts", "slots", "given", "message"),
    [
        (["a"], [2], [0], None, "not those that were scheduled"),
        (["a"], [2], [0, 1], None, "not those that were scheduled"),
        (["b"], [1], [0], None, "not those that were scheduled"),
        (["a"], [1], [0, 1], None, "2 slots for 1 tokens, of 1 scheduled"),
        ([], [], [], None, "0 slots for 0 tokens, of 1 scheduled"),
        (["a"], [1], [-1], None, r"slots outside 0..31"),
        (["a"], [1], [32], None, r"slots outside 0..31"),
        (["a"], [1], [0], {"hidden": torch.zeros(1, 0)}, "need at least"),
        (["a"], [1], [0], {"aux": torch.zeros(1, 2)}, "no rows of hidden"),
        (["a"], [1], [0], {"hidden": torch.zeros(0, 2)}, "need at least"),
        (["a"], [1], [0], {"hidden": torch.zeros(1)}, "need at least"),
        (["a"], [1], [0], {"hidden": torch.zeros(1, 2, dtype=torch.float64)}, "were"),
    ],
)
def test_a_step_that_does_not_add_up_is_refused(
    cache: PrefixCache, ids: list[str], counts: list[int], slots: list[int], given: dict | None, message: str
) -> None:
    fill(cache, "z")
    cache.begin_step({"a": 1}, [NewRequest("a", 0, [0])], finished={"z"})
    with pytest.raises(StepError, match=message):
        cache.save_step(
            ids, np.array(counts, dtype=np.int64), np.array(slots, dtype=np.int64), given or rows(len(slots))
        )
    with pytest.raises(CacheFailed, match=message):
        cache.begin_step({})


def test_a_save_needs_a_begun_step(cache: PrefixCache) -> None:
    with pytest.raises(StepError, match="no step has begun"):
        save(cache, ["a"], [1], [0])


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (NewRequest("a", 3, [0]), "not whole blocks of 4"),
        (NewRequest("a", -4, [0]), "not whole blocks of 4"),
        (NewRequest("a", 8, [0]), "need 2 blocks, got 1"),
        (NewRequest("a", 4, [8]), r"block ids outside 0..7"),
        (NewRequest("a", 4, [-1]), r"block ids outside 0..7"),
    ],
)
def test_an_unaligned_or_uncovered_hit_is_refused(cache: PrefixCache, request_: NewRequest, message: str) -> None:
    with pytest.raises(StepError, match=message):
        cache.begin_step({"a": 1}, [request_])


def test_a_failed_write_is_raised_by_every_later_call() -> None:
    """A write that fails on the worker is learnt of at the engine's next call, and ever after."""

    def fail(*_: object) -> None:
        raise MemoryError("no room for a mirror")

    cache = make()
    cache._store.write = fail
    cache.begin_step({"a": 1}, [NewRequest("a", 0, [0])])
    handle = save(cache, ["a"], [1], [0])
    cache._log.drain()
    for call in (lambda: cache.begin_step({}), lambda: cache.materialize(handle, ["a"]), lambda: cache.discard(handle)):
        with pytest.raises(CacheFailed, match="no room for a mirror") as caught:
            call()
        assert isinstance(caught.value.__cause__, MemoryError)
    cache.shutdown()


def test_shutdown_writes_what_is_parked_and_leaves_no_thread() -> None:
    cache = make()
    start(cache, ["a", "b"])
    decode(cache, ["a", "b"], 1)
    cache.shutdown()
    cache.shutdown()
    assert cache.stats().rows_written_total == 4
    assert not [thread for thread in threading.enumerate() if thread.name == "prefix-cache-log"]
    with pytest.raises(StepError, match="shut down"):
        cache.begin_step({})


@pytest.mark.parametrize("name", ["num_blocks", "block_size", "staging_rows", "device_bytes", "max_inflight_steps"])
def test_a_size_that_cannot_work_is_refused_at_construction(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: found 0"):
        CacheConfig(**{"num_blocks": 8, "block_size": 4, name: 0})


def test_a_full_log_names_what_it_waits_for() -> None:
    """The engine's thread waits for a place with a timeout, never for ever."""

    class Stuck:
        def run(self) -> None:
            gate.wait(5)

        def abandon(self, error: BaseException) -> None:
            abandoned.append(error)

    abandoned: list[BaseException] = []
    gate = threading.Event()
    log = OrderedLog(1, 0.05, threaded=True)
    log.append(Stuck())
    while log._pending:
        pass
    log.append(Stuck())
    with pytest.raises(CacheTimeout, match="a place in the log: 1 operations pending") as caught:
        log.append(Stuck())
    assert abandoned == [caught.value]
    gate.set()
    log.drain()
    log.close()
    assert log.depth() == 0
    assert log.waits == 2


def test_a_budget_grants_one_step_larger_than_itself() -> None:
    """Progress is possible with any step, and what is held beyond the limit waits with a named timeout."""
    budget = Budget(100, 0.05)
    big = budget.reserve(1000, "a step")
    assert budget.try_reserve(1) is None
    with pytest.raises(CacheTimeout, match="1 bytes of staging for a row: 1000 of 100 are held"):
        budget.reserve(1, "a row")
    big.release()
    big.release()
    assert budget.held == 0
    assert budget.try_reserve(100) is not None


@pytest.mark.parametrize("pattern", ["scatter", "runs", "shuffled"])
def test_the_store_returns_what_was_written(pattern: str) -> None:
    """Whole blocks read back equal what was scattered, by short, long and shuffled slot lists alike."""
    blocks, size = 128, 4
    store = RowStore(blocks, size, frozenset({"hidden"}))
    slots = {
        "scatter": np.arange(16),
        "runs": np.concatenate([np.arange(300, 500), np.arange(0, 200)]),
        "shuffled": np.random.default_rng(0).permutation(blocks * size)[:],
    }[pattern]
    value = torch.randn(len(slots), 3)
    store.write(slots.astype(np.int64), {"hidden": value})
    naive = dict(zip(slots.tolist(), value, strict=True))
    wanted = np.array([b for b in range(blocks) if all(b * size + o in naive for o in range(size))])[::-1].copy()
    gather = store.read(wanted, 2, BufferPool(1 << 20))
    zeroed = gather.finish(1.0)
    gathered = gather.rows
    expected = torch.stack([naive[b * size + o] for b in wanted.tolist() for o in range(size)])
    assert torch.equal(gathered["hidden"][:-2], expected)
    assert gathered["hidden"].shape[0] == len(wanted) * size + 2
    assert zeroed == 0


def test_memory_counts_only_blocks_ever_written() -> None:
    store = RowStore(1000, 4, frozenset({"hidden"}))
    store.write(np.array([0, 1, 9]), {"hidden": torch.zeros(3, 8)})
    assert store.resident_bytes() == {"hidden": 2 * 4 * 8 * 4}


def test_slots_follow_the_block_table() -> None:
    """The vectorised expression equals a loop over tokens, for decode and mixed steps."""
    generator = np.random.default_rng(1)
    table = generator.permutation(64).reshape(4, 16).astype(np.int32)
    for counts in ([1, 1, 1, 1], [5, 1, 0, 9], [3], []):
        computed = generator.integers(0, 40, len(counts))
        expected = [
            int(table[row, (computed[row] + i) // 4]) * 4 + int(computed[row] + i) % 4
            for row, count in enumerate(counts)
            for i in range(count)
        ]
        assert slots_of(table, computed, np.array(counts, dtype=np.int64), 4).tolist() == expected


def test_more_keys_than_presence_bits_are_refused() -> None:
    """The 65th key is one typed error, and says how many may be."""
    store = RowStore(1, 4, frozenset())
    store.write(np.array([0]), {f"key-{index}": torch.zeros(1, 2) for index in range(64)})
    with pytest.raises(StepError, match="'late' is key number 65; allowed: 64 keys"):
        store.write(np.array([1]), {"late": torch.zeros(1, 2)})


@pytest.mark.parametrize("requests", [0, 1, 24, 25, 80])
def test_slots_of_one_token_each_need_no_counts(requests: int) -> None:
    """A number of requests in place of their counts gives what counts of one give, for few and for many."""
    generator = np.random.default_rng(2)
    table = generator.integers(0, 1 << 28, (80, 16)).astype(np.int32)
    computed = generator.integers(0, 256, 80).astype(np.int32)
    slots = slots_of(table, computed, requests, 16)
    assert slots.dtype == np.int64
    assert slots.tolist() == slots_of(table, computed, np.ones(requests, dtype=np.int64), 16).tolist()
    assert slots.tolist() == [
        int(table[row, at // 16]) * 16 + at % 16 for row, at in enumerate(computed[:requests].tolist())
    ]


@pytest.mark.parametrize(
    ("layout", "error", "advice"),
    [
        (EngineLayout(8), errors.BlockSizeMismatch, "give it the engine's block_size"),
        (EngineLayout(4, kv_groups=2), errors.HybridLayout, "2 KV cache groups"),
        (EngineLayout(4, full_attention=False), errors.HybridLayout, "not all full attention"),
        (EngineLayout(4, match_tokens=6), errors.UnalignedMatching, "turn sub-block matching off"),
        (EngineLayout(4, speculative_tokens=3), errors.SpeculativeDecoding, "turn it or prefix caching off"),
        (EngineLayout(4, decode_context_parallel=2), errors.ContextParallelism, "set it to 1"),
        (EngineLayout(4, kv_transfer=True), errors.KVTransfer, "the KV transfer off"),
    ],
)
def test_an_engine_that_cannot_be_followed_is_refused(
    layout: EngineLayout, error: type[ConfigError], advice: str
) -> None:
    """At construction, by a typed error that says what to change."""
    with pytest.raises(error, match=advice):
        PrefixCache(CacheConfig(8, 4), layout)


def test_an_engine_that_can_be_followed_is_not() -> None:
    """Whole blocks, one group of full attention: the cache is made, and serves."""
    cache = PrefixCache(CacheConfig(8, 4, warm_bytes=0), EngineLayout(4, match_tokens=8))
    fill(cache)
    cache.shutdown()
    assert cache.stats().rows_written_total == BLOCK


def test_bounds_come_from_the_environment() -> None:
    environ = {"PREFIX_CACHE_DEVICE_BYTES": "1000", "PREFIX_CACHE_WARM_BYTES": "0"}
    config = CacheConfig.from_env(8, 4, frozenset({"hidden"}), environ)
    assert (config.device_bytes, config.warm_bytes, config.num_blocks) == (1000, 0, 8)
    with pytest.raises(ConfigError, match=r"PREFIX_CACHE_STAGING_ROWS: found 'many'; allowed: a whole number"):
        CacheConfig.from_env(8, 4, frozenset(), {"PREFIX_CACHE_STAGING_ROWS": "many"})


def test_a_step_of_no_tokens_is_a_step(cache: PrefixCache) -> None:
    """Nothing scheduled, nothing saved, nothing handed out, and nothing breaks."""
    fill(cache)
    cache.begin_step({}, finished={"a"})
    out = cache.materialize(save(cache, [], [], []), [])
    assert out.rows == {"hidden": {}}
    fill(cache, "b", 4.0)


@pytest.mark.parametrize("columns", [slice(0, 2), slice(0, 3, 2)], ids=["a piece", "every other"])
def test_rows_that_are_not_contiguous_are_stored_as_they_are(cache: PrefixCache, columns: slice) -> None:
    """An owned row may be a piece of a wider tensor."""
    wide = torch.arange(12.0).reshape(BLOCK, 3)[:, columns]
    cache.begin_step({"a": BLOCK}, [NewRequest("a", 0, [0])])
    slots = np.array([3, 1, 2, 0])
    cache.discard(cache.save_step(["a"], np.array([BLOCK]), slots, {"hidden": wide}, owned=True))
    cache.begin_step({"b": 1}, [NewRequest("b", BLOCK, [0, 1])], finished={"a"})
    out = cache.materialize(save(cache, ["b"], [1], [4]), ["b"])
    assert torch.equal(out.rows["hidden"]["b"][slots], wide)


def test_a_step_that_was_never_saved_ends_the_cache(cache: PrefixCache) -> None:
    """Its tokens are in the KV cache and its rows nowhere: a later hit would serve the last tenant's."""
    fill(cache, "old", 1.0)
    cache.begin_step({"y": BLOCK}, [NewRequest("y", 0, [0])], finished={"old"})
    with pytest.raises(StepError, match="computed 4 tokens and was not saved"):
        cache.begin_step({"z": 1}, [NewRequest("z", BLOCK, [0, 3])], finished={"y"})
    with pytest.raises(CacheFailed, match="was not saved"):
        save(cache, ["z"], [1], [12])


def test_the_engine_may_reuse_whatever_it_passed(cache: PrefixCache) -> None:
    """ids, counts, slots and block tables belong to the engine, which changes them as soon as a call returns."""
    blocks = np.array([0, 1])
    fill(cache, value=7.0)
    fill_other = {"hidden": torch.full((BLOCK, 2), 9.0)}
    cache.begin_step({"o": BLOCK}, [NewRequest("o", 0, [2])], finished={"a"})
    cache.discard(cache.save_step(["o"], np.array([BLOCK]), np.arange(8, 12), fill_other))
    ids, counts, slots = ["b", "c"], np.array([1, 2]), np.array([4, 16, 17])
    cache.begin_step({"b": 1, "c": 2}, [NewRequest("b", BLOCK, blocks), NewRequest("c", 0, [4])], finished={"o"})
    blocks[0] = 2
    handle = cache.save_step(ids, counts, slots, {"hidden": torch.arange(3.0)[:, None].repeat(1, 2)})
    ids.reverse()
    counts[:] = [2, 1]
    slots[:] = 31
    out = cache.materialize(handle, ["b", "c"]).rows["hidden"]
    assert out["b"][:, 0].tolist() == [7.0] * BLOCK + [0.0]
    assert out["c"][:, 0].tolist() == [1.0, 2.0]


def test_nothing_enters_a_closed_log() -> None:
    cache = make()
    cache.begin_step({"a": 1}, [NewRequest("a", 0, [0])])
    cache._log.close()
    with pytest.raises(CacheFailed, match="shut down"):
        save(cache, ["a"], [1], [0])
    cache.shutdown()
