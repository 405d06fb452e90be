"""Would pages of payload with reference counts beat the mirror indexed by slot? Measured, on the store's own interface.

    python benchmarks/page_backend.py

`PageStore` keeps, per block, references to pieces of the buffers that steps were copied into, instead of copying rows
into a mirror: a write moves no row, a read concatenates pieces, and a buffer lives as long as any block needs a piece
of it. The comparison is of `RowStore.write` and `read` on the same operations, and of resident memory after churn.
docs/cache_backends.md has the outcome.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prefix_cache.pool import BufferPool
from prefix_cache.store import RowStore

BLOCK, BLOCKS, WIDTH = 16, 4096, 2048
KEYS = ("hidden", "layer_0", "layer_24")
OPERATIONS = (
    "flush of 16 decode steps of 64 requests",
    "write of a prefill of 8192",
    "hit of 4096, prefilled rows",
    "hit of 4096, rows decoded one by one",
)
Piece = tuple[int, Tensor]
"""Offset of a piece within its block, and its rows."""
Write = Callable[[np.ndarray, dict[str, Tensor]], None]


class PageStore:
    """Payload pieces by block; the operations of `RowStore` that the comparison needs."""

    def __init__(self) -> None:
        self._pieces: dict[str, dict[int, list[Piece]]] = {key: {} for key in KEYS}

    def write(self, slots: np.ndarray, rows: dict[str, Tensor]) -> None:
        blocks = slots // BLOCK
        cuts = np.flatnonzero((np.diff(slots) != 1) | (np.diff(blocks) != 0)) + 1
        bounds = [0, *cuts.tolist(), len(slots)]
        for start, stop in pairwise(bounds):
            block, offset = divmod(int(slots[start]), BLOCK)
            for key, value in rows.items():
                kept = self._pieces[key].setdefault(block, [])
                # A block written from its first slot has a new tenant.
                if offset == 0:
                    kept.clear()
                kept.append((offset, value[start:stop]))

    def read(self, blocks: np.ndarray, pool: BufferPool) -> dict[str, Tensor]:
        first = next(iter(self._pieces["hidden"].values()))[0][1]
        layout = dict.fromkeys(KEYS, (first.shape[1:], first.dtype))
        out = pool.lease_rows(layout, len(blocks) * BLOCK)
        for key, pieces in self._pieces.items():
            torch.cat([rows for block in blocks.tolist() for _, rows in pieces[block]], out=out[key])
        return out


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def median(run: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


def rows_of(count: int, pool: BufferPool) -> dict[str, Tensor]:
    leased = pool.lease_rows({key: (torch.Size([WIDTH]), torch.bfloat16) for key in KEYS}, count)
    for value in leased.values():
        value.fill_(1.0)
    return leased


def measure(write: Write, read: Callable[[np.ndarray], object], pool: BufferPool) -> list[float]:
    """Milliseconds of each operation of `OPERATIONS`."""
    decode = (np.arange(64)[None, :] * 56 * BLOCK + np.arange(BLOCK)[:, None]).ravel().astype(np.int64)
    prefill, hit = np.arange(8192), np.arange(4096 // BLOCK)
    buffer, big = rows_of(len(decode), pool), rows_of(len(prefill), pool)
    write(prefill, big)
    write(decode, buffer)
    taken = [
        median(lambda: write(decode, buffer), 20),
        median(lambda: write(prefill, big), 10),
        median(lambda: read(hit), 10),
    ]
    for step in range(BLOCK):
        write(hit * BLOCK + step, {key: value[step * 256 : (step + 1) * 256] for key, value in big.items()})
    return [*taken, median(lambda: read(hit), 10)]


def churn(write: Write) -> float:
    """Resident bytes per byte of rows kept, when 5 % of the blocks are used again and again by steps of 12 blocks."""
    generator, pool = np.random.default_rng(0), BufferPool(1)
    live = generator.permutation(BLOCKS)[: BLOCKS // 20]
    gc.collect()
    before = resident()
    for _ in range(400):
        chosen = generator.choice(live, size=12, replace=False)
        slots = (chosen[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        write(slots, rows_of(len(slots), pool))
    gc.collect()
    return (resident() - before) / (len(live) * BLOCK * WIDTH * 2 * len(KEYS))


def main() -> None:
    torch.set_num_threads(1)
    pool = BufferPool(512 << 20)
    mirror, pages = RowStore(BLOCKS, BLOCK, frozenset({"hidden"})), PageStore()
    of_mirror = measure(mirror.write, lambda blocks: mirror.read(blocks, 0, pool), pool)
    of_pages = measure(pages.write, lambda blocks: pages.read(blocks, pool), pool)
    print(f"{'operation (ms, median)':<44}{'mirror':>10}{'pages':>10}")
    for operation, ours, theirs in zip(OPERATIONS, of_mirror, of_pages, strict=True):
        print(f"{operation:<44}{ours:>10.2f}{theirs:>10.2f}")
    shares = [churn(RowStore(BLOCKS, BLOCK, frozenset({"hidden"})).write), churn(PageStore().write)]
    print(f"{'resident bytes per byte of rows kept, churn':<44}{shares[0]:>10.2f}{shares[1]:>10.2f}")


if __name__ == "__main__":
    main()
