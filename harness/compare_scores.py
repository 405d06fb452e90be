"""The accuracy of two runs beside each other: what each check came to, arm by arm, and what it was scored with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.accuracy.decision import Verdict
from harness.accuracy.records import CheckSummary

# A file's place says nothing of what is in it; its digest does.
_PLACE = re.compile(r", [^,]*(?=, sha256:)")
_ABSENT = (None, 0)
_TOOLS = ("recogniser", "normaliser", "encoder")


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One score of one arm in both runs, None where it was not scored; `verdicts` are of the check in each run.

    Parameters:
        arm: empty for a check that neither run has a score of.
        score: `WER` (mean over answers), `SIM` (mean), `accuracy` (right answers over questions) or `differing`
            (answers that differ from the baseline's over those compared), all shares; `not scored`.
        answers: how many stand behind each value.
    """

    check: str
    arm: str
    score: str
    first: float | None
    second: float | None
    answers: tuple[int, int]
    verdicts: tuple[Verdict | None, Verdict | None]


def score_rows(
    checks: Iterable[str], first: Iterable[CheckSummary], second: Iterable[CheckSummary]
) -> Iterator[ScoreRow]:
    """One row a check, arm and score that either run has, and one for a check without any.

    Parameters:
        checks: names of the checks of both scenarios.
    """
    one, two = ({summary.check: summary for summary in side} for side in (first, second))
    for check in dict.fromkeys(checks):
        sides = (one.get(check), two.get(check))
        before, after = (_scores(side) for side in sides)
        verdicts = (_verdict(sides[0]), _verdict(sides[1]))
        for key in dict.fromkeys([*before, *after]):
            (was, of), (is_, among) = before.get(key, _ABSENT), after.get(key, _ABSENT)
            yield ScoreRow(check, *key, was, is_, (of, among), verdicts)
        if not before and not after:
            yield ScoreRow(check, "", "not scored", None, None, (0, 0), verdicts)


def tools_of(summaries: Iterable[CheckSummary]) -> dict[str, str]:
    """What each check was scored with, by a name for it; only what can change a score."""
    found = {f"{tool} of {one.check}": getattr(one, tool) for one in summaries for tool in _TOOLS}
    return {name: _PLACE.sub("", label) for name, label in found.items() if label is not None}


def _scores(summary: CheckSummary | None) -> Mapping[tuple[str, str], tuple[float, int]]:
    """Value and number of answers by arm and score."""
    if summary is None:
        return {}
    found = {
        (arm.arm, name): (value, arm.answers)
        for arm in summary.arms
        for name, value in (
            ("WER", None if arm.wer is None else arm.wer.mean),
            ("SIM", arm.sim_mean),
            ("accuracy", arm.accuracy),
        )
        if value is not None
    }
    for one in summary.parity:
        if not one.control and one.compared:
            found[one.arm, "differing"] = (one.differ / one.compared, one.compared)
    return found


def _verdict(summary: CheckSummary | None) -> Verdict | None:
    return None if summary is None else summary.verdict
