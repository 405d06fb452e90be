"""The worker and the consumer of `vllm_rows_run.py`: ours, watched, and with a fault to switch on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from prefix_cache import CacheStats
from prefix_cache.integrations.vllm import PrefixCacheWorker


@dataclass(frozen=True)
class Received:
    request_id: str
    token_ids: tuple[int, ...]
    hit_tokens: int
    rows: torch.Tensor


received: list[Received] = []


def receive(request_id: str, token_ids: Sequence[int], hit_tokens: int, rows: torch.Tensor) -> None:
    received.append(Received(request_id, tuple(token_ids), hit_tokens, rows))


def wait_for(prompts: int, seconds: float = 30.0) -> None:
    """Until the consumer, which runs on a thread of its own, has been given this many."""
    deadline = time.monotonic() + seconds
    while len(received) < prompts:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(received)} of {prompts} prompts were delivered within {seconds:g} s")
        time.sleep(0.01)


class ProbeWorker(PrefixCacheWorker):
    """Counts what the engine did to the requests, from the scheduler's outputs."""

    running: ClassVar[ProbeWorker]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        type(self).running = self
        self.begin_phase(0)

    def begin_phase(self, shift: int) -> None:
        self._shift = shift
        self._prompts: dict[str, int] = {}
        self._computed: dict[str, int] = {}
        self.chunked: set[str] = set()
        self.max_requests_in_step = self.resumed = self.restarted_hit_tokens = 0

    def cache_stats(self) -> CacheStats:
        assert self._follower is not None
        return self._follower.stats()

    def execute_model(self, scheduler_output: Any) -> Any:
        for request in scheduler_output.scheduled_new_reqs:
            self._prompts[request.req_id] = len(request.prompt_token_ids)
            self._computed[request.req_id] = request.num_computed_tokens
        cached = scheduler_output.scheduled_cached_reqs
        for request, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if request in cached.resumed_req_ids:
                self.resumed += 1
                # Preempted within its prompt, which is then owed again.
                if self._computed[request] < self._prompts[request]:
                    self.restarted_hit_tokens += computed
            self._computed[request] = computed
        scheduled = scheduler_output.num_scheduled_tokens
        for request, count in scheduled.items():
            self._computed[request] += count
            if self._computed[request] < self._prompts[request]:
                self.chunked.add(request)
        self.max_requests_in_step = max(self.max_requests_in_step, len(scheduled))
        return super().execute_model(scheduler_output)

    def step_slots(self, counts: np.ndarray | int) -> np.ndarray:
        return np.roll(super().step_slots(counts), self._shift)
