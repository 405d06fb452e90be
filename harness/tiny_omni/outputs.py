"""From step results to what consumers get: prompt rows assembled over a prompt's steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from harness.tiny_omni.scheduler import Emission
from prefix_cache import CacheStats, NewRequest, StepHandle, StepOutputs

Rows = Mapping[str, Mapping[str, torch.Tensor]]
"""Output key -> request -> float32 [tokens, H]."""


class OutputCache(Protocol):
    """What the engine asks of the cache of its per-token outputs: calls of `prefix_cache.PrefixCache`."""

    def begin_step(
        self, scheduled: Mapping[str, int], new: Sequence[NewRequest] = (), finished: Collection[str] = ()
    ) -> None: ...

    def save_step(
        self,
        ids: Sequence[str],
        counts: npt.NDArray[np.integer],
        slots: npt.NDArray[np.int64],
        rows: Mapping[str, torch.Tensor],
    ) -> StepHandle: ...

    def materialize(self, handle: StepHandle, ids: Sequence[str]) -> StepOutputs: ...

    def discard(self, handle: StepHandle) -> None: ...

    def stats(self) -> CacheStats: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the output thread gets of one step, or of aborts between two steps.

    Parameters:
        emissions: what the requests' consumers are told.
        wanted: requests whose prompt rows of this step are wanted.
        restarted: those of `wanted` whose rows begin with this step.
        handle: the output cache's handle, to be consumed; None with caching off.
        rows: the wanted rows, copied out of the model's buffers; None with caching on.
    """

    emissions: tuple[Emission, ...]
    wanted: tuple[str, ...] = ()
    restarted: frozenset[str] = frozenset()
    handle: StepHandle | None = None
    rows: Rows | None = None


class RowAssembler:
    """Collects prompt rows, step by step, until a prompt is complete."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[dict[str, torch.Tensor]]] = {}

    def __len__(self) -> int:
        """Prompts begun and neither completed nor dropped."""
        return len(self._pieces)

    def add(self, result: StepResult, rows: Rows) -> None:
        """Append one step's rows; a restarted request loses what it had."""
        for request_id in result.wanted:
            if request_id in result.restarted:
                self._pieces[request_id] = []
            piece = {key: by_request[request_id] for key, by_request in rows.items()}
            self._pieces[request_id].append(piece)

    def complete(self, request_id: str) -> dict[str, torch.Tensor]:
        """Hand over the whole prompt's rows, per key [prompt_len, H]."""
        pieces = self._pieces.pop(request_id)
        if len(pieces) == 1:
            return pieces[0]
        return {key: torch.cat([piece[key] for piece in pieces]) for key in pieces[0]}

    def drop(self, request_id: str) -> None:
        """Forget a request, if there is anything of it."""
        self._pieces.pop(request_id, None)
