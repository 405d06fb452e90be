"""Pairs: one bench of one arm beside the baseline arm's of the same round.

Only arms of one round are compared, and a pair stands or falls whole: a cell that does not count takes its
partner out of the ratio with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.records import CellRecord, PlannedTrial, TrialRecord
from harness.scenario import Bench, Scenario
from harness.validity import pair_invalid


@dataclass(frozen=True, slots=True)
class Pair:
    """Two cells of one round and bench.

    `pending` is true while a trial of the pair has no record yet (a run that was killed, or is still going);
    `reasons` say why a measured pair does not count.
    """

    round: int
    bench: str
    arm: str
    baseline: str
    base: CellRecord | None
    other: CellRecord | None
    reasons: tuple[str, ...] = ()
    pending: bool = False

    @property
    def valid(self) -> bool:
        return self.base is not None and self.other is not None and not self.reasons and not self.pending


def pair_up(
    scenario: Scenario,
    plan: Iterable[PlannedTrial],
    trials: Iterable[TrialRecord],
    cells: Iterable[CellRecord],
) -> tuple[Pair, ...]:
    """Pairs of every reported bench, in the order bench, arm, round.

    A failed trial takes all its pairs with it: a server that broke later is not trusted earlier.
    """
    planned = {(trial.round, trial.arm): trial for trial in plan}
    ended = {(trial.round, trial.arm): trial for trial in trials}
    measured = {(cell.cell.round, cell.cell.arm, cell.cell.bench): cell for cell in cells}
    rounds = sorted({number for number, _ in planned})
    baseline = scenario.baseline

    def one(bench: Bench, arm: str, number: int) -> Pair:
        sides = [(number, baseline), (number, arm)]
        base, other = (measured.get((*side, bench.name)) for side in sides)
        pending = any(side not in ended for side in sides)
        reasons: list[str] = []
        for side, cell in zip(sides, (base, other), strict=True):
            if side in ended:
                reasons += _side_invalid(planned[side].slug, ended[side], cell)
        if not reasons and base is not None and other is not None:
            reasons += pair_invalid(base, other, scenario.validity, ignore_eos=bench.ignore_eos)
        return Pair(number, bench.name, arm, baseline, base, other, tuple(reasons), pending)

    return tuple(
        one(bench, arm, number)
        for bench in scenario.benches
        if bench.reported
        for arm in scenario.arms
        if arm != baseline
        for number in rounds
        if (number, arm) in planned and (number, baseline) in planned
    )


def _side_invalid(slug: str, trial: TrialRecord, cell: CellRecord | None) -> list[str]:
    if trial.status == "failed":
        return [f"{slug}: the trial failed: {trial.failure or 'no reason recorded'}"]
    if cell is None:
        return [f"{slug}: the trial finished without this bench"]
    return [f"{slug}: {reason}" for reason in cell.cell.invalid]
