"""An engine around the cache under test: it computes rows, reuses its buffers and checks every row it is handed."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import torch
from delayed_copier import DelayedCopier, Lateness
from paged_scheduler import PagedScheduler, Plan, SimRequest
from row_oracle import AUX, CODE, HIDDEN, KEYS, NaiveStore, hidden_rows, stamped_rows

from prefix_cache import CacheConfig, PrefixCache, StepHandle, slots_of
from prefix_cache.copier import Copier, CudaCopier, InlineCopier
from prefix_cache.pool import BufferPool

_PADDING = 3
_KEPT = 3000
_SCRIBBLE = -77


class Path(Enum):
    """How rows leave the engine, and who writes them to the store."""

    INLINE = "inline"
    THREADED = "threaded"
    DELAYED = "delayed"
    CUDA = "cuda"


@dataclass(frozen=True)
class SimConfig:
    """The engine's sizes and habits, and the cache's bounds."""

    path: Path
    num_blocks: int = 14
    block_size: int = 2
    budget: int = 12
    lifo: bool = False
    hidden_required: bool = True
    lateness: Lateness = Lateness.SOON
    delay: float = 5e-4
    staging_rows: int = 4
    device_bytes: int = 1 << 20
    max_inflight_steps: int = 8
    retain_bytes: int = 1 << 20
    wait_timeout: float = 20.0
    seed: int = 0


@dataclass(frozen=True)
class Habits:
    """What one step does besides computing: all of it may change from step to step."""

    budget: int = 12
    padding: int = 0
    owned: bool = False
    code: bool = False
    hidden: bool = True


@dataclass
class Pending:
    """A saved step nobody has consumed, and what it must hand out: key -> request -> rows."""

    handle: StepHandle
    ids: tuple[str, ...]
    expected: dict[str, dict[str, np.ndarray]]
    extra: object
    given_up: set[str] = field(default_factory=set)

    @property
    def readable(self) -> list[str]:
        return [request for request in self.ids if request not in self.given_up]


class EngineSim:
    """One engine step after the other against a cache; `seen` counts the hard cases that were reached."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.copier: Copier | None = None
        self.cache = PrefixCache(
            CacheConfig(
                config.num_blocks,
                config.block_size,
                required=frozenset({HIDDEN.name}) if config.hidden_required else frozenset(),
                staging_rows=config.staging_rows,
                device_bytes=config.device_bytes,
                warm_bytes=0,
                retain_bytes=config.retain_bytes,
                max_inflight_steps=config.max_inflight_steps,
                wait_timeout=config.wait_timeout,
                threaded=config.path is not Path.INLINE,
            ),
            copier=self._make_copier,
            pinned=config.path is Path.CUDA,
        )
        self.scheduler = PagedScheduler(config.num_blocks, config.block_size, lifo=config.lifo)
        self.naive = NaiveStore()
        self.pending: list[Pending] = []
        self.seen: Counter[str] = Counter()
        self._device = torch.device("cuda" if config.path is Path.CUDA else "cpu")
        self._buffers = {name: self._engine_buffer(name) for name in KEYS}
        self._stamp = 0
        self._last_keys: frozenset[str] | None = None
        self._kept: deque[tuple[torch.Tensor, np.ndarray]] = deque()
        self._keeping = threading.Lock()
        self._consumers = ThreadPoolExecutor(2, "consumer")
        self._reading: deque[Future[None]] = deque()

    @torch.inference_mode()
    def step(self, habits: Habits) -> None:
        """One engine step: schedule, begin, forward, save; and at once the engine goes on to spoil its buffers.

        Rows are inference tensors, as an engine's are; whoever consumes them need not be in that mode.
        """
        plan = self.scheduler.schedule(min(habits.budget, self.config.budget))
        self._begin(plan)
        if not plan.batch:
            self.seen["steps without a save"] += 1
            return
        self.seen["steps"] += 1
        self._save(plan, habits)
        self.scheduler.computed(plan)

    def announce(self) -> None:
        """A step without tokens, which may admit a request: what it hits is dropped with the step."""
        plan = self.scheduler.announce()
        self._begin(plan)
        self.seen["steps without a save"] += 1
        self.seen["hits of steps without a save"] += len(plan.hits)

    def consume(self, index: int, ids: Sequence[str], *, on_thread: bool = False) -> None:
        """Materializes `ids` of a pending step, here or on a thread beside the engine, and checks every row."""
        self._count_consumption(index)
        item = self.pending.pop(index)
        self.seen["subsets"] += len(ids) < len(item.ids)
        if not on_thread:
            self.read(item, ids)
            return
        self.seen["reads on another thread"] += 1
        self._reading.append(self._consumers.submit(self.read, item, ids))
        while len(self._reading) > 4:
            self._reading.popleft().result(60)

    def discard(self, index: int) -> None:
        self._count_consumption(index)
        self.cache.discard(self.pending.pop(index).handle)
        self.seen["discards"] += 1

    def give_up(self, index: int, ids: Collection[str]) -> None:
        """Discards single requests of a pending step."""
        item = self.pending[index]
        self.cache.discard(item.handle, ids)
        item.given_up.update(ids)
        self.seen["requests given up"] += len(ids)

    @property
    def reading(self) -> int:
        """Steps handed to a thread beside the engine whose reads were not yet looked at."""
        return len(self._reading)

    def read(self, item: Pending, ids: Sequence[str]) -> None:
        """Materializes a step and compares every row with what it must be; for any thread."""
        outputs = self.cache.materialize(item.handle, ids)
        assert outputs.extra is item.extra
        assert outputs.rows.keys() == item.expected.keys()
        for name, by_id in item.expected.items():
            assert set(outputs.rows[name]) == set(ids)
            for request in ids:
                got, expected = outputs.rows[name][request], by_id[request]
                if got.shape != expected.shape or not np.array_equal(got.numpy(), expected):
                    raise AssertionError(f"{name} of {request}: got\n{got}\nexpected\n{expected}")
                # Two thirds are let go of, so that their memory is used again.
                if item.handle.step % 3 == 0:
                    self._keep(got, expected)

    def settle(self) -> None:
        """Waits for the threads beside the engine; whatever they found wrong is raised here."""
        while self._reading:
            self._reading.popleft().result(60)

    def recheck(self) -> None:
        """What was handed out earlier has not changed since."""
        for got, expected in list(self._kept):
            assert np.array_equal(got.numpy(), expected), "rows handed out earlier have changed"

    def finish(self) -> None:
        """Reads what is pending, shuts the cache down and checks that nothing is left over."""
        while self.pending:
            self.consume(0, self.pending[0].readable)
        self.settle()
        self.cache.shutdown()
        self.recheck()
        stats = self.cache.stats()
        assert (stats.log_depth, stats.staged_bytes, stats.open_handles) == (0, 0, 0)
        assert stats.hits_total == self.seen["hits"]
        assert stats.same_step_hits_total == self.seen["same-step hits"]
        assert stats.continuations_total == self.seen["continuations"]
        self.seen["buffered steps"] = stats.buffered_steps_total
        self.seen["flushes"] = stats.flushes_total
        self.seen["waits of the engine"] = stats.waits_total
        self.seen["preemptions"] = self.scheduler.preempted
        self.close()

    def close(self) -> None:
        """Ends every thread, whatever happened before."""
        self._consumers.shutdown(cancel_futures=True)
        self.cache.shutdown()
        if isinstance(self.copier, DelayedCopier):
            self.copier.close()
            assert not self.copier.violations, self.copier.violations

    def _make_copier(self, pool: BufferPool) -> Copier:
        if self.config.path is Path.DELAYED:
            self.copier = DelayedCopier(pool, self.config.lateness, seed=self.config.seed, delay=self.config.delay)
            return self.copier
        if self.config.path is Path.CUDA:
            self.copier = CudaCopier(torch.device("cuda"))
            return self.copier
        return InlineCopier(pool)

    @torch.inference_mode()
    def _engine_buffer(self, name: str) -> torch.Tensor:
        """A buffer the engine reuses every step; half of one twice as wide, so that its rows do not touch."""
        key = KEYS[name]
        dtype = getattr(torch, key.dtype)
        wide = torch.empty(self.config.budget + _PADDING, 2 * key.shape[0], *key.shape[1:], dtype=dtype)
        return wide.to(self._device)[:, : key.shape[0]]

    def _begin(self, plan: Plan) -> None:
        self.seen["hits"] += len(plan.hits)
        self.seen["resumes"] += len(plan.resumed)
        self.seen["continuations"] += len(plan.continued)
        self.seen["finished and new at once"] += len(plan.finished & {new.id for new in plan.new})
        self.cache.begin_step(plan.scheduled, plan.new, plan.finished, plan.resumed)

    def _save(self, plan: Plan, habits: Habits) -> None:
        ids = [request.id for request, _ in plan.batch]
        counts = np.array([count for _, count in plan.batch], dtype=np.int64)
        computed = np.array([request.computed for request, _ in plan.batch], dtype=np.int64)
        table = np.zeros((len(ids), max(len(request.blocks) for request, _ in plan.batch)), dtype=np.int32)
        for row, (request, _) in enumerate(plan.batch):
            table[row, : len(request.blocks)] = request.blocks
        slots = slots_of(table, computed, counts, self.config.block_size)
        rows = self._compute(plan, habits)
        self._note_keys(rows)
        written = [
            self._slot(request, position)
            for request, count in plan.batch
            for position in range(request.computed, request.computed + count)
        ]
        self.naive.write(written, rows)
        expected = self._expect(plan, set(written), rows)
        extra = object()
        given = {name: self._emit(name, value, habits) for name, value in rows.items()}
        self.seen["owned steps"] += habits.owned
        self.seen["padded steps"] += habits.padding > 0
        handle = self.cache.save_step(ids, counts, slots, given, extra, owned=habits.owned)
        self.pending.append(Pending(handle, tuple(ids), expected, extra))
        for buffer in self._buffers.values():
            buffer.fill_(_SCRIBBLE)
        ids[:] = ["another tenant"] * len(ids)
        counts.fill(0)
        slots.fill(0)

    def _slot(self, request: SimRequest, position: int) -> int:
        block, offset = divmod(position, self.config.block_size)
        return request.blocks[block] * self.config.block_size + offset

    def _compute(self, plan: Plan, habits: Habits) -> dict[str, np.ndarray]:
        total = sum(plan.scheduled.values())
        rows: dict[str, np.ndarray] = {}
        if habits.hidden or self.config.hidden_required:
            states = [
                state
                for request, count in plan.batch
                for state in request.states[request.computed : request.computed + count]
            ]
            rows[HIDDEN.name] = hidden_rows(states)
        if any(request.emits for request, _ in plan.batch):
            rows[AUX.name] = stamped_rows(AUX, self._stamp, total)
        if habits.code:
            rows[CODE.name] = stamped_rows(CODE, self._stamp, total)
        self._stamp += total
        return rows

    def _expect(self, plan: Plan, written: set[int], rows: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
        ends = np.cumsum([count for _, count in plan.batch]).tolist()
        expected: dict[str, dict[str, np.ndarray]] = {name: {} for name in rows}
        zeroed = self.naive.zeroed
        for (request, count), end in zip(plan.batch, ends, strict=True):
            hit = plan.hits.get(request.id, 0)
            covered = [self._slot(request, position) for position in range(hit)]
            self.seen["same-step hits"] += not written.isdisjoint(covered)
            for name, value in rows.items():
                required = name == HIDDEN.name and self.config.hidden_required
                front = self.naive.read(name, covered, required=required)
                if required:
                    assert np.array_equal(front, hidden_rows(request.states[:hit])), "the simulated engine is wrong"
                expected[name][request.id] = np.concatenate([front, value[end - count : end]])
        self.seen["optional rows read as zeros"] += self.naive.zeroed - zeroed
        return expected

    def _emit(self, name: str, value: np.ndarray, habits: Habits) -> torch.Tensor:
        total, padded = len(value), len(value) + habits.padding
        if habits.owned:
            tensor = torch.empty_strided(
                (padded, *value.shape[1:]),
                self._buffers[name].stride(),
                dtype=self._buffers[name].dtype,
                device=self._device,
            ).fill_(_SCRIBBLE)
        else:
            tensor = self._buffers[name][:padded]
        tensor[:total] = torch.from_numpy(value)
        return tensor

    def _note_keys(self, rows: Collection[str]) -> None:
        keys = frozenset(rows)
        self.seen["key-set changes"] += self._last_keys is not None and keys != self._last_keys
        self._last_keys = keys

    def _count_consumption(self, index: int) -> None:
        self.seen["out of order"] += index > 0
        self.seen["late"] += len(self.pending) - index > 1

    def _keep(self, got: torch.Tensor, expected: np.ndarray) -> None:
        with self._keeping:
            self._kept.append((got, expected))
            if len(self._kept) <= _KEPT:
                return
            self.recheck()
            while len(self._kept) > _KEPT // 2:
                self._kept.popleft()
