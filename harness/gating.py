"""A recorded run under a policy: what `bench gate` decides. Reads records, starts nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.accuracy.decision import Verdict
from harness.accuracy.verdict import summaries_of, unscored
from harness.compare import differences_between
from harness.errors import UsageError
from harness.extend import comparisons
from harness.gate import ACCURACY, Changes, Check, GateResult, Outcome, changes_of, gate
from harness.noise import floors_by_row
from harness.pairs import Pair, pair_up
from harness.policy import Policy
from harness.recorded import scenario_of
from harness.records import Manifest, TrialRecord
from harness.scenario import Scenario
from harness.store import RunStore

_ACCURACY = {
    Verdict.PASS: Outcome.PASS,
    Verdict.FAIL: Outcome.REGRESSED,
    Verdict.INCONCLUSIVE: Outcome.INCONCLUSIVE,
    Verdict.INVALID: Outcome.INVALID,
}


def check_policy(policy: Policy, scenario: Scenario) -> None:
    """Finds, before anything is started, a rule that no bench or arm of the scenario could ever meet.

    Raises:
        UsageError: the rule, what was found and what is allowed.
    """
    if policy.accuracy == "required" and not any(
        check.accept.model_dump(exclude_none=True) for check in scenario.checks
    ):
        raise UsageError(
            f"accuracy: found required, and no accuracy check with limits in scenario {scenario.name}; allowed: a "
            "scenario whose `accuracy` section has an `accept` block, or a policy without the key"
        )
    benches = [bench.name for bench in scenario.benches if bench.reported]
    arms = [arm for arm in scenario.arms if arm != scenario.baseline]
    if not arms and (not scenario.checks or not all(rule.optional for rule in policy.rules)):
        raise UsageError(
            f"scenario {scenario.name}: found one arm, {scenario.baseline}, and rules, which bound what changes from "
            "it to another arm; allowed: two arms or more"
        )
    allowed = f"allowed: benches {', '.join(benches)}; arms {', '.join(arms) or 'none'}"
    met, judging = 0, policy.deciding or policy.rules
    for number, rule in enumerate(policy.rules):
        fits = any(rule.fits(bench, arm) for bench in (["*"] if rule.of_memory else benches) for arm in arms)
        met += fits and rule in judging
        if not fits and not rule.optional:
            raise UsageError(
                f"rules[{number}]: found bench {rule.bench!r} and arm {rule.arm!r}, which fit nothing of scenario "
                f"{scenario.name}; {allowed}; or optional: true"
            )
    if not met and not scenario.checks:
        raise UsageError(f"rules: found {len(judging)}, none of which fits scenario {scenario.name}; {allowed}")


def run_changes(store: RunStore) -> tuple[Changes, ...]:
    """Everything a policy can ask of a run.

    Raises:
        RecordError: a record is missing or unreadable.
    """
    return _read(store).changes


def gate_run(store: RunStore, policy: Policy, stored: RunStore | None = None) -> GateResult:
    """Applies a policy to a run, which must itself be whole and valid.

    Parameters:
        stored: an earlier run to compare with, in place of the bounds on the change against the baseline arm.

    Raises:
        UsageError: a rule fits nothing, or the earlier run does not match.
        RecordError: a record is missing or unreadable.
    """
    run = _read(store)
    check_policy(policy, run.scenario)
    whole, before = list(_why_invalid(run)), None
    if stored is not None:
        _check_same(stored, store)
        before = _read(stored)
        whole += [f"the stored run: {why}" for why in _why_invalid(before)]
    result = gate(
        policy,
        run.changes,
        stored=None if before is None else before.changes,
        floors=floors_by_row(store.noise()),
    )
    checks = (*result.checks, *_accuracy(store))
    if policy.deciding and all(one.outcome is Outcome.REPORTED for one in checks):
        metrics = ", ".join(dict.fromkeys(rule.metric for rule in policy.deciding))
        raise UsageError(f"rules: found bounds on {metrics} alone, which no bench that they fit has measured")
    return GateResult((*checks, *map(_invalid, whole)))


def _accuracy(store: RunStore) -> Iterable[Check]:
    """A check per accuracy check of the scenario: it brings its own bound."""
    for summary in summaries_of(store):
        if summary.verdict is not None:
            rounds = max((len(arm.rounds) for arm in summary.arms), default=0)
            why = "; ".join(
                f"{one.check} of {one.arm}: {', '.join(one.reasons)}"
                for one in summary.judgements
                if one.verdict is summary.verdict and one.reasons
            )
            yield Check(summary.check, "", ACCURACY, None, None, rounds, None, _ACCURACY[summary.verdict], why)
    for name in unscored(store):
        why = f"not scored: bench score {store.path}"
        yield Check(name, "", ACCURACY, None, None, 0, None, Outcome.INCONCLUSIVE, why)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A run, read once."""

    manifest: Manifest
    scenario: Scenario
    trials: tuple[TrialRecord, ...]
    pairs: tuple[Pair, ...]

    @property
    def changes(self) -> tuple[Changes, ...]:
        return changes_of(self.pairs, self.trials, self.scenario.baseline)


def _read(store: RunStore) -> _Recorded:
    manifest, trials = store.manifest(), store.trials()
    scenario = scenario_of(manifest)
    return _Recorded(manifest, scenario, trials, pair_up(scenario, manifest.plan, trials, store.cells()))


def _why_invalid(run: _Recorded) -> tuple[str, ...]:
    """What is wrong with a run as a whole, one sentence each."""
    reasons = []
    planned = len(run.manifest.plan)
    if missing := planned - len(run.trials):
        reasons.append(f"the run is unfinished: {missing} of {planned} trials have no record")
    if failed := [trial.slug for trial in run.trials if trial.status == "failed"]:
        reasons.append(f"the server died in {', '.join(failed)}")
    for row in comparisons(run.scenario, run.pairs):
        # A pair that was replaced by another round is no loss.
        if row.dropped and len(row.rounds) < run.scenario.rounds:
            rounds = ", ".join(str(pair.round) for pair in row.dropped)
            reasons.append(f"{row.bench}, {row.arm}: the pair of round {rounds} did not count and was not replaced")
    return tuple(reasons)


def _invalid(why: str) -> Check:
    return Check("", "", "run", None, None, 0, None, Outcome.INVALID, why)


def _check_same(stored: RunStore, now: RunStore) -> None:
    """Numbers of another load, model, host or server may not be compared, whatever they are called; nor a run
    with itself.
    """
    if stored.manifest().run == now.manifest().run:
        raise UsageError(f"--baseline: found {stored.path}, the run that is gated; allowed: an earlier one")
    differences = [str(one) for one in differences_between(stored, now) if one.blocks]
    if differences:
        raise UsageError(
            f"{stored.path}: found {len(differences)} differences in what must be the same; allowed: a run that "
            "matches\n  " + "\n  ".join(differences)
        )
