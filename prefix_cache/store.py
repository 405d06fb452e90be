"""The host store: one mirror of the paged KV cache per key, and one presence bit per (key, slot)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prefix_cache.errors import AbsentRow
from prefix_cache.slots import Slots

_SCATTER_ROWS = 256  # up to here one scatter beats cutting the slots into runs


class _Mirror:
    """One key's rows [num_slots, *row_shape] and presence bits [num_slots]."""

    __slots__ = ("present", "rows", "touched")

    def __init__(self, num_slots: int, num_blocks: int, like: Tensor) -> None:
        # torch.empty maps pages without touching them: memory becomes resident only where rows are written.
        self.rows = torch.empty((num_slots, *like.shape[1:]), dtype=like.dtype)
        self.present: npt.NDArray[np.bool_] = np.zeros(num_slots, dtype=np.bool_)
        self.touched: npt.NDArray[np.bool_] = np.zeros(num_blocks, dtype=np.bool_)


class RowStore:
    """Rows by key and slot. Used by one thread only: the log's worker."""

    def __init__(self, num_blocks: int, block_size: int, required: frozenset[str]) -> None:
        self._num_blocks, self._block_size, self._required = num_blocks, block_size, required
        self._mirrors: dict[str, _Mirror] = {}

    def keys(self) -> tuple[str, ...]:
        return tuple(self._mirrors)

    def write(self, slots: Slots, rows: Mapping[str, Tensor]) -> None:
        """Stores `rows` [N, *row_shape] of each key at `slots` [N], and forgets every other key's rows there.

        A slot has one tenant: a key its tenant did not emit must not serve the last tenant's row.
        """
        for key, value in rows.items():
            mirror = self._mirrors.get(key)
            if mirror is None:
                mirror = _Mirror(self._num_blocks * self._block_size, self._num_blocks, value)
                self._mirrors[key] = mirror
            self._scatter(mirror.rows, slots, value)
            mirror.present[slots] = True
            mirror.touched[slots // self._block_size] = True
        for key, mirror in self._mirrors.items():
            if key not in rows:
                mirror.present[slots] = False

    def read(self, blocks: Slots, room: int) -> tuple[dict[str, Tensor], int]:
        """Gathers whole blocks of every key.

        Parameters:
            blocks: int64 [B].
            room: rows to leave free behind the gathered ones, for the caller to fill.

        Returns:
            Per key a tensor [B * block_size + room, *row_shape], and how many rows of optional keys were absent
            and read as zeros.

        Raises:
            AbsentRow: a required key has no row at one of the slots.
        """
        size, zeroed = self._block_size, 0
        for key in self._required:
            if key not in self._mirrors:
                raise AbsentRow(f"{key!r}: no row was ever written, and {len(blocks) * size} are hit")
        gathered: dict[str, Tensor] = {}
        index = torch.from_numpy(blocks)
        for key, mirror in self._mirrors.items():
            present = mirror.present.reshape(self._num_blocks, size)[blocks].reshape(-1)
            missing = present.size - int(np.count_nonzero(present))
            if missing and key in self._required:
                at = int(np.flatnonzero(~present)[0])
                slot = int(blocks[at // size]) * size + at % size
                raise AbsentRow(f"{key!r}: {missing} of {present.size} hit rows are absent, the first at slot {slot}")
            out = torch.empty((len(blocks) * size + room, *mirror.rows.shape[1:]), dtype=mirror.rows.dtype)
            hit = out[: len(blocks) * size]
            torch.index_select(mirror.rows.view(self._num_blocks, -1), 0, index, out=hit.view(len(blocks), -1))
            if missing:
                hit[torch.from_numpy(~present)] = 0
                zeroed += missing
            gathered[key] = out
        return gathered, zeroed

    def resident_bytes(self) -> dict[str, int]:
        """Bytes of the blocks ever written, by key: what the mirror costs in memory, up to page rounding."""
        return {
            key: int(np.count_nonzero(mirror.touched)) * self._block_size * mirror.rows[0].nbytes
            for key, mirror in list(self._mirrors.items())
        }

    @staticmethod
    def _scatter(table: Tensor, slots: Slots, value: Tensor) -> None:
        if len(slots) > _SCATTER_ROWS:
            cuts = np.flatnonzero(np.diff(slots) != 1) + 1
            if len(cuts) < len(slots) // 8:
                bounds = [0, *cuts.tolist(), len(slots)]
                for start, stop in pairwise(bounds):
                    slot = int(slots[start])
                    table[slot : slot + stop - start].copy_(value[start:stop])
                return
        table.index_copy_(0, torch.from_numpy(slots), value)
