"""Faults of a cache of rows, between the engine and a cache that has none: only what hits is wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from harness.tiny_omni.faults import Faults
from harness.tiny_omni.outputs import OutputCache
from prefix_cache import CacheStats, NewRequest, StepHandle, StepOutputs

Prefix = Mapping[str, torch.Tensor]
"""Key -> the rows of one hit [hit, H]."""


class WrongRows:
    """Calls a cache and spoils the prefix of every request that hit.

    Parameters:
        change: the right prefix to the one handed out, of the same shapes; it may not write to what it gets.
        cache: does all the work.
    """

    def __init__(self, change: Callable[[Prefix], Prefix], cache: OutputCache) -> None:
        self._change, self._cache = change, cache
        self._hits: dict[str, int] = {}
        self._saved: dict[int, dict[str, int]] = {}

    def begin_step(
        self, scheduled: Mapping[str, int], new: Sequence[NewRequest] = (), finished: Collection[str] = ()
    ) -> None:
        self._hits = {request.id: request.computed for request in new if request.computed}
        self._cache.begin_step(scheduled, new=new, finished=finished)

    def save_step(
        self,
        ids: Sequence[str],
        counts: npt.NDArray[np.integer],
        slots: npt.NDArray[np.int64],
        rows: Mapping[str, torch.Tensor],
    ) -> StepHandle:
        handle = self._cache.save_step(ids, counts, slots, rows)
        if self._hits:
            self._saved[handle.step] = self._hits
        return handle

    def materialize(self, handle: StepHandle, ids: Sequence[str]) -> StepOutputs:
        outputs = self._cache.materialize(handle, ids)
        hits = self._saved.pop(handle.step, {})
        rows = {key: dict(by_request) for key, by_request in outputs.rows.items()}
        for request in (request for request in ids if request in hits):
            wrong = self._change({key: by_request[request][: hits[request]] for key, by_request in rows.items()})
            for key, by_request in rows.items():
                by_request[request] = torch.cat([wrong[key], by_request[request][hits[request] :]])
        return replace(outputs, rows=rows)

    def discard(self, handle: StepHandle) -> None:
        self._saved.pop(handle.step, None)
        self._cache.discard(handle)

    def stats(self) -> CacheStats:
        return self._cache.stats()

    def shutdown(self) -> None:
        self._cache.shutdown()


def shift(prefix: Prefix) -> Prefix:
    """Each row is that of the slot after it, the last one that of the first."""
    return {key: rows.roll(-1, dims=0) for key, rows in prefix.items()}


class Swap:
    """A hit gets the prefix last handed out for a request with another one, as far as that one goes.

    The first prefix ever is handed out as it is: there is no other.
    """

    def __init__(self) -> None:
        self._known: list[Prefix] = []

    def __call__(self, prefix: Prefix) -> Prefix:
        others = [known for known in self._known if not _alike(known, prefix)]
        # Two are enough: one of them is another than whatever comes next.
        self._known = [*others[-1:], prefix]
        if not others:
            return prefix
        return {
            key: torch.cat([others[-1][key][: len(rows)], rows[len(others[-1][key]) :]]) for key, rows in prefix.items()
        }


def _alike(one: Prefix, other: Prefix) -> bool:
    """Whether the shorter prefix opens the longer, rounding of another batch aside."""

    def same(rows: torch.Tensor, others: torch.Tensor) -> bool:
        common = min(len(rows), len(others))
        return torch.allclose(rows[:common], others[:common], rtol=1e-3, atol=1e-3)

    return all(same(rows, other[key]) for key, rows in one.items())


def row_faults(faults: Faults) -> Callable[[OutputCache], OutputCache] | None:
    """The seam these faults need between an engine and its cache, if any."""
    changes: list[Callable[[Prefix], Prefix]] = []
    if faults.rows_swap:
        changes.append(Swap())
    if faults.rows_shift:
        changes.append(shift)
    if not changes:
        return None
    return partial(WrongRows, partial(_in_turn, tuple(changes)))


def _in_turn(changes: Sequence[Callable[[Prefix], Prefix]], prefix: Prefix) -> Prefix:
    for change in changes:
        prefix = change(prefix)
    return prefix
