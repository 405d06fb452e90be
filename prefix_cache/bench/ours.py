"""This project's cache under measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from prefix_cache import CacheConfig, NewRequest, PrefixCache, StepHandle, StepOutputs, slots_of

from .cases import KEYS, Mode, Sizes
from .engine import Engine, Step


@dataclass(frozen=True, slots=True)
class _Native:
    scheduled: dict[str, int]
    new: list[NewRequest]
    finished: list[str]
    ids: list[str]
    total: int
    rows: Mapping[str, Tensor]

    def counts(self) -> npt.NDArray[np.int64]:
        return np.fromiter(self.scheduled.values(), dtype=np.int64, count=len(self.scheduled))


class Ours:
    def __init__(self, sizes: Sizes, mode: Mode, engine: Engine) -> None:
        config = CacheConfig(
            sizes.num_blocks, sizes.block_size, required=frozenset({KEYS[0]}), threaded=mode == "threaded"
        )
        self._cache, self._engine, self._block_size = PrefixCache(config), engine, sizes.block_size

    def prepare(self, step: Step, rows: Mapping[str, Tensor]) -> _Native:
        new = [NewRequest(arrival.id, arrival.computed, arrival.blocks) for arrival in step.arrivals]
        return _Native(step.scheduled, new, step.finished, step.ids, step.total, rows)

    def begin(self, native: _Native) -> None:
        self._cache.begin_step(native.scheduled, native.new, native.finished)

    def save(self, native: _Native) -> StepHandle:
        return self._cache.save_step(native.ids, native.counts(), self.slots(native), native.rows)

    def materialize(self, handle: StepHandle, native: _Native) -> StepOutputs:
        return self._cache.materialize(handle, native.ids)

    def discard(self, handle: StepHandle) -> None:
        self._cache.discard(handle)

    def slots(self, native: _Native) -> npt.NDArray[np.int64]:
        # A runner knows the step's total: as many tokens as requests are one each.
        counts = len(native.ids) if native.total == len(native.ids) else native.counts()
        return slots_of(self._engine.table, self._engine.computed, counts, self._block_size)

    def rows(self, outputs: StepOutputs) -> dict[str, dict[str, Tensor]]:
        return {key: dict(by_request) for key, by_request in outputs.rows.items()}

    def slot_array(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return slots

    def gather_seconds(self) -> float:
        return self._cache.stats().gather_seconds_total

    def shutdown(self) -> None:
        self._cache.shutdown()
