"""A cache under measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from .cases import Mode, Sizes
from .engine import Engine, Step


class Subject(Protocol):
    """One cache behind the calls a runner makes. `prepare` is not timed; everything else is.

    Whatever a cache's `save` needs and a runner does not have anyway, such as the slots, is computed inside it.
    """

    def prepare(self, step: Step, rows: Mapping[str, Tensor]) -> Any:
        """The step in the cache's own words; it is what the other calls are given."""

    def begin(self, native: Any) -> None: ...

    def save(self, native: Any) -> Any:
        """Returns the handle."""

    def materialize(self, handle: Any, native: Any) -> Any: ...

    def discard(self, handle: Any) -> None: ...

    def slots(self, native: Any) -> Any:
        """The slot mapping alone."""

    def rows(self, outputs: Any) -> dict[str, dict[str, Tensor]]:
        """What `materialize` returned, by key and request."""

    def slot_array(self, slots: Any) -> npt.NDArray[np.int64]: ...

    def gather_seconds(self) -> float | None:
        """Time spent so far in gathering hits, where the cache counts it."""

    def shutdown(self) -> None: ...


class SubjectFactory(Protocol):
    def __call__(self, sizes: Sizes, mode: Mode, engine: Engine) -> Subject: ...
