"""Prompts whose rows are owed to a consumer, and how they come together over the steps of a chunked prefill."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from prefix_cache.errors import StepError
from prefix_cache.integrations.vllm.schedule import SchedulerOutput


@dataclass(slots=True)
class Prompt:
    """One prompt on its way. The engine's thread counts what is missing; only the delivery touches the pieces.

    Parameters:
        hit_tokens: rows that the first piece has in front because they were hit.
        missing: rows that no step has computed yet.
    """

    request_id: str
    token_ids: Sequence[int]
    hit_tokens: int
    missing: int
    pieces: list[Tensor] = field(default_factory=list)

    def rows(self) -> Tensor:
        """[P, hidden_size], of a prompt that is complete."""
        return self.pieces[0] if len(self.pieces) == 1 else torch.cat(self.pieces)


@dataclass(frozen=True, slots=True)
class Piece:
    """A step's part of a prompt; with the last one the prompt is complete."""

    prompt: Prompt
    last: bool


class OwedPrompts:
    """Which requests' prompt rows the consumer has not been given yet. Used by the engine's thread only."""

    def __init__(self) -> None:
        self._prompts: dict[str, Prompt] = {}
        self._live: set[str] = set()

    def ids(self) -> Collection[str]:
        return self._prompts.keys()

    def follow(self, step: SchedulerOutput) -> None:
        """Takes in a step before its forward: who came, who ended, whose prefill starts over.

        Raises:
            StepError: a request's prompt is extended (a streaming session), whose earlier rows are not kept.
        """
        self._live -= step.finished_req_ids
        for request in step.finished_req_ids:
            self._prompts.pop(request, None)
        cached = step.scheduled_cached_reqs
        if cached.resumed_req_ids and self._prompts:
            computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            for request in cached.resumed_req_ids & self._prompts.keys():
                # The old object's pieces may still be on their way; they end with it.
                self._start(request, self._prompts[request].token_ids, computed[request])
        for new in step.scheduled_new_reqs:
            if new.req_id in self._live:
                raise StepError(f"{new.req_id!r}: a streaming session's prompt grows, and no consumer can be given it")
            self._live.add(new.req_id)
            self._start(new.req_id, new.prompt_token_ids, new.num_computed_tokens)

    def take(self, scheduled: Mapping[str, int]) -> list[Piece]:
        """The parts of owed prompts that a step has computed; a prompt is owed no longer after its last."""
        if not self._prompts:
            return []
        pieces = []
        for request in [request for request in self._prompts if request in scheduled]:
            prompt = self._prompts[request]
            prompt.missing -= scheduled[request]
            if prompt.missing < 0:
                raise StepError(f"{request!r}: a step went {-prompt.missing} tokens past the end of the prompt")
            pieces.append(Piece(prompt, last=prompt.missing == 0))
            if prompt.missing == 0:
                del self._prompts[request]
        return pieces

    def _start(self, request: str, token_ids: Sequence[int], computed: int) -> None:
        self._prompts[request] = Prompt(request, token_ids, computed, len(token_ids) - computed)
