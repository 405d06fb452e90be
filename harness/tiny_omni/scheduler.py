"""What runs in the next step: continuous batching, chunked prefill and preemption by recompute."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from harness.tiny_omni.batch import InputBatch
from harness.tiny_omni.block_pool import BlockPool
from harness.tiny_omni.config import EngineConfig
from harness.tiny_omni.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """One request's part of a step.

    Parameters:
        row: its row of the input batch.
        computed: its tokens already in the KV cache, the prefix hit included.
        count: its tokens in this step.
        first: its first step, or its first since a preemption.
        samples: the chunk ends with its last known token, so a new one is sampled.
        wants_rows: a consumer waits for the prompt rows of this chunk.
    """

    request_id: str
    row: int
    computed: int
    count: int
    first: bool
    samples: bool
    wants_rows: bool


@dataclass(frozen=True, slots=True)
class Admission:
    """A request in its first step: `computed` tokens are a prefix hit that lies in the first of `blocks`."""

    request_id: str
    computed: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: at least one chunk, one-token chunks first.

    Parameters:
        admitted: requests of the step that were not running before it.
        finished: requests that ended, were aborted or were preempted since the plan before.
    """

    chunks: tuple[Chunk, ...]
    admitted: tuple[Admission, ...]
    finished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Emission:
    """What a step, or an abort, says to one request's consumer; `prompt_rows`: its rows are complete with it."""

    request_id: str
    new_token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    cached_tokens: int
    prompt_rows: bool = False


@dataclass(slots=True)
class SchedulerCounters:
    """Monotone totals, in tokens where not said otherwise.

    `prefix_cache_queries` and `prefix_cache_hits` count a request once, when it is first scheduled; a resumption
    counts in neither. `preemptions`, `steps`, and `steps_prefill` (steps that computed more than the last token of
    some request) are events.
    """

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    scheduled_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    steps_prefill: int = 0


class Scheduler:
    """First come, first served; not thread-safe.

    Running requests go first, in order of arrival; what is left of the token budget admits waiting ones. When a
    running request finds no free block, the last arrived running request gives up its blocks and goes to the
    front of the waiting ones, with the tokens it has generated.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.batch = InputBatch(config.max_num_seqs, config.max_blocks_per_seq, config.max_model_len)
        self.counters = SchedulerCounters()
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._requests: dict[str, Request] = {}
        self._finished: list[str] = []

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queue a request that can run (`refusal` found nothing)."""
        self._requests[request.id] = request
        self.waiting.append(request)

    def schedule(self) -> StepPlan | None:
        """Plan the next step and count its tokens as computed; None when there is nothing to do."""
        chunks: list[Chunk] = []
        admitted: list[Admission] = []
        preempted, budget = self._schedule_running(chunks, self.config.max_num_batched_tokens)
        if not preempted:
            self._schedule_waiting(chunks, admitted, budget)
        if not chunks:
            return None
        self.counters.steps += 1
        self.counters.steps_prefill += any(chunk.count > 1 or not chunk.samples for chunk in chunks)
        self.counters.scheduled_tokens += sum(chunk.count for chunk in chunks)
        chunks.sort(key=lambda chunk: chunk.count > 1)
        finished, self._finished = tuple(self._finished), []
        return StepPlan(tuple(chunks), tuple(admitted), finished)

    def update(self, plan: StepPlan, sampled: Sequence[int]) -> tuple[Emission, ...]:
        """Take in the step's tokens, one per chunk that samples, and end the requests they end."""
        emissions: list[Emission] = []
        sampling = (chunk for chunk in plan.chunks if chunk.samples)
        for chunk, token_id in zip(sampling, sampled, strict=True):
            request = self._requests[chunk.request_id]
            self.batch.append_token(chunk.row, request.num_tokens, token_id)
            request.token_ids.append(token_id)
            if self.config.enable_prefix_caching:
                request.extend_hashes(self.config.block_size)
            self.counters.generation_tokens += 1
            if request.num_generated == 1:
                self.counters.prompt_tokens += request.prompt_len
            reason = request.finish_reason(self.config.eos_token_id)
            emissions.append(Emission(request.id, (token_id,), reason, request.cached_tokens or 0, chunk.wants_rows))
            if reason is not None:
                self._end(request)
        if any(emission.finish_reason for emission in emissions):
            self.running = [request for request in self.running if request.id in self._requests]
        return tuple(emissions)

    def abort(self, request_id: str) -> Emission | None:
        """End a request between two steps; None when it has already ended. Its hashes stay published."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        if request.row is None:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
        self._end(request)
        return Emission(request.id, (), "abort", request.cached_tokens or 0)

    def _schedule_running(self, chunks: list[Chunk], budget: int) -> tuple[bool, int]:
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            count = min(request.num_tokens - request.num_computed, budget)
            fresh = self._blocks_for(request.num_computed + count) - len(request.blocks)
            while fresh > self.pool.num_free:
                preempted = True
                if self._preempt_last() is request:
                    return True, budget
            self._grow(request, fresh)
            chunks.append(self._advance(request, count, first=False))
            budget -= count
            index += 1
        return preempted, budget

    def _schedule_waiting(self, chunks: list[Chunk], admitted: list[Admission], budget: int) -> None:
        size = self.config.block_size
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            # The last token is always computed: its logits are what the request came for.
            hits = self.pool.find(request.block_hashes[: (request.num_tokens - 1) // size])
            computed = len(hits) * size
            count = min(request.num_tokens - computed, budget)
            fresh = self._blocks_for(computed + count) - len(hits)
            if not self.pool.fits(hits, fresh):
                return
            self.waiting.popleft()
            self.running.append(request)
            self.pool.share(hits)
            request.row = self.batch.acquire(request.token_ids)
            self.batch.append_blocks(request.row, 0, hits)
            request.blocks = hits
            request.num_published = len(hits)
            request.num_computed = computed
            if request.cached_tokens is None:
                self._count_query(request, computed)
            self._grow(request, fresh)
            chunks.append(self._advance(request, count, first=True))
            admitted.append(Admission(request.id, computed, tuple(request.blocks)))
            budget -= count

    def _count_query(self, request: Request, hit: int) -> None:
        request.cached_tokens = hit
        if self.config.enable_prefix_caching:
            self.counters.prefix_cache_queries += request.num_tokens
            self.counters.prefix_cache_hits += hit

    def _advance(self, request: Request, count: int, *, first: bool) -> Chunk:
        assert request.row is not None, "only running requests advance"
        computed = request.num_computed
        wants_rows = request.needs_rows and not request.rows_complete
        request.num_computed = computed + count
        request.rows_complete |= request.num_computed >= request.prompt_len
        if self.config.enable_prefix_caching:
            self._publish(request)
        return Chunk(
            request_id=request.id,
            row=request.row,
            computed=computed,
            count=count,
            first=first,
            samples=request.num_computed == request.num_tokens,
            wants_rows=wants_rows,
        )

    def _publish(self, request: Request) -> None:
        """Publish the blocks this step fills, before it runs: a request later in the step may hit them."""
        full = request.num_computed // self.config.block_size
        if full > request.num_published:
            fresh = slice(request.num_published, full)
            self.pool.publish(request.blocks[fresh], request.block_hashes[fresh])
            request.num_published = full

    def _grow(self, request: Request, fresh: int) -> None:
        if fresh:
            assert request.row is not None, "only running requests hold blocks"
            blocks = self.pool.allocate(fresh)
            self.batch.append_blocks(request.row, len(request.blocks), blocks)
            request.blocks.extend(blocks)

    def _preempt_last(self) -> Request:
        request = self.running.pop()
        self._release(request)
        self.waiting.appendleft(request)
        self.counters.preemptions += 1
        return request

    def _end(self, request: Request) -> None:
        del self._requests[request.id]
        if request.row is not None:
            self._release(request)

    def _release(self, request: Request) -> None:
        assert request.row is not None, "only running requests hold a row"
        self.pool.free(request.blocks)
        self.batch.release(request.row)
        self._finished.append(request.id)
        request.blocks, request.row = [], None
        request.num_published = request.num_computed = 0

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)


def refusal(config: EngineConfig, prompt_token_ids: Sequence[int], max_tokens: int) -> str | None:
    """Why a request can never run under `config`, or None when it can."""
    vocab, length = config.model.vocab_size, len(prompt_token_ids) + max_tokens
    if not prompt_token_ids:
        return "prompt: found 0 tokens; allowed: at least 1"
    if max_tokens < 1:
        return f"max_tokens: found {max_tokens}; allowed: at least 1"
    if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= vocab:
        found = next(token for token in prompt_token_ids if not 0 <= token < vocab)
        return f"prompt: found token id {found}; allowed: 0 to {vocab - 1}"
    if length > config.max_model_len:
        return (
            f"found {len(prompt_token_ids)} prompt tokens and max_tokens {max_tokens}; "
            f"allowed: together at most max_model_len = {config.max_model_len}"
        )
    # The last generated token is never fed back, so it needs no slot.
    if length - 1 > config.num_slots:
        return (
            f"found {len(prompt_token_ids)} prompt tokens and max_tokens {max_tokens}; "
            f"allowed: what fits {config.num_blocks} KV blocks of {config.block_size}"
        )
    return None
