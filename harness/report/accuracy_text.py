"""Accuracy in words and tables: the sentence beside the throughput verdicts, and the section of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.accuracy.bootstrap import LEVEL, RESAMPLES
from harness.accuracy.decision import Decision, Verdict
from harness.accuracy.records import ArmScores, CheckSummary, WerFigures
from harness.report.accuracy import AccuracyCheck, AccuracyRow
from harness.report.text import MINUS, NONE, difference, hit_rate, listed, percent, table

VERDICT_SAYS = {
    Verdict.FAIL: "FAILED",
    Verdict.INVALID: "INVALID",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.PASS: "passed",
}
_SHARES = ("max_wer", "max_wer_increase")
_NAMED = 10
"""Items that the report names before it counts the rest; the files have all."""


def sentences(checks: Iterable[AccuracyCheck]) -> tuple[tuple[Verdict | None, str], ...]:
    """What a reader must know first, a line a check, each with its verdict; None for what was not judged."""
    return tuple((None if one.summary is None else one.summary.verdict, _sentence(one)) for one in checks)


def _sentence(one: AccuracyCheck) -> str:
    name = one.check.name
    if one.summary is None:
        return f"Accuracy {name}: not scored yet; `bench score RUN` does."
    verdict = one.summary.verdict
    if verdict is None:
        return f"Accuracy {name}: scored, and nothing is judged (no `accept`)."
    if verdict is Verdict.PASS:
        limits = listed(list(dict.fromkeys(judged.check for judged in one.summary.judgements)))
        return f"Accuracy {name}: passed ({limits}, {one.summary.items} items)."
    grave = [judged for judged in one.summary.judgements if judged.verdict is verdict]
    told = "; ".join(f"{judged.check} of `{judged.arm}`: {' and '.join(judged.reasons)}" for judged in grave)
    return f"Accuracy {name}: {VERDICT_SAYS[verdict]}. {told}."


def section(checks: tuple[AccuracyCheck, ...]) -> str:
    """The section; empty for a scenario without checks."""
    if not checks:
        return ""
    return "\n\n".join(["## Accuracy", *(_check(one) for one in checks)])


def _check(one: AccuracyCheck) -> str:
    parts = [f"### {one.check.name}"]
    if one.summary is None:
        return "\n\n".join([*parts, "The answers were not scored yet: `bench score RUN` does."])
    parts += [_made_with(one.summary), _scores(one)]
    if one.summary.judgements:
        parts += [_judgements(one.summary)]
    if one.summary.parity:
        parts.append(_parity(one.summary))
    if one.check.measure == "choice":
        parts.append(_flips(one.summary))
    return "\n\n".join(parts)


def _made_with(summary: CheckSummary) -> str:
    told = [f"{summary.items} items, measure {summary.measure}"]
    if summary.recogniser is not None:
        told.append(f"words heard by `{summary.recogniser}`, compared after `{summary.normaliser}`")
    if summary.encoder is not None:
        told.append(f"voices compared by `{summary.encoder}`")
    return "; ".join(told) + "."


def _scores(one: AccuracyCheck) -> str:
    head, columns = ["arm", "rounds", "answers", "hit rate", "failed"], _columns(one)
    rows = [
        [
            row.scores.arm,
            ", ".join(map(str, row.scores.rounds)),
            str(row.scores.answers),
            hit_rate(row.hit),
            str(row.scores.failed),
            *(show(row.scores) for _, show in columns),
        ]
        for row in one.rows
    ]
    explained = "Failed requests and answers without audio are scored as wrong (WER 1, similarity 0, no letter)."
    return table([*head, *(name for name, _ in columns)], rows) + f"\n\n{explained}{_wer_terms(one.rows)}"


def _wer_terms(rows: Iterable[AccuracyRow]) -> str:
    if all(row.scores.wer is None for row in rows):
        return ""
    return (
        " WER mean is that of the utterances' rates, the figure that pull requests quote; corpus is all edits over all "
        "words."
    )


_Column = tuple[str, Callable[[ArmScores], str]]


def _of_wer(show: Callable[[WerFigures], str]) -> Callable[[ArmScores], str]:
    return lambda arm: NONE if arm.wer is None else show(arm.wer)


def _columns(one: AccuracyCheck) -> list[_Column]:
    columns: list[_Column] = []
    if any(row.scores.wer is not None for row in one.rows):
        columns += [
            ("WER mean", _of_wer(lambda wer: _share(wer.mean))),
            ("WER median", _of_wer(lambda wer: _share(wer.median))),
            ("WER corpus", _of_wer(lambda wer: _share(wer.corpus))),
            ("above 50%", _of_wer(lambda wer: _share(wer.share_high))),
            ("silent", _of_wer(lambda wer: str(wer.silent))),
        ]
    if any(row.scores.sim_mean is not None for row in one.rows):
        columns += [
            ("SIM mean", lambda arm: _plain(arm.sim_mean)),
            ("SIM least", lambda arm: _plain(arm.sim_min)),
        ]
    if any(row.scores.accuracy is not None for row in one.rows):
        columns += [
            ("right", lambda arm: NONE if arm.correct is None else str(arm.correct)),
            ("accuracy", lambda arm: _share(arm.accuracy)),
            ("without a letter", lambda arm: str(len(arm.unparsed))),
        ]
    return columns


def _judgements(summary: CheckSummary) -> str:
    rows = [
        [
            judged.check,
            judged.arm,
            judged.baseline or NONE,
            _value(judged, judged.value),
            f"{_value(judged, judged.low)} .. {_value(judged, judged.high)}" if judged.low is not None else NONE,
            NONE if judged.control is None else f"{judged.control:g}",
            _value(judged, judged.limit),
            f"**{VERDICT_SAYS[judged.verdict]}**" if judged.verdict is not Verdict.PASS else "passed",
            "; ".join(judged.reasons) or NONE,
        ]
        for judged in summary.judgements
    ]
    head = ["accept", "arm", "against", "value", f"{LEVEL:.0%} interval", "control", "limit", "verdict", "why"]
    return (
        table(head, rows, left=3, words=("verdict", "why"))
        + f"\n\nA difference is positive where the arm is worse; its interval is a bootstrap over items ({RESAMPLES:,} "
        "resamples, paired by item, rounds averaged first), and passes where all of it is within the limit. A count is "
        "read beside its control, the baseline against itself."
    )


def _parity(summary: CheckSummary) -> str:
    rows = [
        [
            f"{row.arm} twice (control)" if row.control else row.arm,
            row.rounds,
            str(row.compared),
            str(row.missing),
            str(row.equal),
            str(row.differ),
            str(row.empty),
            NONE if row.first_difference is None else f"character {row.first_difference}",
            str(row.audio_equal),
            str(row.audio_differ),
            NONE if row.audio_ratio is None else difference(row.audio_ratio),
        ]
        for row in summary.parity
    ]
    head = [
        "answers of", "rounds", "compared", "missing", "text equal", "text differs", "text empty", "first difference",
        "audio equal", "audio differs", "audio seconds",
    ]  # fmt: skip
    return table(head, rows, left=2)


def _flips(summary: CheckSummary) -> str:
    if not summary.flips:
        told = "No question was answered with another letter than the baseline's."
    else:
        rows = [
            [flip.id, str(flip.round), flip.arm, flip.gold, flip.base or "none", flip.other or "none"]
            for flip in summary.flips[:_NAMED]
        ]
        left = len(summary.flips) - len(rows)
        told = table(["question", "round", "arm", "right", "baseline", "this arm"], rows, left=3)
        told += f"\n\nand {left} more." if left else ""
    unparsed = [f"`{arm.arm}`: {_some(arm.unparsed)}" for arm in summary.arms if arm.unparsed]
    return f"{told}\n\nReplies without a letter: {'; '.join(unparsed)}." if unparsed else told


def _some(ids: tuple[str, ...]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more


def _value(judged: Decision, value: float | None) -> str:
    if value is None:
        return NONE
    if judged.check in _SHARES:
        return percent(value, signed=judged.check == "max_wer_increase")
    return f"{value:g}" if judged.check in ("max_flips", "max_differing") else _plain(value)


def _share(value: float | None) -> str:
    return NONE if value is None else percent(value, signed=False)


def _plain(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}".replace("-", MINUS)
