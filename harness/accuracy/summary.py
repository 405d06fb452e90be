"""From the scores of single answers to what a check comes to: arms, flips, parity, and the verdicts. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.accuracy import wer as words
from harness.accuracy.decision import Decision, Scores, Verdict, judge_count, judge_difference, judge_level
from harness.accuracy.records import (
    ArmScores,
    CheckSummary,
    Flipped,
    Item,
    ItemScore,
    ParityFigures,
    WerFigures,
)
from harness.parity import Parity, over_rounds, parity
from harness.records import RequestRecord
from harness.scenario import Check


@dataclass(frozen=True, slots=True)
class TrialScores:
    """The answers of one trial to one check, in the order of the items."""

    slug: str
    round: int
    arm: str
    scores: tuple[ItemScore, ...]
    requests: tuple[RequestRecord, ...]


def summary_of(
    check: Check,
    items: Sequence[Item],
    trials: Sequence[TrialScores],
    labels: Mapping[str, str | None],
    arms: Sequence[str],
    problems: Sequence[str] = (),
) -> CheckSummary:
    """What a check comes to.

    Parameters:
        trials: the scored ones, in any order.
        labels: `recogniser`, `normaliser` and `encoder`, as they are named in the report.
        arms: of the scenario, the baseline first; one without a scored trial is judged invalid.
        problems: why nothing of this run can be judged, whatever the scores say.
    """
    by_arm = {arm: tuple(sorted((one for one in trials if one.arm == arm), key=lambda one: one.round)) for arm in arms}
    baseline, *others = arms
    reasons = (*problems, *_unusable(check, baseline, by_arm[baseline]))
    return CheckSummary(
        check=check.name,
        measure=check.measure,
        items=len(items),
        **labels,
        arms=tuple(_arm(check, arm, scored) for arm, scored in by_arm.items() if scored),
        flips=tuple(_flips(by_arm[baseline], [one for arm in others for one in by_arm[arm]]))
        if check.measure == "choice"
        else (),
        parity=tuple(_parities(by_arm, baseline)) if check.measure == "parity" else (),
        judgements=tuple(_against(one, reasons) for one in _judge(check, by_arm, baseline, others)),
    )


def _against(decision: Decision, reasons: tuple[str, ...]) -> Decision:
    if not reasons:
        return decision
    return replace(decision, verdict=Verdict.INVALID, reasons=(*reasons, *decision.reasons))


def _unusable(check: Check, baseline: str, trials: Sequence[TrialScores]) -> Iterable[str]:
    """A baseline that never answers is like any other that does not, and proves nothing."""
    scores = [score for trial in trials for score in trial.scores]
    if scores and all(_unanswered(score) for score in scores):
        yield f"{baseline}: none of its {len(scores)} answers came"
    elif check.accept.max_flips is not None and scores and all(score.letter is None for score in scores):
        yield f"{baseline}: no letter in any of its {len(scores)} replies"


def _unanswered(score: ItemScore) -> bool:
    return "failed request" in score.flags or "no audio" in score.flags


def _arm(check: Check, arm: str, trials: Sequence[TrialScores]) -> ArmScores:
    scores = [score for trial in trials for score in trial.scores]
    sims = [score.sim for score in scores if score.sim is not None]
    correct = sum(score.correct is True for score in scores)
    choice = check.measure == "choice"
    return ArmScores(
        arm=arm,
        rounds=tuple(trial.round for trial in trials),
        answers=len(scores),
        failed=sum(_unanswered(score) for score in scores),
        wer=None if check.wer is None else _wer(scores),
        sim_mean=math.fsum(sims) / len(sims) if sims else None,
        sim_min=min(sims, default=None),
        correct=correct if choice else None,
        accuracy=correct / len(scores) if choice else None,
        unparsed=tuple(dict.fromkeys(score.id for score in scores if "no letter" in score.flags)),
    )


def _wer(scores: Iterable[ItemScore]) -> WerFigures:
    found = words.summarise([_item_wer(score) for score in scores])
    return WerFigures(
        mean=found.mean,
        median=found.median,
        corpus=None if math.isnan(found.corpus) else found.corpus,
        share_high=found.share_high,
        edits=found.edits,
        words=found.words,
        silent=found.silent,
    )


def _item_wer(score: ItemScore) -> words.ItemWer:
    assert score.reference is not None
    assert score.words is not None
    substitutions, deletions, insertions = score.substitutions or 0, score.deletions or 0, score.insertions or 0
    hits = score.words - substitutions - deletions
    return words.ItemWer(score.reference, score.hypothesis, substitutions, deletions, insertions, hits)


def _pairs(base: Sequence[TrialScores], others: Sequence[TrialScores]) -> list[tuple[TrialScores, TrialScores]]:
    """Each other trial beside the baseline's of its round, where there is one."""
    by_round = {one.round: one for one in base}
    return [(by_round[other.round], other) for other in others if other.round in by_round]


def _flips(base: Sequence[TrialScores], others: Sequence[TrialScores]) -> Iterable[Flipped]:
    for one, two in _pairs(base, others):
        for left, right in zip(one.scores, two.scores, strict=True):
            if _other_letter(left, right):
                assert left.gold is not None
                yield Flipped(
                    id=left.id, round=two.round, arm=two.arm, gold=left.gold, base=left.letter, other=right.letter
                )


def _parities(by_arm: Mapping[str, Sequence[TrialScores]], baseline: str) -> Iterable[ParityFigures]:
    base = by_arm[baseline]
    if len(base) > 1:
        one, two = base[:2]
        yield _figures(baseline, parity(one.requests, two.requests), f"{one.round} and {two.round}", control=True)
    for arm, trials in by_arm.items():
        pairs = _pairs(base, trials)
        if arm != baseline and pairs:
            pooled = over_rounds(parity(one.requests, two.requests) for one, two in pairs)
            yield _figures(arm, pooled, ", ".join(str(two.round) for _, two in pairs), control=False)


def _figures(arm: str, found: Parity, rounds: str, *, control: bool) -> ParityFigures:
    return ParityFigures(
        arm=arm,
        control=control,
        rounds=rounds,
        compared=found.compared,
        missing=found.missing,
        equal=found.texts.equal,
        differ=found.texts.differ,
        empty=found.texts.absent,
        first_difference=found.median_position,
        audio_equal=found.digests.equal,
        audio_differ=found.digests.differ,
        audio_ratio=found.audio_ratio,
    )


def _judge(
    check: Check, by_arm: Mapping[str, Sequence[TrialScores]], baseline: str, others: Sequence[str]
) -> Iterable[Decision]:
    accept, seed = check.accept, check.seed
    for key, limit, better in (("wer", accept.max_wer, False), ("sim", accept.min_sim, True)):
        if limit is not None:
            name = "min_sim" if better else "max_wer"
            for arm, trials in by_arm.items():
                yield judge_level(name, _scores(arm, trials, key), limit=limit, higher_is_better=better, seed=seed)
    base = by_arm[baseline]
    for key, margin, better in (("wer", accept.max_wer_increase, False), ("sim", accept.max_sim_decrease, True)):
        if margin is not None:
            name = "max_sim_decrease" if better else "max_wer_increase"
            left = _scores(baseline, base, key)
            for arm in others:
                right = _scores(arm, by_arm[arm], key)
                yield judge_difference(name, left, right, margin=margin, higher_is_better=better, seed=seed)
    counted: tuple[tuple[str, int | None, _Differs], ...] = (
        ("max_flips", accept.max_flips, _other_letter),
        ("max_differing", accept.max_differing, _other_text),
    )
    for name, most, differs in counted:
        if most is not None:
            control = Scores(baseline, (_differing(base[0], base[1], differs),)) if len(base) > 1 else None
            for arm in others:
                rounds = tuple(_differing(one, two, differs) for one, two in _pairs(base, by_arm[arm]))
                yield judge_count(name, baseline, Scores(arm, rounds), control, limit=most, seed=seed)


def _scores(arm: str, trials: Sequence[TrialScores], key: str) -> Scores:
    return Scores(arm, tuple({one.id: float(getattr(one, key)) for one in trial.scores} for trial in trials))


_Differs = Callable[[ItemScore, ItemScore], bool]


def _differing(base: TrialScores, other: TrialScores, differs: _Differs) -> dict[str, float]:
    return {left.id: float(differs(left, right)) for left, right in zip(base.scores, other.scores, strict=True)}


def _other_letter(base: ItemScore, other: ItemScore) -> bool:
    """Another letter, or an answer that did not come, on either side."""
    return _unanswered(base) or _unanswered(other) or base.letter != other.letter


def _other_text(base: ItemScore, other: ItemScore) -> bool:
    """Another text, or an answer that did not come, on either side."""
    return _unanswered(base) or _unanswered(other) or base.text != other.text
