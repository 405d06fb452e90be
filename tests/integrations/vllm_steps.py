"""Scheduler outputs as vLLM 0.32 makes them, and an engine that computes rows anyone can predict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from prefix_cache import CacheConfig, PrefixCache, slots_of
from prefix_cache.integrations.vllm.consumer import Consumer
from prefix_cache.integrations.vllm.follower import StepFollower

BLOCK = 4
BLOCKS = 32
SAMPLED = 7
"""The token that every request decodes."""


def new(request: str, prompt: Sequence[int], blocks: Sequence[int], computed: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        req_id=request, prompt_token_ids=list(prompt), block_ids=(list(blocks),), num_computed_tokens=computed
    )


def step(
    scheduled: Mapping[str, int],
    new: Iterable[SimpleNamespace] = (),
    cached: Mapping[str, tuple[int, Sequence[int] | None]] | None = None,
    resumed: Iterable[str] = (),
    finished: Iterable[str] = (),
    copies: Any = None,
) -> SimpleNamespace:
    """One SchedulerOutput; `cached` gives each request's computed tokens and new blocks."""
    known = cached or {}
    return SimpleNamespace(
        scheduled_new_reqs=list(new),
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(known),
            resumed_req_ids=set(resumed),
            num_computed_tokens=[computed for computed, _ in known.values()],
            new_block_ids=[None if blocks is None else (list(blocks),) for _, blocks in known.values()],
        ),
        num_scheduled_tokens=dict(scheduled),
        finished_req_ids=set(finished),
        preempted_req_ids=None,
        kv_cache_block_copies=copies,
    )


def rows_of(tokens: Sequence[int]) -> torch.Tensor:
    """What the engine computes for tokens from position 0 on: [len(tokens), 2], the token and its position."""
    return torch.tensor([[float(token), float(at)] for at, token in enumerate(tokens)]).reshape(-1, 2)


class PagedEngine:
    """Keeps block tables from scheduler outputs as vLLM's runner does, and runs steps through a follower."""

    def __init__(self, consumer: Consumer | None, **bounds: Any) -> None:
        self.cache = PrefixCache(CacheConfig(BLOCKS, BLOCK, **bounds))
        self.follower = StepFollower(self.cache, consumer)
        self.tokens: dict[str, list[int]] = {}
        self._blocks: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}

    def run(self, output: SimpleNamespace) -> None:
        self.follower.begin(output)
        self._update(output)
        if not output.num_scheduled_tokens:
            return
        ids = list(output.num_scheduled_tokens)
        counts = np.array(list(output.num_scheduled_tokens.values()), dtype=np.int32)
        table = np.zeros((len(ids), BLOCKS), dtype=np.int32)
        for row, request in enumerate(ids):
            table[row, : len(self._blocks[request])] = self._blocks[request]
        computed = np.array([self._computed[request] for request in ids], dtype=np.int32)
        parts = [
            rows_of([*self.tokens[request], *[SAMPLED] * (at + count)][: at + count])[at:]
            for request, at, count in zip(ids, computed, counts, strict=True)
        ]
        hidden = torch.cat([*parts, torch.full((3, 2), -1.0)])  # the padding behind a step's tokens
        self.follower.save(output, ids, counts, slots_of(table, computed, counts, BLOCK), hidden)
        hidden.fill_(-2.0)  # the engine uses its buffer again

    def _update(self, output: SimpleNamespace) -> None:
        for request in output.scheduled_new_reqs:
            self.tokens[request.req_id] = list(request.prompt_token_ids)
            self._blocks[request.req_id] = list(request.block_ids[0])
            self._computed[request.req_id] = request.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for request, computed, blocks in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
            self._computed[request] = computed
            if request in cached.resumed_req_ids:
                self._blocks[request] = list(blocks[0])
            elif blocks is not None:
                self._blocks[request] += blocks[0]
