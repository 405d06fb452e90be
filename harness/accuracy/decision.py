"""Whether an arm is no worse than the baseline by more than a scenario accepts. Pure functions.

Three kinds of question, each with its own rule:

* a **level** (`max_wer`, `min_sim`) is about the items that were asked, whose mean is known: it passes or fails;
* a **difference** (`max_wer_increase`, `max_sim_decrease`) is about what could have been asked: it passes when the
  whole interval of the paired difference is within the margin, fails when the whole interval is beyond it, and is
  inconclusive in between or with too few items to say;
* a **count** (`max_flips`, `max_differing`) of items answered differently is read beside its control, the baseline
  against itself, because servers that batch are not deterministic: within the limit it passes; beyond it, it fails
  only when the arm differs from the baseline on more items than the baseline from itself, by an interval that leaves
  out zero, and is inconclusive otherwise or without a control.

Rounds are averaged item by item first. An item that is missing anywhere makes the question invalid and is named:
leaving it out would hide exactly the answers that did not come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from harness.accuracy.bootstrap import MIN_ITEMS, Estimate, mean_interval

_ROUNDING = 1e-9
"""Means are sums of floats: a limit that is included must not fall to the last bit of one."""
_NAMED = 5
"""Missing items that a reason names before it counts the rest."""


class Verdict(StrEnum):
    """In order of gravity, the gravest last."""

    PASS = "pass"
    INCONCLUSIVE = "inconclusive"
    FAIL = "fail"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Scores:
    """One arm's scores of one measure.

    Parameters:
        name: of the arm, for people: `cache_on`.
        rounds: for each round a score by item id. Levels and differences take the measure itself (a WER, a
            similarity); counts take 1 where the item was answered differently and 0 where not.
    """

    name: str
    rounds: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """One question and its answer.

    Parameters:
        check: the key of the scenario's `accept` block: `max_wer_increase`.
        arm, baseline: names; `baseline` is None for a level.
        limit: what the scenario accepts.
        value: the mean, the difference (positive is worse), or the number of items; None where invalid.
        low, high: the interval of `value` over items, at 95 %; None where there is none.
        control: for a count, the same number for the baseline against itself; None without one.
        items: items compared.
        reasons: why it is not simply a pass.
    """

    check: str
    arm: str
    baseline: str | None
    limit: float
    value: float | None
    low: float | None
    high: float | None
    control: float | None
    items: int
    verdict: Verdict
    reasons: tuple[str, ...]


def judge_level(check: str, arm: Scores, *, limit: float, higher_is_better: bool, seed: int) -> Decision:
    """`arm`'s mean against a limit, the limit itself included."""
    if problem := _problems([arm]):
        return _invalid(check, arm, None, limit, problem)
    estimate = mean_interval(np.array(list(_mean_by_item(arm).values())), seed=seed)
    good = estimate.mean >= limit - _ROUNDING if higher_is_better else estimate.mean <= limit + _ROUNDING
    relation = "below" if higher_is_better else "above"
    reasons = () if good else (f"the mean {_said(check, estimate.mean)} is {relation} {_limit(check, limit)}",)
    return _decided(check, arm, None, limit, estimate, Verdict.PASS if good else Verdict.FAIL, reasons)


def judge_difference(
    check: str, base: Scores, arm: Scores, *, margin: float, higher_is_better: bool, seed: int
) -> Decision:
    """How much worse `arm` is than `base`, paired by item, against the margin; positive is worse."""
    if problem := _problems([base, arm]):
        return _invalid(check, arm, base.name, margin, problem)
    before, after = _mean_by_item(base), _mean_by_item(arm)
    sign = -1.0 if higher_is_better else 1.0
    worse = np.array([sign * (after[item] - before[item]) for item in before])
    estimate = mean_interval(worse, seed=seed)
    verdict, reason = _within(check, estimate, margin)
    return _decided(check, arm, base.name, margin, estimate, verdict, (reason,) if reason else ())


def judge_count(check: str, base: str, arm: Scores, control: Scores | None, *, limit: float, seed: int) -> Decision:
    """How many items `arm` answers differently than the baseline, beside how many the baseline differs on by itself.

    Parameters:
        base: the baseline's name.
        arm: 1 or 0 by item, a round at a time, against the baseline of the same round.
        control: the same for the baseline against itself in another trial; None where there is but one.
        limit: number of items accepted; a mean over rounds is compared with it.
    """
    sides = [arm] if control is None else [arm, control]
    if problem := _problems(sides):
        return _invalid(check, arm, base, limit, problem)
    differing = _mean_by_item(arm)
    count = math.fsum(differing.values())
    own = _mean_by_item(control) if control is not None else None
    own_count = None if own is None else math.fsum(own.values())
    estimate = Estimate(count, None, None, len(differing))
    if count <= limit + _ROUNDING:
        return _decided(check, arm, base, limit, estimate, Verdict.PASS, (), control=own_count)
    found = f"{count:g} items differ, {limit:g} are accepted"
    if own is None:
        verdict, reason = Verdict.INCONCLUSIVE, f"{found}, and {base} was not measured twice as a control"
    else:
        excess = mean_interval(np.array([differing[item] - own[item] for item in differing]), seed=seed)
        beyond = excess.low is not None and excess.low > 0.0
        verdict = Verdict.FAIL if beyond else Verdict.INCONCLUSIVE
        relation = "fewer" if beyond else "not distinguishably fewer"
        reason = f"{found}; {base} differs from itself on {own_count:g}, {relation}"
    return _decided(check, arm, base, limit, estimate, verdict, (reason,), control=own_count)


def gravest(decisions: Iterable[Decision]) -> Verdict:
    """The verdict of all questions together. Raises ValueError for no question: nothing asked is nothing passed."""
    verdicts = {decision.verdict for decision in decisions}
    if not verdicts:
        raise ValueError("no decision to sum up")
    return max(verdicts, key=list(Verdict).index)


def _within(check: str, worse: Estimate, margin: float) -> tuple[Verdict, str | None]:
    if worse.low is None or worse.high is None:
        return Verdict.INCONCLUSIVE, f"{worse.items} items: an interval needs {MIN_ITEMS}"
    if worse.high <= margin + _ROUNDING:
        return Verdict.PASS, None
    if worse.low > margin + _ROUNDING:
        return Verdict.FAIL, f"worse by {_said(check, worse.low)} at least, {_limit(check, margin)} is accepted"
    between = f"{_said(check, worse.low)} to {_said(check, worse.high)}"
    return Verdict.INCONCLUSIVE, f"worse by {between}, {_limit(check, margin)} is accepted"


def _said(check: str, value: float) -> str:
    """A word error rate is a percentage, a similarity is not."""
    return f"{value:.2%}" if "wer" in check else f"{value:.4f}"


def _limit(check: str, value: float) -> str:
    return f"{100 * value:g}%" if "wer" in check else f"{value:g}"


def _mean_by_item(scores: Scores) -> dict[str, float]:
    """Mean over rounds, by item id in sorted order, so that a seed means the same whoever wrote the files."""
    return {
        item: math.fsum(one[item] for one in scores.rounds) / len(scores.rounds) for item in sorted(scores.rounds[0])
    }


def _problems(sides: Sequence[Scores]) -> tuple[str, ...]:
    problems = [f"{side.name}: no round was scored" for side in sides if not side.rounds]
    asked = {item for side in sides for one in side.rounds for item in one}
    if not asked:
        return (*problems, "no item was scored")
    for side in sides:
        for number, one in enumerate(side.rounds, start=1):
            where = f"{side.name}, scored round {number} of {len(side.rounds)}"
            if missing := sorted(asked - one.keys()):
                problems.append(f"{where}: {_some(missing)} missing")
            if wrong := sorted(item for item, value in one.items() if not math.isfinite(value)):
                problems.append(f"{where}: {_some(wrong)} without a finite score")
    return tuple(problems)


def _some(items: list[str]) -> str:
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    return f"{len(items)} items ({', '.join(items[:_NAMED])}{more})" if len(items) > 1 else f"item {items[0]}"


def _invalid(check: str, arm: Scores, baseline: str | None, limit: float, reasons: tuple[str, ...]) -> Decision:
    return Decision(check, arm.name, baseline, limit, None, None, None, None, 0, Verdict.INVALID, reasons)


def _decided(
    check: str,
    arm: Scores,
    baseline: str | None,
    limit: float,
    estimate: Estimate,
    verdict: Verdict,
    reasons: tuple[str, ...],
    control: float | None = None,
) -> Decision:
    return Decision(
        check=check,
        arm=arm.name,
        baseline=baseline,
        limit=limit,
        value=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        control=control,
        items=estimate.items,
        verdict=verdict,
        reasons=reasons,
    )
