"""The engine: one thread that runs steps while there is work, one that hands out what they produced."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

import numpy as np
import torch

from harness.tiny_omni.config import EngineConfig
from harness.tiny_omni.errors import EngineFailed, RequestRefused
from harness.tiny_omni.model import ROW_KEYS, Thinker
from harness.tiny_omni.outputs import OutputCache, RowAssembler, StepResult
from harness.tiny_omni.pace import Pace
from harness.tiny_omni.request import EngineOutput, EngineRequest, FinishReason, Request
from harness.tiny_omni.scheduler import Emission, Scheduler, StepPlan, refusal
from harness.tiny_omni.step import build_input, positions_of
from prefix_cache import (
    CacheConfig,
    CacheStats,
    EngineLayout,
    NewRequest,
    PrefixCache,
    PrefixCacheError,
    StepHandle,
    slots_of,
)

__all__ = [
    "Engine",
    "EngineFailed",
    "EngineOutput",
    "EngineRequest",
    "EngineStats",
    "RequestRefused",
]

MAX_RESULTS_AHEAD = 16
"""Steps the engine thread may be ahead of the output thread."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A consistent snapshot between two scheduling decisions; see SchedulerCounters for the totals.

    Parameters:
        num_running, num_waiting: requests that have not finished.
        kv_cache_usage: share of KV blocks in use, 0 to 1.
        cache: the output cache's own statistics; None with caching off.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    prompt_tokens: int
    generation_tokens: int
    scheduled_tokens: int
    preemptions: int
    steps: int
    steps_prefill: int
    cache: CacheStats | None


@dataclass(slots=True)
class _Live:
    request: EngineRequest
    cached_tokens: int = 0


class Engine:
    """Stage 0: the Thinker, its scheduler and, with prefix caching on, the cache of its per-token outputs.

    Any exception in one of its threads is final: every request ends with finish_reason "error", `failure` names
    the cause and later submits raise EngineFailed.

    Parameters:
        config: sizes and switches.
        slow_step: share of its own time by which every step takes longer, a fault.
        step_hook: called with the step's index, from 0, before each forward on the engine's thread; an exception it
            raises is an engine failure.
        cache_seam: what the engine uses in place of the cache it made; None for the cache itself.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        slow_step: float = 0.0,
        step_hook: Callable[[int], None] | None = None,
        cache_seam: Callable[[OutputCache], OutputCache] | None = None,
    ) -> None:
        self.config = config
        self.model = Thinker(
            config.model,
            num_slots=config.num_slots,
            max_tokens=config.max_num_batched_tokens,
            max_positions=config.max_model_len,
        )
        self._cache: OutputCache | None = None
        if config.enable_prefix_caching:
            bounds = CacheConfig.from_env(config.num_blocks, config.block_size, frozenset(ROW_KEYS), os.environ)
            cache = PrefixCache(bounds, EngineLayout(config.block_size))
            self._cache = cache if cache_seam is None else cache_seam(cache)
        self._pace = Pace(config.min_step_ms / 1000, slow_step) if config.min_step_ms or slow_step else None
        self._step_hook = step_hook
        self._scheduler = Scheduler(config)
        self._rows = RowAssembler()
        self._results: queue.Queue[StepResult | None] = queue.Queue(MAX_RESULTS_AHEAD)
        self._live: dict[str, _Live] = {}
        self._aborts: list[str] = []
        self._failure: BaseException | None = None
        self._stopping = False
        # Guards everything above; never held during a forward or a callback.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._threads: tuple[threading.Thread, ...] = ()

    def start(self) -> None:
        """Start both threads.

        Raises:
            RuntimeError: it was started or shut down before.
        """
        with self._lock:
            if self._threads or self._stopping:
                raise RuntimeError("the engine was started or shut down before")
            self._threads = (
                threading.Thread(target=self._run_steps, name="tiny-omni-engine"),
                threading.Thread(target=self._run_outputs, name="tiny-omni-outputs"),
            )
        for thread in self._threads:
            thread.start()

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; thread-safe.

        Raises:
            RequestRefused: it can never run, its id is in use, or the engine is shut down.
            EngineFailed: the engine has failed; the cause is chained.
        """
        reason = refusal(self.config, request.prompt_token_ids, request.max_tokens)
        if reason is not None:
            raise RequestRefused(f"request {request.request_id!r}: {reason}")
        entry = Request.of(request)
        if self.config.enable_prefix_caching:
            entry.extend_hashes(self.config.block_size)
        with self._wake:
            if self._failure is not None:
                raise EngineFailed(f"the engine failed: {self._failure!r}") from self._failure
            if self._stopping:
                raise RequestRefused(f"request {request.request_id!r}: the engine is shut down")
            if request.request_id in self._live:
                raise RequestRefused(f"request {request.request_id!r}: the id belongs to an unfinished request")
            self._live[request.request_id] = _Live(request)
            self._scheduler.add(entry)
            self._wake.notify()

    def abort(self, request_id: str) -> None:
        """End a request at the next step boundary; thread-safe, nothing happens when it has finished."""
        with self._wake:
            self._aborts.append(request_id)
            self._wake.notify()

    def reset_prefix_cache(self) -> bool:
        """Forget every published block; False, and nothing is done, while a request is running."""
        with self._lock:
            return self._scheduler.pool.reset()

    def stats(self) -> EngineStats:
        """A snapshot, callable from any thread and after a failure."""
        cache = self._cache.stats() if self._cache is not None else None
        with self._lock:
            scheduler = self._scheduler
            return EngineStats(
                num_running=len(scheduler.running),
                num_waiting=len(scheduler.waiting),
                kv_cache_usage=scheduler.pool.usage,
                cache=cache,
                **asdict(scheduler.counters),
            )

    @property
    def failure(self) -> BaseException | None:
        """What ended the engine, or None."""
        return self._failure

    def shutdown(self) -> None:
        """Abort what is unfinished, join both threads and close the cache. Idempotent; not for use in `on_output`."""
        with self._wake:
            self._stopping = True
            threads = self._threads
            self._wake.notify()
        for thread in threads:
            thread.join()
        if not threads:
            self._end_all()
        if self._cache is not None:
            try:
                self._cache.shutdown()
            except PrefixCacheError:
                # A failed cache says so again when closed; the engine's failure already carries it.
                if self._failure is None:
                    raise

    def _run_steps(self) -> None:
        torch.set_num_threads(self.config.num_threads)
        try:
            with torch.inference_mode():
                while (work := self._next()) is not None:
                    emissions, plan = work
                    if emissions:
                        self._results.put(StepResult(emissions))
                    if plan is not None:
                        self._results.put(self._step(plan))
        except BaseException as error:
            self._fail(error)
        finally:
            self._results.put(None)

    def _next(self) -> tuple[tuple[Emission, ...], StepPlan | None] | None:
        """Wait for work; None when there will be no more."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or self._failure or self._aborts or self._scheduler.has_work)
            if self._stopping or self._failure is not None:
                return None
            aborts, self._aborts = self._aborts, []
            emissions = (self._scheduler.abort(request_id) for request_id in aborts)
            return tuple(emission for emission in emissions if emission), self._scheduler.schedule()

    def _step(self, plan: StepPlan) -> StepResult:
        index = self._scheduler.counters.steps - 1
        ids = [chunk.request_id for chunk in plan.chunks]
        rows, computed, counts = np.array(
            [(chunk.row, chunk.computed, chunk.count) for chunk in plan.chunks], dtype=np.int64
        ).T
        batch, size = self._scheduler.batch, self.config.block_size
        tables = batch.block_table[rows]
        positions = positions_of(computed, counts)
        ends = np.cumsum(counts)
        slots = slots_of(tables, computed, len(ids) if ends[-1] == len(ids) else counts, size)
        samples = np.array([chunk.samples for chunk in plan.chunks])
        step = build_input(
            token_ids=batch.token_ids[np.repeat(rows, counts), positions],
            positions=positions,
            block_tables=tables,
            computed=computed,
            counts=counts,
            slots=slots,
            sample_rows=ends[samples] - 1,
            block_size=size,
        )
        if self._cache is not None:
            self._cache.begin_step(
                dict(zip(ids, counts.tolist(), strict=True)),
                new=[NewRequest(new.request_id, new.computed, new.blocks) for new in plan.admitted],
                finished=plan.finished,
            )
        if self._step_hook is not None:
            self._step_hook(index)
        if self._pace is not None:
            self._pace.begin()
        sampled: list[int] = self.model.forward(step).argmax(dim=-1).tolist()
        if self._pace is not None:
            self._pace.end()
        handle: StepHandle | None = None
        copies: dict[str, dict[str, torch.Tensor]] | None = None
        if self._cache is not None:
            handle = self._cache.save_step(ids, counts, slots, self.model.outputs)
        else:
            copies = self._copy_rows(plan, ends.tolist())
        with self._lock:
            emissions = self._scheduler.update(plan, sampled)
        wanted = tuple(chunk.request_id for chunk in plan.chunks if chunk.wants_rows)
        restarted = frozenset(chunk.request_id for chunk in plan.chunks if chunk.wants_rows and chunk.first)
        return StepResult(emissions, wanted, restarted, handle, copies)

    def _copy_rows(self, plan: StepPlan, ends: list[int]) -> dict[str, dict[str, torch.Tensor]]:
        spans = {
            chunk.request_id: (end - chunk.count, end)
            for chunk, end in zip(plan.chunks, ends, strict=True)
            if chunk.wants_rows
        }
        return {
            key: {request_id: buffer[start:stop].clone() for request_id, (start, stop) in spans.items()}
            for key, buffer in self.model.outputs.items()
        }

    def _run_outputs(self) -> None:
        torch.set_num_threads(self.config.num_threads)
        with torch.inference_mode():
            while (result := self._results.get()) is not None:
                if self._failure is None:
                    try:
                        self._consume(result)
                    except BaseException as error:
                        self._fail(error)
                elif self._cache is not None and result.handle is not None:
                    # The engine's thread may be waiting for room this step holds.
                    with suppress(PrefixCacheError):
                        self._cache.discard(result.handle)
                if self._failure is not None:
                    self._end_all()
            self._end_all()

    def _consume(self, result: StepResult) -> None:
        if self._cache is not None and result.handle is not None:
            if result.wanted:
                self._rows.add(result, self._cache.materialize(result.handle, result.wanted).rows)
            else:
                self._cache.discard(result.handle)
        elif result.rows is not None:
            self._rows.add(result, result.rows)
        for emission in result.emissions:
            self._emit(emission)

    def _emit(self, emission: Emission) -> None:
        live = self._live[emission.request_id]
        live.cached_tokens = emission.cached_tokens
        rows = self._rows.complete(emission.request_id) if emission.prompt_rows else None
        if emission.finish_reason is not None:
            self._rows.drop(emission.request_id)
            # Before the callback: a consumer that has its last output may reuse the id.
            with self._lock:
                del self._live[emission.request_id]
        live.request.on_output(
            EngineOutput(
                request_id=emission.request_id,
                new_token_ids=emission.new_token_ids,
                finish_reason=emission.finish_reason,
                cached_tokens=emission.cached_tokens,
                prompt_rows=rows,
            )
        )

    def _fail(self, error: BaseException) -> None:
        log.error("the engine failed", exc_info=error)
        with self._wake:
            if self._failure is None:
                self._failure = error
            self._wake.notify()

    def _end_all(self) -> None:
        """End every unfinished request: with "error" after a failure, with "abort" at shutdown."""
        with self._lock:
            ended, self._live = list(self._live.values()), {}
        failed = self._failure is not None
        reason: FinishReason = "error" if failed else "abort"
        message = f"the engine failed: {self._failure!r}" if failed else None
        for live in ended:
            output = EngineOutput(live.request.request_id, (), reason, live.cached_tokens, None, message)
            try:
                live.request.on_output(output)
            except BaseException:
                log.exception("on_output of request %r failed", live.request.request_id)
