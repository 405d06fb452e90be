"""The cache: what an engine calls, step by step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prefix_cache.budget import Budget
from prefix_cache.config import CacheConfig
from prefix_cache.copier import Copier, InlineCopier
from prefix_cache.errors import StepError
from prefix_cache.inference import inference
from prefix_cache.keys import Keys
from prefix_cache.layout import EngineLayout, check_layout
from prefix_cache.lazy import LazyStep
from prefix_cache.log import OrderedLog
from prefix_cache.merge import Span, merge
from prefix_cache.operations import Read, Write
from prefix_cache.pool import BufferPool
from prefix_cache.schedule import Schedule
from prefix_cache.slots import Slots, block_slots, outside
from prefix_cache.staging import DecodeBuffer, ParkedRows, StagedRows, StepRows
from prefix_cache.stats import CacheStats, Counters
from prefix_cache.step import Hit, NewRequest, SavedStep, StepHandle, StepOutputs
from prefix_cache.store import RowStore


class PrefixCache:
    """Keeps a stage's per-token outputs on the host, in step with the engine's paged KV cache.

    The engine's thread calls `begin_step` before each forward and `save_step` after it; any thread consumes the
    handle, once, with `materialize` or `discard`. All reads and writes of the store go through one ordered log, so
    each sees exactly the writes before it.

    An error of `begin_step`, `save_step` or the log is final: what the engine has computed and what the store holds
    may differ from then on. Every later call raises CacheFailed, with that first error as its cause.

    Parameters:
        config: sizes and bounds.
        layout: facts of the engine, checked before anything is allocated.
        copier: how rows leave the engine's buffers, made with the cache's host memory; None for an engine on the CPU.
        pinned: page-locked host memory, for a copier that lands rows from a device.

    Raises:
        ConfigError: an engine that the cache cannot follow.
    """

    def __init__(
        self,
        config: CacheConfig,
        layout: EngineLayout | None = None,
        copier: Callable[[BufferPool], Copier] = InlineCopier,
        *,
        pinned: bool = False,
    ) -> None:
        if layout is not None:
            check_layout(layout, config.block_size)
        self.config = config
        self._counters = Counters()
        self._pool = BufferPool(config.retain_bytes, pinned=pinned)
        self._pool.warm(config.warm_bytes)
        self._copier = copier(self._pool)
        self._store = RowStore(config.num_blocks, config.block_size, config.required)
        self._log = OrderedLog(config.max_inflight_steps, config.wait_timeout, threaded=config.threaded)
        self._budget = Budget(config.device_bytes, config.wait_timeout)
        self._buffer = DecodeBuffer(config.block_size, config.staging_rows, self._budget, self._copier, self._pool)
        self._schedule = Schedule(config.num_slots)
        self._keys = Keys(config.required)
        self._live: set[str] = set()
        self._hits: dict[str, Hit] = {}
        self._steps = 0
        self._stamp: npt.NDArray[np.int64] = np.zeros(config.num_slots, dtype=np.int64)
        self._open: dict[int, SavedStep] = {}
        self._consuming = threading.Lock()
        self._closed = False

    @inference
    def begin_step(
        self,
        scheduled: Mapping[str, int],
        new: Sequence[NewRequest] = (),
        finished: Collection[str] = (),
        resumed: Collection[str] = (),
    ) -> None:
        """Registers a step before its forward, and starts reading what its new requests hit.

        Parameters:
            scheduled: tokens each request computes in this step.
            new: requests in their first step.
            finished: requests that ended, or were preempted and will come back as new, since the last step.
            resumed: live requests whose blocks were replaced.

        Raises:
            StepError: the last step had tokens and was not saved, or a hit is not whole blocks of the store.
        """
        self._check()
        try:
            self._begin(scheduled, new, finished, resumed)
        except BaseException as error:
            self._fail(error)
            raise

    def _begin(
        self,
        scheduled: Mapping[str, int],
        new: Sequence[NewRequest],
        finished: Collection[str],
        resumed: Collection[str],
    ) -> None:
        self._schedule.begin(scheduled, new, finished, resumed)
        self._counters.steps_total += 1
        for hit in self._hits.values():
            hit.read.cancel()
        self._hits = {}
        if self._schedule.pure:
            return
        self._flush()
        self._live.difference_update(finished)
        for request in new:
            if request.id in self._live:
                self._counters.continuations_total += 1
                continue
            if request.computed:
                self._hits[request.id] = self._plan_hit(request, scheduled.get(request.id, 0))
            self._live.add(request.id)

    @inference
    def save_step(
        self,
        ids: Sequence[str],
        counts: npt.NDArray[np.integer],
        slots: Slots,
        rows: Mapping[str, Tensor],
        extra: Any = None,
        *,
        owned: bool = False,
    ) -> StepHandle:
        """Takes a step's rows out of the engine's buffers, which may be overwritten as soon as this returns.

        Parameters:
            ids: the step's requests, in the order of their tokens [R].
            counts: tokens of each [R].
            slots: int64 slot of each token [N]; see `slots_of`.
            rows: key -> [>=N, *row_shape]; what stands behind the first N (padding) is ignored.
            extra: outputs that are not per token, handed through; not copied.
            owned: nobody will write to `rows` again: they are not copied, and the step is written by itself.

        Returns:
            A handle to be consumed exactly once.

        Raises:
            StepError: no step has begun, counts that are not those scheduled, slots outside the store, a required key
                that is missing, rows too short or of another shape or dtype than before.
        """
        self._check()
        try:
            planned = self._schedule.end(ids, counts, slots)
            staged = self._stage(slots, self._keys.take(rows, len(slots)), owned=owned)
            self._steps += 1
            if self._hits:
                self._settle_hits(slots)
            handle = StepHandle(self._steps)
            self._open[handle.step] = SavedStep(tuple(ids), planned, tuple(rows), staged, self._hits, extra)
            self._hits = {}
        except BaseException as error:
            self._fail(error)
            raise
        return handle

    def materialize(self, handle: StepHandle, ids: Sequence[str], *, lazy: bool = False) -> StepOutputs:
        """Consumes a step: its rows for `ids`, the hit prefix in front. Only these requests are merged.

        Parameters:
            lazy: merge a request when its rows are first asked for, for an engine that does not say beforehand whose
                it will read. What a merge raises is raised there.

        Raises:
            StepError: the handle was consumed before, or a request is not of that step or was given up.
            CacheTimeout: a hit was not read, or rows did not land, in time.
        """
        self._log.check()
        step = self._open.get(handle.step)
        spans = {} if step is None else step.spans()
        unknown = [request for request in ids if request not in spans or (step and request in step.given_up)]
        if step is not None and unknown:
            raise StepError(f"materialize: not in step {handle.step}: {', '.join(unknown[:8])}")
        step = self._consume(handle)
        with self._consuming:
            self._counters.materialized_total += 1
        wanted = set(ids)
        for request, hit in step.hits.items():
            if request not in wanted:
                hit.read.cancel()
        if lazy:
            merged = LazyStep(ids, step.hits, partial(self._merge, step, spans))
            return StepOutputs(merged.by_key(step.keys), step.extra)
        return StepOutputs(self._merge(step, spans, ids), step.extra)

    @inference
    def _merge(self, step: SavedStep, spans: Mapping[str, Span], ids: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        start = time.perf_counter()
        timeout = self.config.wait_timeout
        prefixes = {
            request: (len(step.hits[request].slots), step.hits[request].read.result(request, timeout))
            for request in ids
            if request in step.hits
        }
        merged = merge(step.rows, spans, ids, prefixes, self.config.required, self._pool, timeout)
        with self._consuming:
            self._counters.merged_bytes_total += merged.copied_bytes
            self._counters.merge_seconds_total += time.perf_counter() - start
        return merged.rows

    def discard(self, handle: StepHandle, ids: Collection[str] | None = None) -> None:
        """Consumes a step nobody reads; its rows stay in the store.

        Parameters:
            ids: give up only these requests' rows; the handle is not consumed.

        Raises:
            StepError: the handle was consumed before, or a request is not of that step.
        """
        self._log.check()
        if ids is not None:
            self._give_up(handle, ids)
            return
        step = self._consume(handle)
        for hit in step.hits.values():
            hit.read.cancel()
        with self._consuming:
            self._counters.discarded_total += 1

    def stats(self) -> CacheStats:
        """A snapshot of counters and gauges; callable from any thread, also after a failure."""
        return CacheStats(
            **asdict(self._counters),
            waits_total=self._log.waits + self._budget.waits,
            wait_seconds_total=self._log.wait_seconds + self._budget.wait_seconds,
            log_depth=self._log.depth(),
            log_age_seconds=self._log.age(),
            open_handles=len(self._open),
            staged_bytes=self._budget.held,
            idle_bytes=self._pool.idle_bytes,
            resident_bytes=self._store.resident_bytes(),
        )

    def shutdown(self) -> None:
        """Writes what is parked, drains the log and ends its worker. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._log.failed:
                self._drop_parked()
            else:
                with torch.inference_mode():
                    self._flush()
        finally:
            self._log.close()

    def _check(self) -> None:
        if self._closed:
            raise StepError("the prefix cache is shut down")
        self._log.check()

    def _fail(self, error: BaseException) -> None:
        self._log.fail(error)
        self._drop_parked()

    def _plan_hit(self, request: NewRequest, count: int) -> Hit:
        size = self.config.block_size
        whole, rest = divmod(request.computed, size)
        if rest or whole < 0:
            raise StepError(f"hit of {request.id!r}: {request.computed} tokens are not whole blocks of {size}")
        if len(request.blocks) < whole:
            raise StepError(
                f"hit of {request.id!r}: {request.computed} tokens need {whole} blocks, got {len(request.blocks)}"
            )
        # A copy: the engine may hand over a view of its block table.
        blocks = np.array(request.blocks[:whole], dtype=np.int64)
        if outside(blocks, self.config.num_blocks):
            raise StepError(f"hit of {request.id!r}: found block ids outside 0..{self.config.num_blocks - 1}")
        self._counters.hits_total += 1
        self._counters.hit_tokens_total += request.computed
        return Hit(block_slots(blocks, size), self._read(blocks, count))

    def _read(self, blocks: Slots, room: int) -> Read:
        read = Read(self._store, blocks, room, self._pool, self.config.wait_timeout, self._counters)
        self._log.append(read)
        return read

    def _stage(self, slots: Slots, rows: Mapping[str, Tensor], *, owned: bool) -> StagedRows:
        start = time.perf_counter()
        count, layout = len(slots), self._keys.layout
        nbytes = self._keys.bytes_of(count)
        staged: StagedRows
        if self._schedule.pure and not owned and self._buffer.takes(count):
            if not self._buffer.has_room(count, layout):
                self._flush()
            staged = self._buffer.park(slots, rows, layout)
            self._counters.buffered_steps_total += 1
            if self._buffer.full:
                self._flush()
        else:
            self._flush()
            ticket = self._budget.reserve(nbytes, f"a step of {count} tokens")
            take = StepRows.adopt if owned else StepRows.hold
            try:
                staged = take(rows, layout, count, self._copier, self._pool)
            except BaseException:
                ticket.release()
                raise
            self._log.append(Write(self._store, slots.copy(), staged, ticket, self.config.wait_timeout, self._counters))
        if not owned:
            self._counters.copied_out_bytes_total += nbytes
        self._counters.copy_out_seconds_total += time.perf_counter() - start
        return staged

    def _settle_hits(self, slots: Slots) -> None:
        self._stamp[slots] = self._steps
        for hit in self._hits.values():
            if (self._stamp[hit.slots] == self._steps).any():
                self._counters.same_step_hits_total += 1
                hit.read.cancel()
                hit.read = self._read(hit.read.blocks, hit.read.room)
            error = hit.read.finalise()
            if error is not None:
                self._log.fail(error)
                self._log.check()

    def _flush(self) -> None:
        segment = self._buffer.take()
        if segment is None:
            return
        self._counters.flushes_total += 1
        rows = ParkedRows(segment, 0, segment.used)
        slots = segment.slots[: segment.used]
        self._log.append(Write(self._store, slots, rows, segment.ticket, self.config.wait_timeout, self._counters))

    def _drop_parked(self) -> None:
        segment = self._buffer.take()
        if segment is not None:
            segment.ticket.release()

    def _consume(self, handle: StepHandle) -> SavedStep:
        step = self._open.pop(handle.step, None)
        if step is None:
            raise StepError(f"step {handle.step} was consumed before, or never saved")
        return step

    def _give_up(self, handle: StepHandle, ids: Collection[str]) -> None:
        step = self._open.get(handle.step)
        if step is None:
            raise StepError(f"step {handle.step} was consumed before, or never saved")
        unknown = set(ids) - set(step.ids)
        if unknown:
            raise StepError(f"discard: not in step {handle.step}: {', '.join(sorted(unknown)[:8])}")
        step.given_up.update(ids)
        for request in ids:
            if request in step.hits:
                step.hits[request].read.cancel()
