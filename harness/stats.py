"""Ratios against the baseline, their intervals, and verdicts (docs/design.md, section 7). Pure functions.

Two summaries of the same rounds are always given. `ratio` and `spread` are what pull requests print: the mean
over rounds over the baseline's, and the smallest and largest per-round ratio. `geometric` and
`interval` are the statistics: the geometric mean of the per-round ratios and a Student t interval on their
logarithms. A spread is never called an interval, and nothing is resampled: a handful of rounds cannot carry a
bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from harness.errors import MetricAbsent
from harness.pairs import Pair
from harness.records import CellRecord

LEVEL = 0.95
"""Two-sided confidence level of every interval."""

FIRM_ROUNDS = 3
"""Valid rounds below which a comparison is advisory."""


class Verdict(StrEnum):
    """What a comparison says. `invalid`: no round was left to compare."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a cell. `key` is its key in the record, as `vllm bench serve` names it."""

    key: str
    label: str
    unit: str
    higher_is_better: bool

    def of(self, cell: CellRecord) -> float:
        """The cell's value. Raises `MetricAbsent` unless it is a positive, finite number."""
        value = getattr(cell, self.key)
        where = f"round {cell.cell.round}, {cell.cell.arm}, {cell.cell.bench}: {self.key}"
        if value is None:
            raise MetricAbsent(f"{where} is absent")
        if not (math.isfinite(value) and value > 0.0):
            raise MetricAbsent(f"{where} is {value:g}, of which no ratio can be taken")
        return float(value)


REQUEST_THROUGHPUT = Metric("request_throughput", "request throughput", "req/s", True)
OUTPUT_THROUGHPUT = Metric("output_throughput", "output tokens", "tok/s", True)
AUDIO_THROUGHPUT = Metric("audio_throughput", "audio", "s/s", True)
THROUGHPUTS = (REQUEST_THROUGHPUT, OUTPUT_THROUGHPUT, AUDIO_THROUGHPUT)
MEDIAN_TTFT = Metric("median_ttft_ms", "median TTFT", "ms", False)
MEDIAN_TPOT = Metric("median_tpot_ms", "median TPOT", "ms", False)
MEDIAN_E2EL = Metric("median_e2el_ms", "median E2EL", "ms", False)
MEAN_E2EL = Metric("mean_e2el_ms", "mean E2EL", "ms", False)
P90_E2EL = Metric("p90_e2el_ms", "p90 E2EL", "ms", False)
MEDIAN_TTFP = Metric("median_audio_ttfp_ms", "median audio TTFP", "ms", False)
MEDIAN_RTF = Metric("median_audio_rtf", "median audio RTF", "", False)


@dataclass(frozen=True, slots=True)
class RoundRatio:
    """One valid pair: the two values and `other / base - 1`."""

    round: int
    base: float
    other: float

    @property
    def ratio(self) -> float:
        return self.other / self.base - 1.0


@dataclass(frozen=True, slots=True)
class DroppedPair:
    """One measured pair that is left out of the ratio, and why."""

    round: int
    bench: str
    arm: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds as ratios minus one: (-0.01, 0.02) reads from -1% to +2%."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against the baseline on one bench and metric. Ratios are quotients minus one.

    Everything computed from rounds is None where no valid round is left; `interval` needs two.
    """

    bench: str
    arm: str
    baseline: str
    metric: Metric
    rounds: tuple[RoundRatio, ...]
    dropped: tuple[DroppedPair, ...]
    base_mean: float | None
    other_mean: float | None
    ratio: float | None
    spread: Interval | None
    geometric: float | None
    interval: Interval | None
    band: Interval
    verdict: Verdict
    warnings: tuple[str, ...]

    @property
    def advisory(self) -> bool:
        """Whether too few valid rounds stand behind the verdict to decide on it."""
        return len(self.rounds) < FIRM_ROUNDS


def same_band(threshold: float) -> Interval:
    """The band called `same` for a practical threshold of 0.03: -2.9% .. +3.0%.

    It is even in logarithms, so the verdict on A against B is the mirror of B against A.
    """
    return Interval(1.0 / (1.0 + threshold) - 1.0, threshold)


def geometric_interval(
    quotients: NDArray[np.float64], level: float = LEVEL
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Geometric means and their two-sided t intervals.

    Parameters:
        quotients: float64 `[..., n]`, n >= 2 independent positive quotients in the last axis.
        level: confidence level.

    Returns:
        `(low, centre, high)`, float64 `[...]` each, as quotients (1.0 is no change).
    """
    n = quotients.shape[-1]
    if n < 2:
        raise ValueError(f"an interval needs at least 2 rounds, not {n}")
    # Not scipy.stats.t: the same quantile, without a second of imports.
    from scipy.special import stdtrit

    logs = np.log(quotients)
    centre = logs.mean(axis=-1)
    half = float(stdtrit(n - 1, 0.5 + level / 2)) * logs.std(axis=-1, ddof=1) / math.sqrt(n)
    return np.exp(centre - half), np.exp(centre), np.exp(centre + half)


def judge(interval: Interval | None, band: Interval, *, higher_is_better: bool) -> Verdict:
    """`same` when the interval lies inside the band, faster or slower when wholly outside on one side."""
    if interval is None:
        return Verdict.INCONCLUSIVE
    if interval.low > band.high:
        return Verdict.FASTER if higher_is_better else Verdict.SLOWER
    if interval.high < band.low:
        return Verdict.SLOWER if higher_is_better else Verdict.FASTER
    if band.low <= interval.low and interval.high <= band.high:
        return Verdict.SAME
    return Verdict.INCONCLUSIVE


def compare(
    pairs: Sequence[Pair],
    metric: Metric = REQUEST_THROUGHPUT,
    *,
    threshold: float,
    floor: Callable[[int], float] | None = None,
    level: float = LEVEL,
) -> Comparison:
    """Compare one arm with the baseline on one bench.

    Parameters:
        pairs: all pairs of one bench and arm, one a round.
        metric: what to compare.
        threshold: half-width of the band called `same`, as a share.
        floor: by how much the host is known to vary by itself in so many rounds, as a share; it widens the band.
        level: confidence level of the interval.

    A pair without a usable value of the metric is dropped with its reason, never counted as 0.
    """
    keys = {(pair.bench, pair.arm, pair.baseline) for pair in pairs}
    if len(keys) != 1:
        raise ValueError(f"compare takes the pairs of one bench and arm, not of {sorted(keys)}")
    ((bench, arm, baseline),) = keys
    rounds: list[RoundRatio] = []
    dropped: list[DroppedPair] = []
    for pair in pairs:
        if pair.pending:
            continue
        if pair.reasons or pair.base is None or pair.other is None:
            dropped.append(DroppedPair(pair.round, bench, arm, pair.reasons))
            continue
        try:
            rounds.append(RoundRatio(pair.round, metric.of(pair.base), metric.of(pair.other)))
        except MetricAbsent as absent:
            dropped.append(DroppedPair(pair.round, bench, arm, (str(absent),)))

    band = same_band(threshold if floor is None else max(threshold, floor(len(rounds))))
    base_mean = other_mean = ratio = geometric = None
    spread = interval = None
    verdict = Verdict.INVALID
    if rounds:
        base_mean = math.fsum(one.base for one in rounds) / len(rounds)
        other_mean = math.fsum(one.other for one in rounds) / len(rounds)
        ratio = other_mean / base_mean - 1.0
        ratios = [one.ratio for one in rounds]
        spread = Interval(min(ratios), max(ratios))
        quotients = np.array([one.other / one.base for one in rounds])
        geometric = float(np.exp(np.log(quotients).mean())) - 1.0
        if len(rounds) >= 2:
            low, _, high = geometric_interval(quotients, level)
            interval = Interval(float(low) - 1.0, float(high) - 1.0)
        verdict = judge(interval, band, higher_is_better=metric.higher_is_better)
    rate = offered_rate(pairs)
    mirrors = metric in THROUGHPUTS and rate is not None
    if mirrors and verdict is Verdict.SAME:
        verdict = Verdict.INCONCLUSIVE
    return Comparison(
        bench=bench,
        arm=arm,
        baseline=baseline,
        metric=metric,
        rounds=tuple(rounds),
        dropped=tuple(dropped),
        base_mean=base_mean,
        other_mean=other_mean,
        ratio=ratio,
        spread=spread,
        geometric=geometric,
        interval=interval,
        band=band,
        verdict=verdict,
        warnings=(
            *_warnings(pairs, rounds, dropped),
            *([f"{rate:g} requests came a second whatever the server did: read its latencies"] if mirrors else []),
        ),
    )


def offered_rate(pairs: Sequence[Pair]) -> float | None:
    """Requests a second of an open loop, whose throughput follows the load and not the server; None in a closed one."""
    cells = [cell for pair in pairs for cell in (pair.base, pair.other) if cell is not None]
    return next((float(cell.request_rate) for cell in cells if cell.request_rate != "inf"), None)


def _warnings(pairs: Sequence[Pair], rounds: Sequence[RoundRatio], dropped: Sequence[DroppedPair]) -> tuple[str, ...]:
    warnings: list[str] = []
    if not rounds:
        warnings.append("no valid round")
    elif len(rounds) < 2:
        warnings.append("1 valid round: an interval needs 2")
    elif len(rounds) < FIRM_ROUNDS:
        warnings.append(f"{len(rounds)} valid rounds: advisory under {FIRM_ROUNDS}")
    if dropped:
        warnings.append(f"{len(dropped)} of {len(pairs)} pairs dropped")
    kept = {one.round for one in rounds}
    firsts = {
        pair.base.cell.position < pair.other.cell.position
        for pair in pairs
        if pair.round in kept and pair.base is not None and pair.other is not None
    }
    if len(rounds) >= 2 and len(firsts) == 1:
        first, second = pairs[0].baseline, pairs[0].arm
        if firsts == {False}:
            first, second = second, first
        warnings.append(f"{first} ran before {second} in every valid round: drift is not cancelled")
    return tuple(warnings)
