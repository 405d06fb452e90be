"""What a report knows of accuracy: each check of the scenario, its scores where it was scored, the hit rates behind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.accuracy.records import ArmScores, CheckSummary
from harness.records import CellRecord
from harness.report.measures import Hit, hit_of
from harness.scenario import Check, Scenario
from harness.store import RunStore


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One arm's scores of one check, and what share of its prompts came out of the cache."""

    scores: ArmScores
    hit: Hit


@dataclass(frozen=True, slots=True)
class AccuracyCheck:
    """One check. `summary` is None where its answers were not scored yet."""

    check: Check
    summary: CheckSummary | None
    rows: tuple[AccuracyRow, ...]


def accuracy_of(store: RunStore, scenario: Scenario, cells: Iterable[CellRecord]) -> tuple[AccuracyCheck, ...]:
    """The checks of a run in scenario order; raises RecordError where a summary cannot be read."""
    known = tuple(cells)
    found = []
    for check in scenario.checks:
        summary = store.read_summary(check.name, CheckSummary)
        arms = () if summary is None else summary.arms
        rows = tuple(AccuracyRow(scores, hit_of(known, check.name, scores.arm)) for scores in arms)
        found.append(AccuracyCheck(check, summary, rows))
    return tuple(found)
