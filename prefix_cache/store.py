"""The host store: one mirror of the paged KV cache per key, and a word per slot with a presence bit per key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prefix_cache.errors import AbsentRow, StepError
from prefix_cache.gather import Gather
from prefix_cache.pages import lazy_pages
from prefix_cache.pool import BufferPool
from prefix_cache.slots import Slots

_MAX_KEYS = 64
_RUN = 16  # rows a run must have on average before copying runs beats one scatter
_PIECE = 4 << 20
_Runs = list[tuple[int, int]]


class _Mirror:
    """One key's rows [num_slots, *row_shape], and the bit that stands for the key."""

    __slots__ = ("bit", "rows")

    def __init__(self, num_slots: int, bit: int, like: Tensor) -> None:
        memory = lazy_pages(num_slots * like[0].nbytes, huge=False)
        self.rows = memory.view(like.dtype).view(num_slots, *like.shape[1:])
        self.bit = np.uint64(1 << bit)


class RowStore:
    """Rows by key and slot. Used by one thread only: the log's worker."""

    def __init__(self, num_blocks: int, block_size: int, required: frozenset[str]) -> None:
        self._block_size, self._required = block_size, required
        self._mirrors: dict[str, _Mirror] = {}
        # Bits of the keys that have a row: now, in each slot; ever, in each block.
        self._present: npt.NDArray[np.uint64] = np.zeros((num_blocks, block_size), dtype=np.uint64)
        self._touched: npt.NDArray[np.uint64] = np.zeros(num_blocks, dtype=np.uint64)

    def keys(self) -> tuple[str, ...]:
        return tuple(self._mirrors)

    def write(self, slots: Slots, rows: Mapping[str, Tensor]) -> None:
        """Stores `rows` [N, *row_shape] of each key at `slots` [N], and forgets every other key's rows there.

        A slot has one tenant: a key its tenant did not emit must not serve the last tenant's row.

        Raises:
            StepError: more keys than bits.
        """
        if not len(slots):
            return
        runs, bits = _runs(slots), np.uint64(0)
        for key, value in rows.items():
            mirror = self._mirrors.get(key) or self._add(key, value)
            _scatter(mirror.rows, slots, runs, value)
            bits |= mirror.bit
        self._present.reshape(-1)[slots] = bits
        self._touched[slots // self._block_size] |= bits

    def read(self, blocks: Slots, room: int, pool: BufferPool) -> Gather:
        """Starts gathering whole blocks of every key; nothing may be written before that is finished.

        Parameters:
            blocks: int64 [B], all of them inside the store.
            room: rows to leave free behind the gathered ones, for the caller to fill.
            pool: where the result's memory comes from.

        Returns:
            What will be, once finished, a tensor [B * block_size + room, *row_shape] per key. Absent rows of
            optional keys read as zeros.

        Raises:
            AbsentRow: a required key has no row at one of the slots.
        """
        hit = len(blocks) * self._block_size
        for key in self._required:
            if key not in self._mirrors:
                raise AbsentRow(f"{key!r}: no row was ever written, and {hit} are hit")
        present = self._present[blocks].reshape(-1)
        absent = {key: np.flatnonzero(present & mirror.bit == 0) for key, mirror in self._mirrors.items()}
        for key in self._required:
            if len(absent[key]):
                block, offset = divmod(int(absent[key][0]), self._block_size)
                slot = int(blocks[block]) * self._block_size + offset
                raise AbsentRow(f"{key!r}: {len(absent[key])} of {hit} hit rows are absent, the first at slot {slot}")
        layout = {key: (mirror.rows.shape[1:], mirror.rows.dtype) for key, mirror in self._mirrors.items()}
        gathered = pool.lease_rows(layout, hit + room)
        pieces: list[Callable[[], None]] = []
        for key, mirror in self._mirrors.items():
            pieces += _takes(mirror.rows.view(len(self._touched), -1), blocks, gathered[key][:hit])
        return Gather(gathered, {key: at for key, at in absent.items() if len(at)}, pieces)

    def resident_bytes(self) -> dict[str, int]:
        """Bytes of the blocks ever written, by key: what the mirror costs in memory, up to page rounding."""
        return {
            key: int(np.count_nonzero(self._touched & mirror.bit)) * self._block_size * mirror.rows[0].nbytes
            for key, mirror in list(self._mirrors.items())
        }

    def _add(self, key: str, like: Tensor) -> _Mirror:
        if len(self._mirrors) == _MAX_KEYS:
            raise StepError(f"{key!r} is key number {_MAX_KEYS + 1}; allowed: {_MAX_KEYS} keys of per-token outputs")
        mirror = self._mirrors[key] = _Mirror(self._present.size, len(self._mirrors), like)
        return mirror


def _scatter(table: Tensor, slots: Slots, runs: _Runs | None, value: Tensor) -> None:
    """`table[slots] = value`, run by run where there are few long runs."""
    if runs is None:
        # numpy copies a row in one piece; torch's scatter goes element by element.
        _whole_rows(table)[slots] = _whole_rows(value.contiguous())
        return
    for start, stop in runs:
        first = int(slots[start])
        table[first : first + stop - start].copy_(value[start:stop])


def _takes(table: Tensor, blocks: Slots, out: Tensor) -> list[Callable[[], None]]:
    """`out[:] = table[blocks]`, some MiB at a time."""
    source, target = _whole_rows(table), _whole_rows(out.view(len(blocks), -1))
    step = max(1, _PIECE // source.itemsize)
    parts = [slice(first, first + step) for first in range(0, len(blocks), step)]
    # Any mode but the default, which goes by way of a buffer.
    return [partial(np.take, source, blocks[part], out=target[part], mode="clip") for part in parts]


def _whole_rows(rows: Tensor) -> npt.NDArray[np.void]:
    """A view with one opaque element per row, `rows` being contiguous."""
    flat = rows.reshape(len(rows), -1)
    return flat.view(torch.uint8).numpy().view(f"V{flat[0].nbytes}").reshape(-1)


def _runs(indices: Slots) -> _Runs | None:
    """Positions of runs of consecutive indices, or None when there are too many to copy one by one."""
    cuts = np.flatnonzero(np.diff(indices) != 1) + 1
    if len(cuts) > len(indices) // _RUN:
        return None
    return list(pairwise([0, *cuts.tolist(), len(indices)]))
