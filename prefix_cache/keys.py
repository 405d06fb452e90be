"""The keys a stage emits: each one's rows keep their shape and dtype for good."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from prefix_cache.errors import StepError
from prefix_cache.pool import Layout, row_bytes


class Keys:
    """Learns the keys from the steps that bring them. Used by the engine's thread only.

    Parameters:
        required: keys of which every token has a row.
    """

    def __init__(self, required: frozenset[str]) -> None:
        self._required = required
        self._known: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._names: tuple[str, ...] = ()
        self._bytes = (0, 1)
        self.layout: Layout = {}
        """Of the rows taken last."""

    def take(self, rows: Mapping[str, Tensor], total: int) -> dict[str, Tensor]:
        """The first `total` rows of every key.

        Parameters:
            rows: key -> [>=total, *row_shape].

        Raises:
            StepError: a required key is missing, rows too short or of another shape or dtype than before.
        """
        if self._required and total and not self._required <= rows.keys():
            missing = ", ".join(sorted(self._required - rows.keys()))
            raise StepError(f"save_step: no rows of {missing}, which every token must have")
        if tuple(rows) != self._names:
            self._learn(rows, total)
        taken: dict[str, Tensor] = {}
        for key, value in rows.items():
            shape, dtype = self.layout[key]
            found = value.shape
            if found[1:] != shape or value.dtype is not dtype or found[0] < total:
                self._check(key, value, total)
            taken[key] = value[:total]
        return taken

    def bytes_of(self, count: int) -> int:
        """Bytes that `count` rows of the keys taken last need; see `row_bytes`."""
        if self._bytes[0] != count:
            self._bytes = (count, row_bytes(self.layout, count))
        return self._bytes[1]

    def _learn(self, rows: Mapping[str, Tensor], total: int) -> None:
        for key, value in rows.items():
            self._check(key, value, total)
        self.layout = {key: self._known[key] for key in rows}
        self._names, self._bytes = tuple(rows), (0, 1)

    def _check(self, key: str, value: Tensor, total: int) -> None:
        if value.ndim < 2 or value.shape[0] < total or 0 in value.shape[1:]:
            raise StepError(f"save_step: {key!r} is {tuple(value.shape)}, need at least [{total}, width]")
        shape, dtype = self._known.setdefault(key, (value.shape[1:], value.dtype))
        if (shape, dtype) != (value.shape[1:], value.dtype):
            raise StepError(
                f"save_step: {key!r} rows are {tuple(value.shape[1:])} {value.dtype}, were {tuple(shape)} {dtype}"
            )
