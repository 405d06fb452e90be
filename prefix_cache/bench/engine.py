"""An engine without a model: block tables, reused output buffers, and the steps of a case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .cases import KEYS, Case, Sizes

_BANK_EXTRA = 1024
_STRIDE = 13  # consecutive steps' rows start this far apart in the bank: no step repeats the one before


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request in its first step: its name, tokens found in the KV cache, physical blocks in order."""

    id: str
    computed: int
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class Step:
    """What the scheduler decided.

    Parameters:
        scheduled: tokens by request, in batch order.
        computed: tokens each had before, in the same order.
        arrivals: requests in their first step.
        finished: requests that ended since the last step.
    """

    scheduled: dict[str, int]
    computed: tuple[int, ...]
    arrivals: list[Arrival]
    finished: list[str]

    @property
    def ids(self) -> list[str]:
        return list(self.scheduled)

    @property
    def total(self) -> int:
        return sum(self.scheduled.values())


class Engine:
    """The state a runner has: a batch with a block table, and output buffers that every forward writes again.

    Parameters:
        requests: rows of the block table.
    """

    def __init__(self, sizes: Sizes, requests: int = 256) -> None:
        self.sizes = sizes
        self.table: npt.NDArray[np.int32] = np.zeros((requests, sizes.num_blocks), dtype=np.int32)
        self.computed: npt.NDArray[np.int32] = np.zeros(requests, dtype=np.int32)
        self.ids: list[str] = []
        rng = np.random.default_rng(7)
        rows = sizes.step_tokens + _BANK_EXTRA
        # Any finite bfloat16 will do; numpy's generator gives the same bits in every interpreter.
        self._bank = {
            key: torch.from_numpy(rng.integers(0, 0x7F00, (rows, sizes.width), dtype=np.int16)).view(torch.bfloat16)
            for key in KEYS
        }
        self._buffers = {key: torch.zeros(sizes.step_tokens, sizes.width, dtype=torch.bfloat16) for key in KEYS}
        self._forwards = 0

    def place(self, step: Step) -> dict[str, Tensor]:
        """Updates the batch for the step, and returns the views of the output buffers its rows will lie in."""
        self.ids = step.ids
        self.computed[: len(self.ids)] = step.computed
        at = {request: row for row, request in enumerate(self.ids)}
        for arrival in step.arrivals:
            self.table[at[arrival.id], : len(arrival.blocks)] = arrival.blocks
        total = step.total
        return {key: buffer[:total] for key, buffer in self._buffers.items()}

    def sources(self, count: int) -> dict[str, Tensor]:
        """Rows to copy, [count, width] by key: one piece of memory, as the engine's own buffers are."""
        return {key: _repeated(value, count) for key, value in self._bank.items()}

    def forward(self, rows: Mapping[str, Tensor]) -> None:
        """Writes the step's rows; which ones, only the number of forwards before decides."""
        start = self._forwards * _STRIDE % _BANK_EXTRA
        self._forwards += 1
        for key, value in rows.items():
            value.copy_(self._bank[key][start : start + len(value)])


class Schedule:
    """The steps of one case after another; the requests of the case before end with the first step of the next."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._rng = np.random.default_rng(11)
        self._live: list[str] = []
        self._named = 0

    def fill(self) -> Iterator[Step]:
        """Prefills every block, in steps as large as allowed."""
        size = self._sizes.block_size
        per_step = self._sizes.step_tokens // size
        blocks = np.arange(self._sizes.num_blocks)
        for start in range(0, len(blocks), per_step):
            part = blocks[start : start + per_step].tolist()
            yield self._arrive(1, len(part) * size, 0, [part])

    def steps(self, case: Case) -> Iterator[Step]:
        """The steps of a case, without end."""
        if case.kind == "decode":
            yield from self._decode(case.requests)
        while True:
            yield self.arrival(case)

    def arrival(self, case: Case) -> Step:
        """A step in which every request is new, on blocks picked at random."""
        each = -(-(case.hit + case.tokens) // self._sizes.block_size)
        return self._arrive(case.requests, case.tokens, case.hit, self._pick(case.requests, each))

    def arrivals_apart(self, case: Case, count: int) -> list[Step]:
        """Like `arrival`, `count` times; no block twice."""
        each = -(-(case.hit + case.tokens) // self._sizes.block_size)
        blocks = self._pick(case.requests * count, each)
        return [
            self._arrive(case.requests, case.tokens, case.hit, blocks[start : start + case.requests])
            for start in range(0, len(blocks), case.requests)
        ]

    def on_blocks(self, blocks: list[int]) -> Step:
        """A prefill that fills exactly these blocks."""
        return self._arrive(1, len(blocks) * self._sizes.block_size, 0, [blocks])

    def _decode(self, requests: int) -> Iterator[Step]:
        each = min(self._sizes.decode_blocks, self._sizes.num_blocks // requests)
        first = self._arrive(requests, 1, 0, self._pick(requests, each))
        yield first
        position, room = 0, each * self._sizes.block_size
        while True:
            position = (position + 1) % room
            yield Step(dict(first.scheduled), (position,) * requests, [], [])

    def _pick(self, requests: int, each: int) -> list[list[int]]:
        chosen = self._rng.permutation(self._sizes.num_blocks)[: requests * each]
        blocks: list[list[int]] = chosen.reshape(requests, each).tolist()
        return blocks

    def _arrive(self, requests: int, tokens: int, hit: int, blocks: list[list[int]]) -> Step:
        ids = [f"request-{self._named + index}" for index in range(requests)]
        self._named += requests
        finished, self._live = self._live, ids
        arrivals = [Arrival(request, hit, own) for request, own in zip(ids, blocks, strict=True)]
        return Step(dict.fromkeys(ids, tokens), (hit,) * requests, arrivals, finished)


def _repeated(value: Tensor, count: int) -> Tensor:
    return value.repeat(-(-count // len(value)), 1)[:count].contiguous()
