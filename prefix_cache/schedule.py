"""What the engine said a step would compute, held against what it saves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from prefix_cache.errors import StepError
from prefix_cache.slots import Slots, outside


class Schedule:
    """The step that has begun. Used by the engine's thread only.

    A step like the one before it, decoding for the same requests, is held against what was proven of that one: few
    comparisons, because this runs in every step of a server, whether or not anything ever hits.

    Parameters:
        num_slots: of the store.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._scheduled: Mapping[str, int] | None = None
        self._previous: set[str] = set()
        self._proven: tuple[tuple[str, ...], list[int]] | None = None
        self.pure = False
        """Whether the step decodes one token for each request of the step before it, and nobody came or went."""

    def begin(
        self,
        scheduled: Mapping[str, int],
        new: Collection[object],
        finished: Collection[str],
        resumed: Collection[str],
    ) -> None:
        """Takes note of a step.

        Raises:
            StepError: the one before had tokens and was not saved.
        """
        unsaved = sum(self._scheduled.values()) if self._scheduled else 0
        if unsaved:
            raise StepError(f"begin_step: the last step computed {unsaved} tokens and was not saved")
        self._scheduled = dict(scheduled)
        self.pure = (
            not new
            and not finished
            and not resumed
            and scheduled.keys() == self._previous
            and set(scheduled.values()) == {1}
        )
        if not self.pure:
            self._previous = set(scheduled)
            self._proven = None

    def end(self, ids: Sequence[str], counts: npt.NDArray[np.integer], slots: Slots) -> list[int]:
        """The tokens of each request of `ids`.

        Raises:
            StepError: no step has begun, counts that are not those scheduled, slots outside the store.
        """
        scheduled, self._scheduled = self._scheduled, None
        if scheduled is None:
            raise StepError("save_step: no step has begun since the last save")
        planned: list[int] = counts.tolist()
        same = (tuple(ids), planned)
        if same != self._proven:
            _prove(ids, planned, len(slots), scheduled)
            if self.pure:
                self._proven = same
        elif len(slots) != len(ids):
            raise StepError(f"save_step: {len(slots)} slots for {len(ids)} tokens")
        if outside(slots, self._num_slots):
            raise StepError(f"save_step: found slots outside 0..{self._num_slots - 1}")
        return planned


def _prove(ids: Sequence[str], planned: list[int], slots: int, scheduled: Mapping[str, int]) -> None:
    if planned != [scheduled.get(request, 0) for request in ids]:
        raise StepError("save_step: the requests and their counts are not those that were scheduled")
    tokens, expected = sum(planned), sum(scheduled.values())
    if slots != tokens or tokens != expected:
        raise StepError(f"save_step: {slots} slots for {tokens} tokens, of {expected} scheduled")
    if len(set(ids)) != len(ids):
        raise StepError("save_step: a request stands twice among the step's ids")
