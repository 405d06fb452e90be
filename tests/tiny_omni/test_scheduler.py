"""The scheduler driven without a model: tokens are sampled by a rule, every step is checked as it is planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from harness.tiny_omni.config import EngineConfig
from harness.tiny_omni.request import Request
from harness.tiny_omni.scheduler import Chunk, Emission, Scheduler, StepPlan, refusal


def engine_config(**changes: int | bool) -> EngineConfig:
    values: dict[str, int | bool] = {
        "enable_prefix_caching": True,
        "block_size": 4,
        "num_blocks": 64,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
    }
    return EngineConfig(**(values | changes))  # type: ignore[arg-type]  # a union of the fields' types


def request(name: str, prompt: Sequence[int], max_tokens: int = 4, **changes: bool) -> Request:
    made = Request(
        id=name,
        prompt_len=len(prompt),
        token_ids=list(prompt),
        max_tokens=max_tokens,
        ignore_eos=changes.get("ignore_eos", True),
        needs_rows=changes.get("needs_rows", False),
    )
    made.extend_hashes(4)
    return made


def next_token(text: Sequence[int]) -> int:
    return (sum(text) * 7 + len(text)) % 5 + 1


class Drive:
    """Steps a scheduler, samples by `next_token`, and remembers what it saw."""

    def __init__(self, scheduler: Scheduler, check: Callable[[StepPlan], None] | None = None) -> None:
        self.scheduler = scheduler
        self.check = check
        self.texts: dict[str, list[int]] = {}
        self.emissions: list[Emission] = []

    def add(self, name: str, prompt: Sequence[int], max_tokens: int = 4, **changes: bool) -> None:
        self.texts[name] = list(prompt)
        self.scheduler.add(request(name, prompt, max_tokens, **changes))

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        assert plan is not None
        if self.check is not None:
            self.check(plan)
        sampling = [chunk.request_id for chunk in plan.chunks if chunk.samples]
        sampled = [next_token(self.texts[name]) for name in sampling]
        for name, token in zip(sampling, sampled, strict=True):
            self.texts[name].append(token)
        self.emissions += self.scheduler.update(plan, sampled)
        return plan

    def finish(self, limit: int = 2000) -> None:
        while self.scheduler.has_work:
            self.step()
            limit -= 1
            assert limit, "the scheduler makes no progress"


def chunk_of(plan: StepPlan, name: str) -> Chunk:
    return next(chunk for chunk in plan.chunks if chunk.request_id == name)


prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=24), st.integers(1, 8)), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None)
@given(work=prompts, num_blocks=st.integers(8, 20), caching=st.booleans())
def test_every_step_is_sound_and_every_request_ends(
    work: list[tuple[list[int], int]], num_blocks: int, caching: bool
) -> None:
    """Whatever arrives, even into a pool far too small: budgets hold, chunks continue where the last one stopped,
    no slot has two writers, and each request gets exactly its own tokens."""
    config = engine_config(num_blocks=num_blocks, enable_prefix_caching=caching, max_num_batched_tokens=10)
    scheduler = Scheduler(config)
    position: dict[str, int] = {}
    known: set[str] = set()

    def check(plan: StepPlan) -> None:
        assert sum(chunk.count for chunk in plan.chunks) <= 10
        assert len(plan.chunks) <= config.max_num_seqs
        assert [chunk.count > 1 for chunk in plan.chunks] == sorted(chunk.count > 1 for chunk in plan.chunks)
        assert set(plan.finished) <= known
        known.difference_update(plan.finished)
        for new in plan.admitted:
            assert new.request_id not in known
            known.add(new.request_id)
            assert new.computed % config.block_size == 0
            position[new.request_id] = new.computed
        slots: list[int] = []
        for chunk in plan.chunks:
            assert chunk.request_id in known
            assert chunk.first == any(new.request_id == chunk.request_id for new in plan.admitted)
            assert chunk.computed == position[chunk.request_id]
            assert chunk.count >= 1
            position[chunk.request_id] += chunk.count
            text = drive.texts[chunk.request_id]
            assert chunk.samples == (position[chunk.request_id] == len(text))
            table = scheduler.batch.block_table[chunk.row]
            slots += [int(table[p // 4]) * 4 + p % 4 for p in range(chunk.computed, chunk.computed + chunk.count)]
            held = scheduler.batch.token_ids[chunk.row, : position[chunk.request_id]]
            assert held.tolist() == text[: position[chunk.request_id]]
        assert len(slots) == len(set(slots))
        assert max(slots) < config.num_slots

    drive = Drive(scheduler, check)
    for index, (prompt, max_tokens) in enumerate(work):
        drive.add(str(index), prompt, max_tokens)
    drive.finish()
    for index, (prompt, max_tokens) in enumerate(work):
        emissions = [emission for emission in drive.emissions if emission.request_id == str(index)]
        assert [emission.finish_reason for emission in emissions] == [None] * (max_tokens - 1) + ["length"]
        expected = list(prompt)
        for emission in emissions:
            assert emission.new_token_ids == (next_token(expected),)
            expected += emission.new_token_ids
    assert scheduler.pool.num_free == num_blocks
    counters = scheduler.counters
    assert counters.prompt_tokens == sum(len(prompt) for prompt, _ in work)
    assert counters.generation_tokens == sum(max_tokens for _, max_tokens in work)
    assert counters.prefix_cache_queries == (counters.prompt_tokens if caching else 0)


def test_requests_run_in_order_of_arrival_under_the_token_budget() -> None:
    """Running requests come first; what is left of the budget admits the next prompt, cut to fit."""
    drive = Drive(Scheduler(engine_config(enable_prefix_caching=False)))
    drive.add("a", range(1, 13))
    drive.add("b", range(20, 40))
    first = drive.step()
    assert [(c.request_id, c.computed, c.count, c.samples) for c in first.chunks] == [
        ("a", 0, 12, True),
        ("b", 0, 4, False),
    ]
    second = drive.step()
    assert [(c.request_id, c.computed, c.count, c.samples) for c in second.chunks] == [
        ("a", 12, 1, True),
        ("b", 4, 15, False),
    ]
    assert [c.request_id for c in drive.step().chunks] == ["a", "b"]


def test_a_request_hits_what_another_computes_in_the_same_step() -> None:
    """Hashes are published when tokens are scheduled, so the second of two equal prompts hits at once."""
    drive = Drive(Scheduler(engine_config()))
    drive.add("a", range(10))
    drive.add("b", range(10))
    plan = drive.step()
    assert (chunk_of(plan, "a").computed, chunk_of(plan, "b").computed) == (0, 8)
    assert plan.admitted[0].blocks[:2] == plan.admitted[1].blocks[:2]
    assert drive.scheduler.counters.prefix_cache_queries == 20
    assert drive.scheduler.counters.prefix_cache_hits == 8


def test_only_scheduled_tokens_can_be_hit() -> None:
    """Of a prompt cut by the budget, the blocks of later chunks are not there yet."""
    drive = Drive(Scheduler(engine_config(max_num_batched_tokens=10)))
    drive.add("a", range(24))
    drive.step()
    assert len(drive.scheduler.pool.find(request("b", range(24)).block_hashes)) == 2
    drive.step()
    assert len(drive.scheduler.pool.find(request("b", range(24)).block_hashes)) == 5


def test_the_last_token_is_always_computed() -> None:
    """A prompt of whole blocks that was seen before hits all but its last block."""
    drive = Drive(Scheduler(engine_config()))
    drive.add("a", range(8), max_tokens=1)
    drive.finish()
    drive.add("b", range(8), max_tokens=1)
    plan = drive.step()
    assert (chunk_of(plan, "b").computed, chunk_of(plan, "b").count) == (4, 4)


def test_generated_tokens_can_be_hit() -> None:
    """A conversation's next turn finds the answer of the turn before in the cache, but for its last token."""
    drive = Drive(Scheduler(engine_config()))
    drive.add("a", range(6), max_tokens=7)
    drive.finish()
    drive.add("b", [*drive.texts["a"], 3, 3, 3], max_tokens=1)
    assert chunk_of(drive.step(), "b").computed == 12


def test_the_last_arrived_request_is_preempted_and_resumed_with_its_tokens() -> None:
    """Without a free block the youngest gives way, is finished to the cache, and comes back as new."""
    scheduler = Scheduler(engine_config(num_blocks=6, max_num_seqs=2, enable_prefix_caching=False))
    drive = Drive(scheduler)
    drive.add("a", range(11), max_tokens=6, needs_rows=True)
    drive.add("b", range(20, 25), max_tokens=12, needs_rows=True)
    drive.add("c", range(30, 33))
    drive.step()
    plan = drive.step()
    while "b" not in plan.finished:
        plan = drive.step()
    assert [chunk.request_id for chunk in plan.chunks] == ["a"]
    assert scheduler.counters.preemptions == 1
    assert [waiting.id for waiting in scheduler.waiting] == ["b", "c"]
    generated = len(drive.texts["b"]) - 5
    assert generated > 0
    while not any(new.request_id == "b" for new in plan.admitted):
        plan = drive.step()
    resumed = chunk_of(plan, "b")
    assert (resumed.first, resumed.count, resumed.wants_rows) == (True, 5 + generated, False)
    drive.finish()
    assert scheduler.counters.prompt_tokens == 19


def test_rows_of_an_incomplete_prompt_are_wanted_again_after_preemption() -> None:
    """A request preempted before its prompt is complete starts its rows over; a complete one has given its own."""
    scheduler = Scheduler(engine_config(num_blocks=8, enable_prefix_caching=False, max_num_batched_tokens=8))
    drive = Drive(scheduler)
    drive.add("a", range(7), max_tokens=20, needs_rows=True)
    drive.add("b", range(30, 54), max_tokens=2, needs_rows=True)
    seen: list[Chunk] = []
    while scheduler.has_work:
        seen += drive.step().chunks
    mine = [chunk for chunk in seen if chunk.request_id == "b"]
    restarts = [index for index, chunk in enumerate(mine) if chunk.first]
    assert len(restarts) >= 2
    complete = next(index for index, chunk in enumerate(mine) if chunk.computed + chunk.count >= 24)
    assert [chunk.wants_rows for chunk in mine] == [index <= complete for index in range(len(mine))]
    assert [emission.prompt_rows for emission in drive.emissions if emission.request_id == "b"] == [True, False]


def test_a_resumption_may_hit_but_counts_no_query() -> None:
    """Queries and hits count a request once, when it is first scheduled."""
    scheduler = Scheduler(engine_config(num_blocks=6))
    drive = Drive(scheduler)
    drive.add("a", range(11), max_tokens=10)
    drive.add("b", range(20, 28), max_tokens=8)
    hits: list[int] = []
    while scheduler.has_work:
        hits += [new.computed for new in drive.step().admitted if new.request_id == "b"]
    assert scheduler.counters.preemptions >= 1
    assert hits[0] == 0
    assert max(hits) > 0, "the resumed request finds its own blocks"
    assert scheduler.counters.prefix_cache_queries == 19
    assert scheduler.counters.prefix_cache_hits == 0
    assert all(emission.cached_tokens == 0 for emission in drive.emissions)


def test_an_aborted_request_leaves_its_hashes_behind() -> None:
    """Abort frees the blocks at once; their contents can still be hit, and the id is reported as finished."""
    drive = Drive(Scheduler(engine_config()))
    drive.add("a", range(12), max_tokens=9)
    drive.step()
    emission = drive.scheduler.abort("a")
    assert emission is not None
    assert (emission.finish_reason, emission.new_token_ids) == ("abort", ())
    assert drive.scheduler.pool.num_free == 64
    assert drive.scheduler.schedule() is None
    drive.add("b", range(12))
    plan = drive.step()
    assert plan.finished == ("a",)
    assert chunk_of(plan, "b").computed == 8


def test_aborting_a_waiting_or_unknown_request() -> None:
    """A request that never ran is not reported as finished; one that is not there is nobody's business."""
    drive = Drive(Scheduler(engine_config(max_num_seqs=1)))
    drive.add("a", range(4), max_tokens=3)
    drive.add("b", range(4), max_tokens=3)
    drive.step()
    assert drive.scheduler.abort("b") is not None
    assert drive.scheduler.abort("b") is None
    assert drive.scheduler.abort("nobody") is None
    assert drive.step().finished == ()
    drive.finish()
    assert not drive.scheduler.has_work


def test_nothing_is_counted_or_hit_with_caching_off() -> None:
    """With caching off equal prompts share nothing and both counters stay at 0."""
    drive = Drive(Scheduler(engine_config(enable_prefix_caching=False)))
    drive.add("a", range(8))
    drive.finish()
    drive.add("b", range(8))
    assert chunk_of(drive.step(), "b").computed == 0
    assert drive.scheduler.counters.prefix_cache_queries == drive.scheduler.counters.prefix_cache_hits == 0


def test_an_end_of_sequence_token_stops_unless_ignored() -> None:
    """The token that stops a request is the last of its tokens."""
    prompt = [1, 2, 3]
    eos = next_token(prompt)
    scheduler = Scheduler(EngineConfig(block_size=4, num_blocks=64, max_model_len=64, eos_token_id=eos))
    drive = Drive(scheduler)
    drive.add("stops", prompt, ignore_eos=False)
    drive.add("goes on", prompt, max_tokens=3)
    drive.finish()
    by_id = {name: [e for e in drive.emissions if e.request_id == name] for name in drive.texts}
    assert [(e.new_token_ids, e.finish_reason) for e in by_id["stops"]] == [((eos,), "stop")]
    assert [e.finish_reason for e in by_id["goes on"]] == [None, None, "length"]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 1, "prompt: found 0 tokens; allowed: at least 1"),
        ([1], 0, "max_tokens: found 0; allowed: at least 1"),
        ([1, 4096], 1, "prompt: found token id 4096; allowed: 0 to 4095"),
        ([1] * 60, 5, "found 60 prompt tokens and max_tokens 5; allowed: together at most max_model_len = 64"),
        ([1] * 40, 10, "found 40 prompt tokens and max_tokens 10; allowed: what fits 12 KV blocks of 4"),
    ],
)
def test_a_request_that_can_never_run_is_refused(prompt: list[int], max_tokens: int, message: str) -> None:
    """The reason names what was found and what is allowed."""
    assert refusal(engine_config(num_blocks=12), prompt, max_tokens) == message


def test_a_request_that_just_fits_runs_to_its_end() -> None:
    """The last generated token needs no slot, so one that needs every block is accepted and ends."""
    config = engine_config(num_blocks=12)
    assert refusal(config, range(40), 9) is None
    drive = Drive(Scheduler(config))
    drive.add("a", range(40), max_tokens=9)
    drive.finish()
    assert drive.emissions[-1].finish_reason == "length"
