"""How sure a run is of its ratios: width of the interval, what it could have seen, a second opinion, the band."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from harness import noise
from harness.extend import half_width
from harness.noise import Floors
from harness.records import NoiseFloor
from harness.second_opinion import SecondOpinion, detectable_effect, second_opinion
from harness.stats import LEVEL, Comparison, Interval, Metric


@dataclass(frozen=True, slots=True)
class UncertaintyRow:
    """One bench and arm, on request throughput. Shares, all of them.

    Parameters:
        half_width: of the interval, relative to its centre; None under 2 rounds, as is the next.
        detectable: the smallest change that rounds as noisy as these call in four runs of five.
        opinion: None under 6 rounds.
        band: what is called `same`.
        floor: the noise floor that made the band wider than the practical threshold, None where none did.
    """

    bench: str
    arm: str
    rounds: int
    half_width: float | None
    detectable: float | None
    opinion: SecondOpinion | None
    band: Interval
    floor: NoiseFloor | None


def floor_of(floors: Floors, bench: str, metric: Metric) -> Callable[[int], float] | None:
    """By how much the host varies by itself in so many rounds; None where that was not measured."""
    floor = floors.get((bench, metric.key))
    return None if floor is None else lambda rounds: noise.half_width(floor, rounds)


def uncertainty_of(comparisons: Iterable[Comparison], floors: Floors, threshold: float) -> tuple[UncertaintyRow, ...]:
    """One row per comparison that has a valid round.

    Parameters:
        threshold: the practical one.
    """
    return tuple(_row(one, floors, threshold) for one in comparisons if one.rounds)


def _row(one: Comparison, floors: Floors, threshold: float) -> UncertaintyRow:
    quotients = np.array([each.other / each.base for each in one.rounds])
    floor = floors.get((one.bench, one.metric.key))
    return UncertaintyRow(
        bench=one.bench,
        arm=one.arm,
        rounds=len(quotients),
        half_width=None if one.interval is None else half_width(one.interval),
        detectable=detectable_effect(quotients, LEVEL) if len(quotients) > 1 else None,
        opinion=second_opinion(quotients),
        band=one.band,
        floor=floor if floor is not None and noise.half_width(floor, len(quotients)) > threshold else None,
    )
