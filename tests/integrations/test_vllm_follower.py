"""The cache in a vLLM worker: scheduler outputs in, whole prompts out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import torch
from vllm_steps import PagedEngine, new, rows_of, step

from prefix_cache import CacheFailed, CacheTimeout, PrefixCacheError, StepError
from prefix_cache.errors import UnalignedMatching
from prefix_cache.integrations.vllm.prompts import OwedPrompts

PROMPT = [50, 51, 52, 53, 54, 55, 56, 57, 58, 59]
"""Two whole blocks of four and a half one."""


@dataclass
class Inbox:
    """A consumer that keeps what it is given."""

    ids: list[str] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    rows: list[torch.Tensor] = field(default_factory=list)

    def __call__(self, request_id: str, token_ids: Sequence[int], hit_tokens: int, rows: torch.Tensor) -> None:
        self.ids.append(request_id)
        self.prompts.append(list(token_ids))
        self.hits.append(hit_tokens)
        self.rows.append(rows)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def engines() -> Iterator[Callable[..., PagedEngine]]:
    made: list[PagedEngine] = []

    def make(*args: object, **bounds: object) -> PagedEngine:
        made.append(PagedEngine(*args, **bounds))  # type: ignore[arg-type]  # handed through
        return made[-1]

    yield make
    for engine in made:
        with suppress(PrefixCacheError):  # of a test that broke the engine on purpose
            engine.follower.close()


def test_a_prompt_in_one_step_is_delivered_whole(engines: Callable[..., PagedEngine], inbox: Inbox) -> None:
    """Its id, its tokens, no hit, and one row per token, though the engine overwrote its buffer at once."""
    engine = engines(inbox)
    engine.run(step({"a": 10}, [new("a", PROMPT, [1, 2, 3])]))
    engine.follower.close()
    assert (inbox.ids, inbox.prompts, inbox.hits) == (["a"], [PROMPT], [0])
    assert torch.equal(inbox.rows[0], rows_of(PROMPT))


def test_a_hit_has_the_rows_that_another_request_computed_in_front(
    engines: Callable[..., PagedEngine], inbox: Inbox
) -> None:
    """Only two tokens are computed; the consumer still sees ten rows, equal to those of a request without a hit."""
    engine = engines(inbox)
    engine.run(step({"a": 10}, [new("a", PROMPT, [1, 2, 3])]))
    engine.run(step({"b": 2}, [new("b", PROMPT, [1, 2, 4], computed=8)], finished=["a"]))
    engine.follower.close()
    assert inbox.hits == [0, 8]
    assert torch.equal(inbox.rows[1], rows_of(PROMPT))


def test_a_hit_of_blocks_computed_in_the_same_step_has_their_rows(
    engines: Callable[..., PagedEngine], inbox: Inbox
) -> None:
    """vLLM publishes a block when it schedules the tokens that fill it."""
    engine = engines(inbox)
    engine.run(step({"a": 10, "b": 2}, [new("a", PROMPT, [1, 2, 3]), new("b", PROMPT, [1, 2, 4], computed=8)]))
    engine.follower.close()
    assert inbox.ids == ["a", "b"]
    assert torch.equal(inbox.rows[1], rows_of(PROMPT))


def test_a_chunked_prefill_is_put_together_over_its_steps(engines: Callable[..., PagedEngine], inbox: Inbox) -> None:
    """The hit comes with the first chunk; nothing is delivered before the last, other requests' tokens in between."""
    engine = engines(inbox)
    engine.run(step({"a": 4}, [new("a", PROMPT[:4], [1])]))
    engine.run(step({"b": 3}, [new("b", PROMPT, [1, 2], computed=4)], finished=["a"]))
    engine.run(step({"b": 1, "c": 2}, [new("c", [7, 8], [9])], {"b": (7, None)}))
    engine.run(step({"c": 1, "b": 2}, cached={"c": (2, None), "b": (8, [3])}))
    engine.follower.close()
    assert (inbox.ids, inbox.hits) == (["a", "c", "b"], [0, 0, 4])
    assert torch.equal(inbox.rows[2], rows_of(PROMPT))


def test_a_prefill_that_was_preempted_starts_over_with_what_it_then_hits(
    engines: Callable[..., PagedEngine], inbox: Inbox
) -> None:
    """Resumed with other blocks of which the first two are its own old ones, it is delivered once, with that hit."""
    engine = engines(inbox)
    engine.run(step({"a": 9}, [new("a", PROMPT, [1, 2, 3])]))
    engine.run(step({"b": 4}, [new("b", [1, 2, 3, 4], [3])]))
    engine.run(step({"a": 1, "b": 1}, cached={"a": (8, [1, 2, 5]), "b": (4, [6])}, resumed=["a"]))
    engine.run(step({"a": 1, "b": 1}, cached={"a": (9, None), "b": (5, None)}))
    engine.follower.close()
    assert (inbox.ids, inbox.hits) == (["b", "a"], [0, 8])
    assert torch.equal(inbox.rows[1], rows_of(PROMPT))
    assert engine.cache.stats().hit_tokens_total == 8


def test_a_prefill_that_lost_every_block_is_computed_again(engines: Callable[..., PagedEngine], inbox: Inbox) -> None:
    """The rows of the first attempt are not used, whoever has its blocks now."""
    engine = engines(inbox)
    engine.run(step({"a": 9}, [new("a", PROMPT, [1, 2, 3])]))
    engine.run(step({"b": 8}, [new("b", [90, 91, 92, 93, 94, 95, 96, 97], [1, 2])]))
    engine.run(step({"a": 10}, cached={"a": (0, [4, 5, 6])}, resumed=["a"], finished=["b"]))
    engine.follower.close()
    assert (inbox.ids, inbox.hits) == (["b", "a"], [0, 0])
    assert torch.equal(inbox.rows[1], rows_of(PROMPT))


def test_a_request_preempted_after_its_prompt_is_delivered_once(
    engines: Callable[..., PagedEngine], inbox: Inbox
) -> None:
    """Its prompt and its output are computed again in one step, and what others hit there is right."""
    engine = engines(inbox)
    engine.run(step({"a": 10}, [new("a", PROMPT, [1, 2, 3])]))
    engine.run(step({"a": 1}, cached={"a": (10, None)}))
    engine.run(step({"b": 4}, [new("b", [1, 2, 3, 4], [1])]))
    engine.run(step({"a": 12}, cached={"a": (0, [4, 5, 6])}, resumed=["a"], finished=["b"]))
    engine.run(step({"a": 1, "c": 2}, [new("c", PROMPT, [4, 5, 8], computed=8)], {"a": (12, [7])}))
    engine.follower.close()
    assert inbox.ids == ["a", "b", "c"]
    assert torch.equal(inbox.rows[2], rows_of(PROMPT))


def test_an_aborted_prefill_is_not_delivered_and_its_name_is_free_at_once(
    engines: Callable[..., PagedEngine], inbox: Inbox
) -> None:
    """vLLM may name the end of a request and its successor of the same id in one step."""
    engine = engines(inbox)
    engine.run(step({"a": 4}, [new("a", PROMPT, [1, 2, 3])]))
    engine.run(step({"a": 3}, [new("a", [7, 8, 9], [4])], finished=["a"]))
    engine.follower.close()
    assert (inbox.prompts, inbox.hits) == ([[7, 8, 9]], [0])
    assert torch.equal(inbox.rows[0], rows_of([7, 8, 9]))


def test_a_step_without_tokens_ends_requests_and_saves_nothing(
    engines: Callable[..., PagedEngine], inbox: Inbox
) -> None:
    """vLLM runs one to tell the worker of requests that finished, with nothing left to schedule."""
    engine = engines(inbox)
    engine.run(step({"a": 10}, [new("a", PROMPT, [1, 2, 3])]))
    engine.run(step({}, finished=["a"]))
    engine.run(step({"a": 2}, [new("a", PROMPT, [1, 2, 4], computed=8)]))
    engine.follower.close()
    assert inbox.hits == [0, 8]
    assert torch.equal(inbox.rows[1], rows_of(PROMPT))


def test_decoding_steps_are_discarded_and_parked(engines: Callable[..., PagedEngine], inbox: Inbox) -> None:
    """Once every prompt is delivered nothing is merged, and the log sees one write per block of steps."""
    engine = engines(inbox)
    engine.run(step({"a": 2}, [new("a", [1, 2], [1])]))
    for at in range(2, 2 + 2 * 4):
        engine.run(step({"a": 1}, cached={"a": (at, None if at % 4 else [1 + at // 4])}))
    engine.follower.close()
    stats = engine.cache.stats()
    assert (stats.materialized_total, stats.discarded_total) == (1, 8)
    assert (stats.buffered_steps_total, stats.flushes_total, stats.open_handles) == (8, 2, 0)


def test_without_a_consumer_every_step_is_discarded(engines: Callable[..., PagedEngine]) -> None:
    """Rows are kept and hits are counted, but nothing is merged and no handle stays open."""
    engine = engines(None)
    engine.run(step({"a": 10}, [new("a", PROMPT, [1, 2, 3])]))
    engine.run(step({"b": 2}, [new("b", PROMPT, [1, 2, 4], computed=8)], finished=["a"]))
    engine.follower.close()
    stats = engine.cache.stats()
    assert (stats.materialized_total, stats.merged_bytes_total, stats.open_handles) == (0, 0, 0)
    assert (stats.discarded_total, stats.hit_tokens_total, stats.rows_written_total) == (2, 8, 12)


def test_copies_of_blocks_are_refused(engines: Callable[..., PagedEngine]) -> None:
    """vLLM copies a block for a hit of less than a whole one, whose rows no forward computes."""
    engine = engines(None)
    with pytest.raises(UnalignedMatching, match="copies 1 KV blocks"):
        engine.run(step({"a": 1}, [new("a", PROMPT, [1, 2, 3], computed=9)], copies=[object()]))


def test_a_growing_prompt_is_refused_where_somebody_wants_it_whole(
    engines: Callable[..., PagedEngine], inbox: Inbox
) -> None:
    """A streaming session sends a live request's longer prompt as a new one, whose earlier rows are gone."""
    engine = engines(inbox)
    engine.run(step({"a": 10}, [new("a", PROMPT, [1, 2, 3])]))
    with pytest.raises(StepError, match="streaming session"):
        engine.run(step({"a": 2}, [new("a", [*PROMPT, 60, 61], [1, 2, 3], computed=10)]))


def test_an_error_of_the_consumer_stops_the_engine(engines: Callable[..., PagedEngine]) -> None:
    """The next step raises it as the cause; rows are never dropped in silence."""
    called = threading.Event()

    def broken(*_: object) -> None:
        called.set()
        raise ValueError("no place for this")

    engine = engines(broken)
    engine.run(step({"a": 10}, [new("a", PROMPT, [1, 2, 3])]))
    assert called.wait(10)
    with pytest.raises(CacheFailed, match="no place for this") as caught:
        engine.follower.close()
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(CacheFailed, match="not delivered"):
        engine.run(step({"a": 1}, cached={"a": (10, None)}))


def test_a_consumer_that_does_not_keep_up_holds_the_engine_back(engines: Callable[..., PagedEngine]) -> None:
    """No more steps wait than the cache's bound; then the engine waits, and in the end says for whom."""
    busy, free = threading.Event(), threading.Event()

    def stuck(*_: object) -> None:
        busy.set()
        free.wait(10)

    engine = engines(stuck, max_inflight_steps=2, wait_timeout=0.5)
    try:
        engine.run(step({"r0": 3}, [new("r0", [1, 2, 3], [0])]))
        assert busy.wait(10)
        engine.run(step({"r1": 3}, [new("r1", [1, 2, 3], [1])]))
        engine.run(step({"r2": 3}, [new("r2", [1, 2, 3], [2])]))
        with pytest.raises(CacheTimeout, match=r"for the consumer: 2 steps wait"):
            engine.run(step({"r3": 3}, [new("r3", [1, 2, 3], [3])]))
    finally:
        free.set()


def test_closing_delivers_what_is_complete(engines: Callable[..., PagedEngine], inbox: Inbox) -> None:
    """Prompts that wait for a slow consumer are not lost when the engine goes down."""
    first = threading.Event()

    def slow(*given: object) -> None:
        first.wait(10)
        inbox(*given)  # type: ignore[arg-type]  # as the consumer is called

    engine = engines(slow)
    for at in range(4):
        engine.run(step({f"r{at}": 3}, [new(f"r{at}", [at, 2, 3], [at])]))
    first.set()
    engine.follower.close()
    engine.follower.close()
    assert inbox.ids == ["r0", "r1", "r2", "r3"]
    assert not [thread for thread in threading.enumerate() if thread.name == "prefix-cache-delivery"]


def test_what_ended_is_owed_to_nobody() -> None:
    """An aborted prefill leaves nothing behind, so a server that lives for weeks does not grow."""
    owed = OwedPrompts()
    owed.follow(step({"a": 4}, [new("a", PROMPT, [1, 2, 3])]))
    assert [piece.last for piece in owed.take({"a": 4})] == [False]
    owed.follow(step({}, finished=["a"]))
    assert not owed.ids()
