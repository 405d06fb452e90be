"""One step, from its requests to its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor

from prefix_cache.operations import Read
from prefix_cache.slots import Slots
from prefix_cache.staging import StagedRows


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
class Hit:
    """What a new request hits: its slots, and the read that gathers their rows."""

    slots: Slots
    read: Read


@dataclass(slots=True)
class SavedStep:
    """A step between its save and its consumption. Holds nothing that the engine may still change."""

    ids: tuple[str, ...]
    counts: list[int]
    keys: tuple[str, ...]
    rows: StagedRows
    hits: Mapping[str, Hit]
    extra: Any
    given_up: set[str] = field(default_factory=set)

    def spans(self) -> dict[str, tuple[int, int]]:
        """First and last-plus-one row of each request."""
        return dict(zip(self.ids, pairwise(accumulate(self.counts, initial=0)), strict=True))
