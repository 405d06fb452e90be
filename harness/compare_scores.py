"""The accuracy of two runs beside each other: what each check came to, arm by arm, and what it was scored with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.accuracy.decision import Verdict
from harness.accuracy.records import ArmScores, CheckSummary

# A file's place says nothing of what is in it; its digest does.
_PLACE = re.compile(r", [^,]*(?=, sha256:)")
_TOOLS = ("recogniser", "normaliser", "encoder")


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One score of one arm in both runs, None where it was not scored; `verdicts` are of the check in each run.

    Parameters:
        score: `WER` (mean over answers), `SIM` (mean) or `accuracy` (right answers over questions), all shares.
    """

    check: str
    arm: str
    score: str
    first: float | None
    second: float | None
    verdicts: tuple[Verdict | None, Verdict | None]


def score_rows(first: Iterable[CheckSummary], second: Iterable[CheckSummary]) -> Iterator[ScoreRow]:
    """One row a check, arm and score that either run has."""
    one, two = ({summary.check: summary for summary in side} for side in (first, second))
    for check in dict.fromkeys([*one, *two]):
        sides = (one.get(check), two.get(check))
        before, after = (_scores(side) for side in sides)
        verdicts = (_verdict(sides[0]), _verdict(sides[1]))
        for key in dict.fromkeys([*before, *after]):
            yield ScoreRow(check, *key, before.get(key), after.get(key), verdicts)


def tools_of(summaries: Iterable[CheckSummary]) -> dict[str, str]:
    """What each check was scored with, by a name for it; only what can change a score."""
    found = {f"{tool} of {one.check}": getattr(one, tool) for one in summaries for tool in _TOOLS}
    return {name: _PLACE.sub("", label) for name, label in found.items() if label is not None}


def _scores(summary: CheckSummary | None) -> Mapping[tuple[str, str], float]:
    arms: tuple[ArmScores, ...] = () if summary is None else summary.arms
    found = {
        (arm.arm, name): value
        for arm in arms
        for name, value in (
            ("WER", None if arm.wer is None else arm.wer.mean),
            ("SIM", arm.sim_mean),
            ("accuracy", arm.accuracy),
        )
    }
    return {key: value for key, value in found.items() if value is not None}


def _verdict(summary: CheckSummary | None) -> Verdict | None:
    return None if summary is None else summary.verdict
