"""A small paged engine for tests: it publishes block hashes at schedule time and recycles blocks at once.

The row of a token is a function of the tokens up to it, so what a request must be handed is known without any cache.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from prefix_cache import CacheConfig, NewRequest, PrefixCache, StepHandle, slots_of

WIDTH = 3


def true_row(tokens: tuple[int, ...]) -> np.ndarray:
    digest = hashlib.blake2b(bytes(tokens), digest_size=8 * WIDTH).digest()
    return np.frombuffer(digest, dtype=np.uint32)[:WIDTH].astype(np.float64)


@dataclass
class SimRequest:
    id: str
    tokens: list[int]
    prompt_len: int
    emits: bool
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


@dataclass
class Pending:
    handle: StepHandle
    expected: dict[str, dict[str, np.ndarray]]
    extra: object


class EngineSim:
    """Requests, blocks and rows; `step` runs one engine step against the cache under test."""

    def __init__(self, *, num_blocks: int, block_size: int, budget: int, threaded: bool = True, **config: int) -> None:
        self.block_size, self.budget = block_size, budget
        self.cache = PrefixCache(CacheConfig(num_blocks, block_size, threaded=threaded, wait_timeout=10.0, warm_bytes=0, **config))
        self.free = deque(range(num_blocks))
        self.refs = [0] * num_blocks
        self.key_of: dict[int, tuple[int, ...]] = {}
        self.block_of: dict[tuple[int, ...], int] = {}
        self.waiting: deque[SimRequest] = deque()
        self.running: list[SimRequest] = []
        self.gone: set[str] = set()
        self.pending: deque[Pending] = deque()
        self.buffers = {
            "hidden": torch.empty(budget + 2, WIDTH, dtype=torch.float64),
            "aux": torch.empty(budget + 2, WIDTH, dtype=torch.float64),
        }
        self.aux: dict[int, np.ndarray] = {}
        self.kept: list[tuple[torch.Tensor, np.ndarray]] = []
        self.hits = self.same_step = self.preempted = self.steps = 0

    def arrive(self, request: SimRequest) -> None:
        self.waiting.append(request)

    def finish(self, request: SimRequest) -> None:
        self.running.remove(request)
        self.gone.add(request.id)
        self._release(request)

    def preempt(self, request: SimRequest) -> None:
        self.finish(request)
        request.computed, self.preempted = 0, self.preempted + 1
        self.waiting.appendleft(request)

    def step(self) -> None:
        scheduled: dict[str, int] = {}
        new: list[NewRequest] = []
        batch: list[tuple[SimRequest, int]] = []
        left = self.budget
        for request in list(self.running):
            if request not in self.running:
                continue
            count = min(len(request.tokens) - request.computed, left)
            if count and self._allocate(request, count, batch):
                batch.append((request, count))
                left -= count
        while self.waiting and left:
            request = self.waiting[0]
            blocks = self._lookup(request)
            request.blocks, request.computed = blocks, len(blocks) * self.block_size
            for block in blocks:
                self._hold(block)
            count = min(len(request.tokens) - request.computed, left)
            if not self._allocate(request, count, None):
                self._release(request)
                request.computed = 0
                break
            self.waiting.popleft()
            self.running.append(request)
            new.append(NewRequest(request.id, request.computed, list(request.blocks)))
            batch.append((request, count))
            left -= count
        scheduled = {request.id: count for request, count in batch}
        gone, self.gone = self.gone, set()
        self.cache.begin_step(scheduled, new, gone)
        if not scheduled:
            return
        self._run(batch, {hit.id: hit.computed for hit in new if hit.computed})

    def consume(self, *, read: bool, only: int | None = None) -> None:
        if not self.pending:
            return
        item = self.pending.popleft()
        if not read:
            self.cache.discard(item.handle)
            return
        ids = list(item.expected["hidden"])[:only]
        outputs = self.cache.materialize(item.handle, ids)
        assert outputs.extra is item.extra
        assert outputs.rows.keys() == item.expected.keys()
        for key, by_id in item.expected.items():
            assert list(outputs.rows[key]) == ids
            for request in ids:
                got = outputs.rows[key][request]
                np.testing.assert_array_equal(got.numpy(), by_id[request], err_msg=f"{key} {request}")
                self.kept.append((got, by_id[request]))

    def recheck(self) -> None:
        """What was handed out earlier must not have changed since."""
        for got, expected in self.kept:
            np.testing.assert_array_equal(got.numpy(), expected)

    def _run(self, batch: list[tuple[SimRequest, int]], hit: dict[str, int]) -> None:
        self.steps += 1
        counts = np.array([count for _, count in batch], dtype=np.int64)
        computed = np.array([request.computed for request, _ in batch], dtype=np.int64)
        table = np.zeros((len(batch), max(len(request.blocks) for request, _ in batch)), dtype=np.int32)
        for row, (request, _) in enumerate(batch):
            table[row, : len(request.blocks)] = request.blocks
        slots = slots_of(table, computed, counts, self.block_size)
        prefix_aux = {
            request.id: self._aux_rows(request.blocks[: hit.get(request.id, 0) // self.block_size])
            for request, _ in batch
        }
        emits = any(request.emits for request, _ in batch)
        expected: dict[str, dict[str, np.ndarray]] = {"hidden": {}} | ({"aux": {}} if emits else {})
        at = 0
        own: dict[str, np.ndarray] = {}
        for request, count in batch:
            rows = np.stack(
                [true_row(tuple(request.tokens[: p + 1])) for p in range(request.computed, request.computed + count)]
            )
            own[request.id] = rows
            self.buffers["hidden"][at : at + count] = torch.from_numpy(rows)
            self.buffers["aux"][at : at + count] = torch.from_numpy(-rows)
            front = range(hit.get(request.id, 0))
            expected["hidden"][request.id] = np.concatenate(
                [np.array([true_row(tuple(request.tokens[: p + 1])) for p in front]).reshape(-1, WIDTH), rows]
            )
            at += count
        written = set(slots.tolist())
        for slot, row in zip(slots.tolist(), np.concatenate(list(own.values())), strict=True):
            if emits:
                self.aux[slot] = -row
            else:
                self.aux.pop(slot, None)
        for request, _ in batch:
            blocks = request.blocks[: hit.get(request.id, 0) // self.block_size]
            covered = {block * self.block_size + offset for block in blocks for offset in range(self.block_size)}
            self.hits += bool(covered)
            if covered & written:
                self.same_step += 1
                prefix_aux[request.id] = self._aux_rows(blocks)
            if emits:
                expected["aux"][request.id] = np.concatenate([prefix_aux[request.id], -own[request.id]])
        rows_in = {"hidden": self.buffers["hidden"][: at + 2]} | (
            {"aux": self.buffers["aux"][: at + 2]} if emits else {}
        )
        extra = object()
        handle = self.cache.save_step([request.id for request, _ in batch], counts, slots, rows_in, extra)
        for buffer in self.buffers.values():
            buffer.fill_(-1e300)
        self.pending.append(Pending(handle, expected, extra))
        for request, count in batch:
            request.computed += count
            if request.computed == len(request.tokens):
                request.tokens.append((sum(request.tokens) + len(request.tokens)) % 2)

    def _aux_rows(self, blocks: list[int]) -> np.ndarray:
        rows = [self.aux.get(b * self.block_size + o, np.zeros(WIDTH)) for b in blocks for o in range(self.block_size)]
        return np.array(rows).reshape(-1, WIDTH)

    def _lookup(self, request: SimRequest) -> list[int]:
        blocks = []
        for end in range(self.block_size, len(request.tokens), self.block_size):
            block = self.block_of.get(tuple(request.tokens[:end]))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _allocate(self, request: SimRequest, count: int, batch: list[tuple[SimRequest, int]] | None) -> bool:
        need = -(-(request.computed + count) // self.block_size) - len(request.blocks)
        while len(self.free) < need:
            victims = [
                r for r in self.running if r is not request and (batch is None or all(r is not b for b, _ in batch))
            ]
            if batch is None or not victims:
                if batch is not None:
                    self.preempt(request)
                return False
            self.preempt(victims[-1])
        for _ in range(need):
            block = self.free.popleft()
            key = self.key_of.pop(block, None)
            if key is not None and self.block_of.get(key) == block:
                del self.block_of[key]
            self.refs[block] = 1
            request.blocks.append(block)
        end = request.computed + count
        for index in range(end // self.block_size):
            key = tuple(request.tokens[: (index + 1) * self.block_size])
            block = request.blocks[index]
            if block not in self.key_of:
                self.key_of[block] = key
                self.block_of.setdefault(key, block)
        return True

    def _hold(self, block: int) -> None:
        if self.refs[block] == 0:
            self.free.remove(block)
        self.refs[block] += 1

    def _release(self, request: SimRequest) -> None:
        for block in reversed(request.blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)
        request.blocks = []
