"""The cache: what an engine calls, step by step."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prefix_cache.budget import Budget
from prefix_cache.config import CacheConfig
from prefix_cache.errors import AbsentRow, CacheFailed, StepError
from prefix_cache.log import OrderedLog
from prefix_cache.operations import Read, Write
from prefix_cache.slots import Slots, block_slots
from prefix_cache.staging import DecodeBuffer, FreshRows, Layout, StepRows
from prefix_cache.stats import CacheStats, Counters
from prefix_cache.store import RowStore


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request in its first step.

    Parameters:
        id: its name; a name that is still live is a continuation and no hit.
        computed: prompt tokens found in the KV cache, a multiple of the block size.
        blocks: physical blocks of the request, in order, at least those of `computed`.
    """

    id: str
    computed: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class StepHandle:
    """A saved step, to be consumed exactly once."""

    step: int


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """What one step produced, request by request.

    Parameters:
        rows: key -> request -> [hit + count, *row_shape]; the hit prefix stands in front in the request's first
            step, and only there. The tensors stay valid as long as they are held; they must not be written to.
        extra: what was passed to `save_step`, untouched.
    """

    rows: Mapping[str, Mapping[str, Tensor]]
    extra: Any


@dataclass(slots=True)
class _Hit:
    slots: Slots
    read: Read


@dataclass(frozen=True, slots=True)
class _Step:
    spans: Mapping[str, tuple[int, int]]
    source: StepRows
    hits: Mapping[str, _Hit]
    extra: Any


class PrefixCache:
    """Keeps a stage's per-token outputs on the host, in step with the engine's paged KV cache.

    The engine's thread calls `begin_step` before each forward and `save_step` after it; any thread consumes the
    handle, once, with `materialize` or `discard`. All reads and writes of the store go through one ordered log, so
    each sees exactly the writes before it.

    Every method raises CacheFailed once anything has failed, with the first error as its cause.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self._counters = Counters()
        self._store = RowStore(config.num_blocks, config.block_size, config.required)
        self._log = OrderedLog(config.max_inflight_steps, config.wait_timeout, threaded=config.threaded)
        self._budget = Budget(config.staging_bytes, config.wait_timeout)
        self._buffer = DecodeBuffer(config.block_size, config.staging_rows, self._budget)
        self._layout: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._live: set[str] = set()
        self._previous: set[str] = set()
        self._scheduled: Mapping[str, int] | None = None
        self._pure = False
        self._hits: dict[str, _Hit] = {}
        self._steps = 0
        self._stamp: npt.NDArray[np.int64] = np.zeros(config.num_slots, dtype=np.int64)
        self._open: dict[int, _Step] = {}
        self._consuming = threading.Lock()
        self._closed = False

    @torch.inference_mode()
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
            StepError: a hit that is not whole blocks, or has too few of them.
        """
        self._check()
        self._counters.steps_total += 1
        for hit in self._hits.values():
            hit.read.cancel()
        self._hits = {}
        self._scheduled = scheduled
        self._pure = (
            not new
            and not finished
            and not resumed
            and scheduled.keys() == self._previous
            and all(count == 1 for count in scheduled.values())
        )
        if self._pure:
            return
        self._previous = set(scheduled)
        self._flush()
        self._live.difference_update(finished)
        for request in new:
            if request.id in self._live:
                self._counters.continuations_total += 1
                continue
            self._live.add(request.id)
            if request.computed:
                self._hits[request.id] = self._plan_hit(request, scheduled.get(request.id, 0))

    @torch.inference_mode()
    def save_step(
        self,
        ids: Sequence[str],
        counts: npt.NDArray[np.integer],
        slots: Slots,
        rows: Mapping[str, Tensor],
        extra: Any = None,
    ) -> StepHandle:
        """Takes a step's rows out of the engine's buffers, which may be overwritten as soon as this returns.

        Parameters:
            ids: the step's requests, in the order of their tokens [R].
            counts: tokens of each [R].
            slots: int64 slot of each token [N]; see `slots_of`.
            rows: key -> [>=N, *row_shape]; what stands behind the first N (padding) is ignored.
            extra: outputs that are not per token, handed through; not copied.

        Returns:
            A handle to be consumed exactly once.

        Raises:
            StepError: no step has begun, counts that do not sum to the slots or to what was scheduled, a required
                key that is missing, rows too short or of another shape or dtype than before.
        """
        self._check()
        total = self._expect(counts, slots)
        step_rows = self._slice(rows, total)
        self._steps += 1
        source = self._stage(slots, step_rows)
        if self._hits:
            self._settle_hits(slots)
        ends = np.cumsum(counts).tolist()
        spans = dict(zip(ids, zip([0, *ends[:-1]], ends, strict=True), strict=True))
        if len(spans) != len(ids):
            raise StepError("save_step: a request stands twice among the step's ids")
        handle = StepHandle(self._steps)
        self._open[handle.step] = _Step(spans, source, self._hits, extra)
        self._hits = {}
        return handle

    @torch.inference_mode()
    def materialize(self, handle: StepHandle, ids: Sequence[str]) -> StepOutputs:
        """Consumes a step: its rows for `ids`, the hit prefix in front. Only these requests are merged.

        Raises:
            StepError: the handle was consumed before, or a request is not of that step.
            CacheTimeout: a hit was not read in time.
        """
        self._log.check()
        step = self._open.get(handle.step)
        if step is not None:
            unknown = [request for request in ids if request not in step.spans]
            if unknown:
                raise StepError(f"materialize: not in step {handle.step}: {', '.join(unknown[:8])}")
        step = self._consume(handle)
        start = time.perf_counter()
        try:
            wanted = set(ids)
            for request, hit in step.hits.items():
                if request not in wanted:
                    hit.read.cancel()
            merged = {key: self._merge(key, value, step, ids) for key, value in step.source.rows().items()}
        finally:
            step.source.release()
        with self._consuming:
            self._counters.materialized_total += 1
            self._counters.merged_bytes_total += sum(row.nbytes for by_id in merged.values() for row in by_id.values())
            self._counters.merge_seconds_total += time.perf_counter() - start
        return StepOutputs(merged, step.extra)

    def discard(self, handle: StepHandle) -> None:
        """Consumes a step nobody reads; its rows stay in the store.

        Raises:
            StepError: the handle was consumed before.
        """
        self._log.check()
        step = self._consume(handle)
        for hit in step.hits.values():
            hit.read.cancel()
        step.source.release()
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
            resident_bytes=self._store.resident_bytes(),
        )

    def shutdown(self) -> None:
        """Writes what is parked, drains the log and ends its worker. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._log.failed:
                with torch.inference_mode():
                    self._flush()
        finally:
            self._log.close()

    def _check(self) -> None:
        if self._closed:
            raise StepError("the prefix cache is shut down")
        self._log.check()

    def _plan_hit(self, request: NewRequest, count: int) -> _Hit:
        size = self.config.block_size
        whole, rest = divmod(request.computed, size)
        if rest:
            raise StepError(f"hit of {request.id!r}: {request.computed} tokens are not whole blocks of {size}")
        if len(request.blocks) < whole:
            raise StepError(
                f"hit of {request.id!r}: {request.computed} tokens need {whole} blocks, got {len(request.blocks)}"
            )
        blocks = np.asarray(request.blocks[:whole], dtype=np.int64)
        self._counters.hits_total += 1
        self._counters.hit_tokens_total += request.computed
        return _Hit(block_slots(blocks, size), self._read(blocks, count))

    def _read(self, blocks: Slots, room: int) -> Read:
        read = Read(self._store, blocks, room, self._counters)
        self._log.append(read)
        return read

    def _expect(self, counts: npt.NDArray[np.integer], slots: Slots) -> int:
        scheduled, self._scheduled = self._scheduled, None
        if scheduled is None:
            raise StepError("save_step: no step has begun since the last save")
        total, planned = int(counts.sum()), sum(scheduled.values())
        if total != len(slots) or total != planned:
            raise StepError(f"save_step: counts sum to {total}, slots are {len(slots)}, scheduled were {planned}")
        return total

    def _slice(self, rows: Mapping[str, Tensor], total: int) -> dict[str, Tensor]:
        missing = self.config.required - rows.keys()
        if missing and total:
            raise StepError(f"save_step: no rows of {', '.join(sorted(missing))}, which every token must have")
        sliced: dict[str, Tensor] = {}
        for key, value in rows.items():
            if value.ndim < 2 or value.shape[0] < total:
                raise StepError(f"save_step: {key!r} is {tuple(value.shape)}, need at least [{total}, width]")
            known = self._layout.setdefault(key, (value.shape[1:], value.dtype))
            if known != (value.shape[1:], value.dtype):
                raise StepError(
                    f"save_step: {key!r} rows are {tuple(value.shape[1:])} {value.dtype}, "
                    f"were {tuple(known[0])} {known[1]}"
                )
            sliced[key] = value[:total]
        return sliced

    def _stage(self, slots: Slots, rows: Mapping[str, Tensor]) -> StepRows:
        start = time.perf_counter()
        source: StepRows
        layout: Layout = {key: self._layout[key] for key in rows}
        if self._pure and self._buffer.takes(len(slots)):
            if not self._buffer.room_for(len(slots), layout):
                self._flush()
            source = self._buffer.park(slots, rows, layout)
            self._counters.buffered_steps_total += 1
            if self._buffer.full:
                self._flush()
        else:
            self._flush()
            nbytes = sum(value.nbytes for value in rows.values())
            ticket = self._budget.reserve(nbytes, f"a step of {len(slots)} tokens")
            copies = {key: value.to("cpu", copy=True) for key, value in rows.items()}
            source = FreshRows(copies)
            self._log.append(Write(self._store, slots, copies, ticket.release, self._counters))
        self._counters.copied_out_bytes_total += sum(value.nbytes for value in rows.values())
        self._counters.copy_out_seconds_total += time.perf_counter() - start
        return source

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
        rows = {key: tensor[: segment.used] for key, tensor in segment.tensors.items()}
        self._log.append(Write(self._store, segment.slots[: segment.used], rows, segment.written, self._counters))

    def _consume(self, handle: StepHandle) -> _Step:
        step = self._open.pop(handle.step, None)
        if step is None:
            raise StepError(f"step {handle.step} was consumed before, or never saved")
        return step

    def _merge(self, key: str, value: Tensor, step: _Step, ids: Sequence[str]) -> dict[str, Tensor]:
        whole = len(ids) == len(step.spans) and not step.hits
        if whole and step.source.reusable:
            value = value.clone()
        merged: dict[str, Tensor] = {}
        for request in ids:
            start, stop = step.spans[request]
            own = value[start:stop]
            hit = step.hits.get(request)
            if hit is not None:
                merged[request] = self._prepend(key, own, hit, request)
            else:
                merged[request] = own.clone() if step.source.reusable and not whole else own
        return merged

    def _prepend(self, key: str, own: Tensor, hit: _Hit, request: str) -> Tensor:
        out = hit.read.result(request, self.config.wait_timeout).get(key)
        prefix = len(hit.slots)
        if out is None:
            # The key was first written after the read: none of the prefix's tokens emitted it.
            if key in self.config.required:
                raise CacheFailed(f"hit of {request!r}: no {key!r} rows were stored") from AbsentRow(key)
            out = torch.zeros((prefix + len(own), *own.shape[1:]), dtype=own.dtype)
        out[prefix:] = own
        return out
