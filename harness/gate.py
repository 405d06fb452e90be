"""The gate: a policy applied to a run (docs/design.md, section 7). Pure functions of records.

Each rule gives one check per bench and arm that it fits. A check looks at the interval of the change, not at its
centre: `pass` when all of it keeps the bound, `regressed` when all of it breaks it, else `inconclusive`. A known noise
floor makes no check pass: it only makes inconclusive what breaks a bound around zero by no more than this host varies
by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from harness.errors import ExitCode, UsageError
from harness.noise import Floors, half_width
from harness.pairs import Pair
from harness.policy import Policy, Rule
from harness.records import MemoryPoint, NoiseFloor, TrialRecord
from harness.stats import (
    AUDIO_THROUGHPUT,
    FIRM_ROUNDS,
    LEVEL,
    MEAN_E2EL,
    MEDIAN_E2EL,
    MEDIAN_RTF,
    MEDIAN_TPOT,
    MEDIAN_TTFP,
    MEDIAN_TTFT,
    OUTPUT_THROUGHPUT,
    P90_E2EL,
    REQUEST_THROUGHPUT,
    THROUGHPUTS,
    Interval,
    compare,
    geometric_interval,
    offered_rate,
    same_band,
)

METRICS = (
    REQUEST_THROUGHPUT,
    OUTPUT_THROUGHPUT,
    AUDIO_THROUGHPUT,
    MEDIAN_TTFT,
    MEDIAN_TPOT,
    MEDIAN_E2EL,
    MEAN_E2EL,
    P90_E2EL,
    MEDIAN_TTFP,
    MEDIAN_RTF,
)
"""Those of a cell; a policy may bound them, and an `aa` run measures their noise."""


class Outcome(StrEnum):
    """What a check, or a whole gate, says. `reported`: shown, decides nothing."""

    PASS = "pass"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    REPORTED = "reported"


_MIRRORING = tuple(metric.key for metric in THROUGHPUTS)
ACCURACY = "accuracy"
"""The metric of a check that is an accuracy check of the scenario and brings its own bounds."""
_GRAVITY = (Outcome.REPORTED, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.REGRESSED, Outcome.INVALID)
_EXIT_CODES = {
    Outcome.REPORTED: ExitCode.OK,
    Outcome.PASS: ExitCode.OK,
    Outcome.REGRESSED: ExitCode.REGRESSED,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    Outcome.INVALID: ExitCode.INVALID,
}


@dataclass(frozen=True, slots=True)
class Changes:
    """The valid per-round quotients of one bench, arm and metric: arm over baseline arm. `dropped` pairs are not here.

    `bench` is empty for what a whole trial has, such as memory. `missing`: valid rounds in which an arm lacks the
    metric. `open_loop`: requests came at a rate of their own.
    """

    bench: str
    arm: str
    metric: str
    quotients: tuple[float, ...]
    dropped: int = 0
    missing: int = 0
    open_loop: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One rule on one bench and arm.

    Parameters:
        change: geometric mean over rounds, as a ratio minus one; None without a valid round.
        bounds: the range allowed; None for a rule that only reports.
    """

    bench: str
    arm: str
    metric: str
    change: float | None
    interval: Interval | None
    rounds: int
    bounds: Interval | None
    outcome: Outcome
    why: str

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.bench, self.arm, self.metric) if part)


@dataclass(frozen=True, slots=True)
class GateResult:
    """All checks, in the policy's order, and what they say together."""

    checks: tuple[Check, ...]

    @property
    def outcome(self) -> Outcome:
        """The gravest of all checks; but what was answered wrongly was, however little the rest can be trusted."""
        if any(check.metric == ACCURACY and check.outcome is Outcome.REGRESSED for check in self.checks):
            return Outcome.REGRESSED
        return max((check.outcome for check in self.checks), key=_GRAVITY.index, default=Outcome.INVALID)

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self.outcome]


def gate(
    policy: Policy,
    changes: Sequence[Changes],
    *,
    stored: Sequence[Changes] | None = None,
    floors: Floors | None = None,
    level: float = LEVEL,
) -> GateResult:
    """Apply a policy.

    Parameters:
        changes: everything the run can be asked of.
        stored: the same of an earlier run; the bounds are then on the change between the runs of the ratio between
            arms, in which whatever both arms of a run share cancels.
        floors: what this host was seen to vary by itself; no more than that is no regression.

    Raises:
        UsageError: a rule fits nothing.
    """
    before = None if stored is None else {(one.bench, one.arm, one.metric): one for one in stored}
    checks: list[Check] = []
    for number, rule in enumerate(policy.rules):
        fitting = [one for one in changes if one.metric == rule.metric and _fits(rule, one)]
        if not fitting and not rule.optional:
            benches = ", ".join(dict.fromkeys(one.bench for one in changes if one.metric == rule.metric and one.bench))
            raise UsageError(
                f"rules[{number}]: found bench {rule.bench!r}, arm {rule.arm!r} and metric {rule.metric}, which fit "
                f"nothing in the run; allowed: benches with that metric ({benches or 'none'}), or optional: true"
            )
        for one in fitting:
            earlier = None if before is None else before.get((one.bench, one.arm, one.metric))
            if before is not None and earlier is None:
                checks.append(_check(rule, one, None, None, None, Outcome.INVALID, "the stored run has no such row"))
                continue
            floor = None if floors is None else floors.get((one.bench, one.metric))
            checks.append(_judge(rule, one, earlier, floor, level))
    return GateResult(tuple(_mirrored(checks, changes)))


def _mirrored(checks: Sequence[Check], changes: Sequence[Changes]) -> Iterable[Check]:
    """The checks, but that the throughput of an open loop passes only beside a limit on what its answers took.

    On their mean: half of them may take any time, and the median does not see it.
    """
    rated = {(one.bench, one.arm) for one in changes if one.open_loop}
    timed = {
        (one.bench, one.arm)
        for one in checks
        if one.metric == MEAN_E2EL.key and one.bounds is not None and one.bounds.high < math.inf
    }
    for check in checks:
        row = (check.bench, check.arm)
        if check.outcome is Outcome.PASS and check.metric in _MIRRORING and row in rated - timed:
            why = f"an open loop's throughput is that of its requests; limit {MEAN_E2EL.key} too (at_most)"
            check = replace(check, outcome=Outcome.INCONCLUSIVE, why=why)
        yield check


def changes_of(pairs: Sequence[Pair], trials: Sequence[TrialRecord], baseline: str) -> tuple[Changes, ...]:
    """Everything a policy can ask of a run: metrics of every bench and arm, memory of every arm."""
    return (*_bench_changes(pairs), *_memory_changes(trials, baseline))


def _bench_changes(pairs: Sequence[Pair]) -> Iterable[Changes]:
    by_row: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        by_row.setdefault((pair.bench, pair.arm), []).append(pair)
    for (bench, arm), mine in by_row.items():
        open_loop = offered_rate(mine) is not None
        valid = len(compare(mine, REQUEST_THROUGHPUT, threshold=0.03).rounds)
        for metric in METRICS:
            measured = [pair for pair in mine if pair.base is not None and pair.other is not None]
            if measured and all(
                getattr(pair.base, metric.key) is None and getattr(pair.other, metric.key) is None for pair in measured
            ):
                continue
            found = compare(mine, metric, threshold=0.03)
            quotients = tuple(one.other / one.base for one in found.rounds)
            yield Changes(
                bench, arm, metric.key, quotients, len(found.dropped), max(valid - len(quotients), 0), open_loop
            )


def _memory_changes(trials: Sequence[TrialRecord], baseline: str) -> Iterable[Changes]:
    by_side = {(trial.round, trial.arm): trial for trial in trials if trial.status == "finished"}
    for arm in dict.fromkeys(trial.arm for trial in trials if trial.arm != baseline):
        rounds = [number for number, name in by_side if name == arm and (number, baseline) in by_side]
        for when in ("ready", "end", "peak"):
            sides = [
                (_rss(by_side[number, baseline], when), _rss(by_side[number, arm], when)) for number in sorted(rounds)
            ]
            known = [(base, other) for base, other in sides if base and other]
            if known:
                quotients = tuple(other / base for base, other in known)
                yield Changes("", arm, f"memory_{when}_rss", quotients, len(sides) - len(known))


def _rss(trial: TrialRecord, when: str) -> int | None:
    point: MemoryPoint | None = getattr(trial, f"memory_{when}")
    return None if point is None else point.rss


def _fits(rule: Rule, one: Changes) -> bool:
    return rule.fits(one.bench, one.arm) if one.bench else rule.fits("*", one.arm) and rule.of_memory


def _judge(rule: Rule, now: Changes, earlier: Changes | None, floor: NoiseFloor | None, level: float) -> Check:
    counts = [len(now.quotients)] + ([] if earlier is None else [len(earlier.quotients)])
    if min(counts) == 0:
        return _check(rule, now, None, None, None, Outcome.INVALID, f"no valid round; {now.dropped} dropped")
    for one in (now, *([] if earlier is None else [earlier])):
        if one.missing:
            why = f"measured in {len(one.quotients)} of {len(one.quotients) + one.missing} valid rounds"
            return _check(rule, now, None, None, None, Outcome.INVALID, why)
    change, interval = change_between(now.quotients, None if earlier is None else earlier.quotients, level)
    if rule.reported:
        return _check(rule, now, change, interval, None, Outcome.REPORTED, "")
    bounds = _bounds(rule)
    if interval is None or min(counts) < FIRM_ROUNDS:
        rounds = "1 valid round" if min(counts) == 1 else f"{min(counts)} valid rounds"
        why = f"{rounds}; {FIRM_ROUNDS} are needed to decide"
        return _check(rule, now, change, interval, bounds, Outcome.INCONCLUSIVE, why)
    if bounds.low <= interval.low and interval.high <= bounds.high:
        return _check(rule, now, change, interval, bounds, Outcome.PASS, "")
    if not _beyond(interval, bounds):
        return _check(rule, now, change, interval, bounds, Outcome.INCONCLUSIVE, "the interval crosses the bound")
    if floor is not None and not _beyond(interval, _widened(bounds, floor, min(counts))):
        why = f"all of it breaks the bound, and is no more than this host's noise floor ({floor.run})"
        return _check(rule, now, change, interval, bounds, Outcome.INCONCLUSIVE, why)
    return _check(rule, now, change, interval, bounds, Outcome.REGRESSED, "")


def _widened(bounds: Interval, floor: NoiseFloor, rounds: int) -> Interval:
    noise = same_band(half_width(floor, rounds))
    # A bound that asks for a gain is a claim about the change, not a tolerance for noise.
    low = min(noise.low, bounds.low) if bounds.low <= 0.0 else bounds.low
    return Interval(low, max(noise.high, bounds.high) if bounds.high >= 0.0 else bounds.high)


def _bounds(rule: Rule) -> Interval:
    low = -math.inf if rule.at_least is None else rule.at_least
    return Interval(low, math.inf if rule.at_most is None else rule.at_most)


def _beyond(interval: Interval, bounds: Interval) -> bool:
    return interval.high < bounds.low or interval.low > bounds.high


def change_between(
    now: tuple[float, ...], earlier: tuple[float, ...] | None, level: float
) -> tuple[float, Interval | None]:
    """The geometric mean change and its t interval; against an earlier run, Welch's for the difference of the logs."""
    if earlier is None:
        logs = np.log(now)
        if len(now) < 2:
            return math.expm1(float(logs.mean())), None
        low, middle, high = (float(bound) - 1.0 for bound in geometric_interval(np.array(now), level))
        return middle, Interval(low, high)
    from scipy.special import stdtrit

    one, two = np.log(now), np.log(earlier)
    centre = float(one.mean() - two.mean())
    if min(len(one), len(two)) < 2:
        return math.expm1(centre), None
    parts = [float(side.var(ddof=1)) / len(side) for side in (one, two)]
    if sum(parts) == 0.0:
        return math.expm1(centre), Interval(math.expm1(centre), math.expm1(centre))
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (one, two), strict=True))
    half = float(stdtrit(freedom, 0.5 + level / 2)) * math.sqrt(sum(parts))
    return math.expm1(centre), Interval(math.expm1(centre - half), math.expm1(centre + half))


def _check(
    rule: Rule,
    one: Changes,
    change: float | None,
    interval: Interval | None,
    bounds: Interval | None,
    outcome: Outcome,
    why: str,
) -> Check:
    # A rule that only reports has nothing to fail by, not even by missing data.
    outcome = Outcome.REPORTED if rule.reported else outcome
    return Check(one.bench, one.arm, one.metric, change, interval, len(one.quotients), bounds, outcome, why)
