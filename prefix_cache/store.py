"""The host store: one mirror of the paged KV cache per key, and one presence bit per (key, slot)."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prefix_cache.errors import AbsentRow
from prefix_cache.pool import BufferPool
from prefix_cache.slots import Slots

_RUN = 16  # rows a run must have on average before copying runs beats one scatter or gather


class _Mirror:
    """One key's rows [num_slots, *row_shape] and presence bits [num_slots]."""

    __slots__ = ("present", "rows", "touched")

    def __init__(self, num_slots: int, num_blocks: int, like: Tensor) -> None:
        self.rows = _untouched(num_slots * like[0].nbytes).view(like.dtype).view(num_slots, *like.shape[1:])
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
        if not len(slots):
            return
        for key, value in rows.items():
            mirror = self._mirrors.get(key)
            if mirror is None:
                mirror = _Mirror(self._num_blocks * self._block_size, self._num_blocks, value)
                self._mirrors[key] = mirror
            _scatter(mirror.rows, slots, value)
            mirror.present[slots] = True
            mirror.touched[slots // self._block_size] = True
        for key, mirror in self._mirrors.items():
            if key not in rows:
                mirror.present[slots] = False

    def read(self, blocks: Slots, room: int, pool: BufferPool) -> tuple[dict[str, Tensor], int]:
        """Gathers whole blocks of every key.

        Parameters:
            blocks: int64 [B].
            room: rows to leave free behind the gathered ones, for the caller to fill.
            pool: where the result's memory comes from.

        Returns:
            Per key a tensor [B * block_size + room, *row_shape], and how many rows of optional keys were absent
            and read as zeros.

        Raises:
            AbsentRow: a required key has no row at one of the slots.
        """
        size, zeroed = self._block_size, 0
        hit = len(blocks) * size
        for key in self._required:
            if key not in self._mirrors:
                raise AbsentRow(f"{key!r}: no row was ever written, and {hit} are hit")
        layout = {key: (mirror.rows.shape[1:], mirror.rows.dtype) for key, mirror in self._mirrors.items()}
        gathered = pool.lease_rows(layout, hit + room)
        for key, mirror in self._mirrors.items():
            present = mirror.present.reshape(self._num_blocks, size)[blocks].reshape(-1)
            missing = hit - int(np.count_nonzero(present))
            if missing and key in self._required:
                at = int(np.flatnonzero(~present)[0])
                slot = int(blocks[at // size]) * size + at % size
                raise AbsentRow(f"{key!r}: {missing} of {hit} hit rows are absent, the first at slot {slot}")
            _gather(mirror.rows.view(self._num_blocks, -1), blocks, gathered[key][:hit].view(len(blocks), -1))
            if missing:
                gathered[key][:hit][torch.from_numpy(~present)] = 0
                zeroed += missing
        return gathered, zeroed

    def resident_bytes(self) -> dict[str, int]:
        """Bytes of the blocks ever written, by key: what the mirror costs in memory, up to page rounding."""
        return {
            key: int(np.count_nonzero(mirror.touched)) * self._block_size * mirror.rows[0].nbytes
            for key, mirror in list(self._mirrors.items())
        }


def _untouched(nbytes: int) -> Tensor:
    """uint8 [nbytes] whose pages become resident only where they are written, one small page at a time."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return torch.empty(nbytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # A huge page would make 2 MiB resident for a block of some KiB.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _scatter(table: Tensor, slots: Slots, value: Tensor) -> None:
    """`table[slots] = value`, run by run where there are few long runs."""
    runs = _runs(slots)
    if runs is None:
        # numpy copies a row in one piece; torch's scatter goes element by element.
        _whole_rows(table)[slots] = _whole_rows(value)
        return
    for start, stop in runs:
        first = int(slots[start])
        table[first : first + stop - start].copy_(value[start:stop])


def _whole_rows(rows: Tensor) -> npt.NDArray[np.void]:
    """A view with one opaque element per row, `rows` being contiguous."""
    flat = rows.reshape(len(rows), -1)
    return flat.view(torch.uint8).numpy().view(f"V{flat[0].nbytes}").reshape(-1)


def _gather(table: Tensor, indices: Slots, out: Tensor) -> None:
    """`out[:] = table[indices]`, run by run where there are few long runs."""
    runs = _runs(indices)
    if runs is None:
        torch.index_select(table, 0, torch.from_numpy(indices), out=out)
        return
    for start, stop in runs:
        first = int(indices[start])
        out[start:stop].copy_(table[first : first + stop - start])


def _runs(indices: Slots) -> list[tuple[int, int]] | None:
    """Positions of runs of consecutive indices, or None when there are too many to copy one by one."""
    cuts = np.flatnonzero(np.diff(indices) != 1) + 1
    if len(cuts) > len(indices) // _RUN:
        return None
    return list(pairwise([0, *cuts.tolist(), len(indices)]))
