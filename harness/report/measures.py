"""What was measured beside the load: hit rates, memory, start times, the client's own delay. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from harness.lag import Lag
from harness.records import CellRecord, Manifest, MemoryPoint, TrialRecord
from harness.stats import Comparison


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest and largest of `count` values, one a round."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Hit:
    """Stage-0 prefix-cache tokens of one bench and arm. Sums over rounds; `rate` is the spread of per-round rates."""

    queries: float
    hits: float
    cells: int
    """Cells with counters; cells without are not counted."""
    rate: Spread | None
    ideal: float | None


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Bytes of one measure of one arm over its trials.

    Parameters:
        passes: after each pass over the benches.
        added: mean of the peaks over the baseline's, minus one; None for the baseline itself.
    """

    arm: str
    measure: str
    ready: Spread | None
    passes: tuple[Spread | None, ...]
    peak: Spread | None
    added: float | None


@dataclass(frozen=True, slots=True)
class Gain:
    """Change of request throughput of an arm: geometric mean over its benches, smallest and largest of them."""

    arm: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class StartRow:
    """Seconds from start to ready, and of the first request after it, over the trials of one arm."""

    arm: str
    ready: Spread | None
    first_request: Spread | None


@dataclass(frozen=True, slots=True)
class WorstLag:
    """Where the client's own event loop was latest, and how late."""

    lag: Lag
    trial: str
    bench: str


def _spread(values: Iterable[float]) -> Spread | None:
    all_of = tuple(values)
    return Spread(min(all_of), max(all_of), len(all_of)) if all_of else None


def hit_of(cells: Iterable[CellRecord], bench: str, arm: str) -> Hit:
    known = [
        cell.cell.hit_rate
        for cell in cells
        if cell.cell.bench == bench and cell.cell.arm == arm and cell.cell.hit_rate is not None
    ]
    return Hit(
        queries=math.fsum(hit.queries for hit in known),
        hits=math.fsum(hit.hits for hit in known),
        cells=len(known),
        rate=_spread(hit.rate for hit in known if hit.rate is not None),
        ideal=known[0].ideal if known else None,
    )


def memory_of(arm: str, baseline: str, trials: tuple[TrialRecord, ...]) -> Iterable[MemoryRow]:
    mine = [trial for trial in trials if trial.arm == arm]
    # Where no pass was recorded the end of the trial is that of its only one.
    passes = [trial.memory_passes or (trial.memory_end,) for trial in mine]
    for measure, key in (("stage-0 VmRSS", "rss"), ("process tree PSS", "pss"), ("GPU", "gpu")):
        row = MemoryRow(
            arm=arm,
            measure=measure,
            ready=_bytes(key, (trial.memory_ready for trial in mine)),
            passes=tuple(_bytes(key, points) for points in zip_longest(*passes)),
            peak=_bytes(key, (trial.memory_peak for trial in mine)),
            added=_added(key, arm, baseline, trials),
        )
        if row.ready or any(row.passes) or row.peak:
            yield row


def _added(key: str, arm: str, baseline: str, trials: Iterable[TrialRecord]) -> float | None:
    sides: dict[str, list[float]] = {arm: [], baseline: []}
    for trial in trials:
        value = None if trial.memory_peak is None else getattr(trial.memory_peak, key)
        if trial.arm in sides and value is not None:
            sides[trial.arm].append(float(value))
    if arm == baseline or not all(sides.values()):
        return None
    mine, base = (math.fsum(values) / len(values) for values in sides.values())
    return mine / base - 1.0


def gain_of(arm: str, comparisons: Iterable[Comparison]) -> Gain | None:
    """None where no bench has a valid round."""
    found = [one.geometric for one in comparisons if one.arm == arm and one.geometric is not None]
    if not found:
        return None
    mean = math.expm1(math.fsum(math.log1p(value) for value in found) / len(found))
    return Gain(arm, mean, min(found), max(found))


def _bytes(key: str, points: Iterable[MemoryPoint | None]) -> Spread | None:
    values = (getattr(point, key) for point in points if point is not None)
    return _spread(float(value) for value in values if value is not None)


def start_of(arm: str, trials: tuple[TrialRecord, ...]) -> StartRow:
    mine = [trial for trial in trials if trial.arm == arm]
    return StartRow(
        arm=arm,
        ready=_spread(trial.time_to_ready for trial in mine if trial.time_to_ready is not None),
        first_request=_spread(trial.first_request for trial in mine if trial.first_request is not None),
    )


def lag_of(manifest: Manifest, cells: tuple[CellRecord, ...]) -> WorstLag | None:
    slugs = {(trial.round, trial.arm): trial.slug for trial in manifest.plan}
    lags = [
        WorstLag(
            Lag(cell.cell.client_lag_ms, cell.cell.client_lag_waiting_ms),
            slugs[cell.cell.round, cell.cell.arm],
            cell.cell.bench,
        )
        for cell in cells
        if cell.cell.client_lag_ms is not None
    ]
    return max(lags, key=lambda one: one.lag.late_ms) if lags else None
