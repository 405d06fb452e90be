"""What the accuracy of a run comes to: one verdict, and the exit code it stands for."""

from __future__ import annotations

from collections.abc import Iterable

from harness.accuracy.decision import Verdict, gravest
from harness.accuracy.records import CheckSummary
from harness.errors import ExitCode
from harness.recorded import scenario_of
from harness.store import RunStore

_CODES = {
    Verdict.PASS: ExitCode.OK,
    Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    Verdict.FAIL: ExitCode.REGRESSED,
    Verdict.INVALID: ExitCode.INVALID,
}


def summaries_of(store: RunStore) -> tuple[CheckSummary, ...]:
    """The scored checks of a run, in scenario order; those that were not scored yet are missing.

    Raises:
        RecordError: a summary that cannot be read.
    """
    checks = scenario_of(store.manifest()).checks
    found = (store.read_summary(check.name, CheckSummary) for check in checks)
    return tuple(summary for summary in found if summary is not None)


def unscored(store: RunStore) -> tuple[str, ...]:
    """Names of the checks of a run that were not scored yet."""
    scored = {summary.check for summary in summaries_of(store)}
    return tuple(check.name for check in scenario_of(store.manifest()).checks if check.name not in scored)


def accuracy_verdict(summaries: Iterable[CheckSummary]) -> Verdict | None:
    """The gravest verdict of all checks; None where nothing is judged."""
    judged = [decision for one in summaries for decision in one.judgements]
    return gravest(judged) if judged else None


def exit_code(summaries: Iterable[CheckSummary]) -> int:
    """0 pass or nothing to judge, 1 fail, 3 inconclusive, 4 invalid."""
    verdict = accuracy_verdict(summaries)
    return ExitCode.OK if verdict is None else _CODES[verdict]
