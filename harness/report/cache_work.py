"""What the output cache itself did during a bench, from its `prefix_cache:*` counters. Pure functions.

Series are named as the fields of `prefix_cache.stats.Counters`; a server publishes some, all or none of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.records import CellRecord

STEPS, BUFFERED = "steps_total", "buffered_steps_total"
COUNTS = {
    "rows_written_total": "rows written",
    "hit_tokens_total": "hit tokens",
    "materialized_total": "steps materialized",
}
TIMES = {
    "copy_out_seconds_total": "copy-out",
    "write_seconds_total": "write",
    "gather_seconds_total": "gather",
    "merge_seconds_total": "merge",
}


@dataclass(frozen=True, slots=True)
class Work:
    """One series over the rounds that have it: mean increase a round, its share of `of`, and how many rounds."""

    mean: float
    share: float | None
    rounds: int


@dataclass(frozen=True, slots=True)
class CacheWorkRow:
    """Series of one bench and arm, by field name; only those that were published."""

    bench: str
    arm: str
    rounds: int
    work: dict[str, Work]


def cache_work_of(bench: str, arm: str, cells: Sequence[CellRecord]) -> CacheWorkRow | None:
    """The row of one bench and arm, or None where no cell carries a series of the cache.

    Parameters:
        cells: its valid cells, one a round.
    """
    work = {name: found for name in (STEPS, BUFFERED, *COUNTS, *TIMES) if (found := _work(name, cells)) is not None}
    return CacheWorkRow(bench, arm, len(cells), work) if work else None


def _work(name: str, cells: Iterable[CellRecord]) -> Work | None:
    having = [(cell, value) for cell in cells if (value := _increase(cell, name)) is not None]
    if not having:
        return None
    total = math.fsum(value for _, value in having)
    whole: float | None = None
    if name in TIMES:
        whole = math.fsum(cell.duration for cell, _ in having)
    elif name == BUFFERED:
        steps = [_increase(cell, STEPS) for cell, _ in having]
        whole = math.fsum(step for step in steps if step is not None) if None not in steps else None
    return Work(mean=total / len(having), share=total / whole if whole else None, rounds=len(having))


def _increase(cell: CellRecord, name: str) -> float | None:
    metrics = cell.cell.metrics
    return None if metrics is None else metrics.delta.get(f"prefix_cache:{name}")
