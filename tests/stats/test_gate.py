"""The gate: a policy of bounds, applied to the interval of every change."""

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from cell_factory import make_pairs

from harness.errors import ScenarioError, UsageError
from harness.gate import Changes, Outcome, changes_of, gate
from harness.policy import Policy, load_policy
from harness.records import NoiseFloor

STEADY = (1.000, 1.004, 0.998, 1.002, 0.997, 1.001)
SLOWER = tuple(0.95 * one for one in STEADY)
WILD = (0.85, 1.15, 0.90, 1.12, 0.88, 1.10)


def policy(*rules: dict[str, object]) -> Policy:
    return Policy.model_validate({"schema": 1, "rules": list(rules)})


def changes(*quotients: float, bench: str = "DEC_h0", metric: str = "request_throughput") -> Changes:
    return Changes(bench, "cache_on", metric, quotients)


AT_LEAST = {"bench": "*_h0", "metric": "request_throughput", "at_least": -0.03}


@pytest.mark.parametrize(
    ("quotients", "outcome", "code"),
    [
        (STEADY, Outcome.PASS, 0),
        (SLOWER, Outcome.REGRESSED, 1),
        (WILD, Outcome.INCONCLUSIVE, 3),
        ((), Outcome.INVALID, 4),
        (SLOWER[:2], Outcome.INCONCLUSIVE, 3),
    ],
)
def test_the_whole_interval_decides(quotients: tuple[float, ...], outcome: Outcome, code: int) -> None:
    """Inside the bound passes, outside regresses, across it or under 3 rounds is inconclusive, no round is invalid."""
    result = gate(policy(AT_LEAST), [changes(*quotients)])
    assert (result.outcome, result.exit_code) == (outcome, code)


def test_the_gravest_check_speaks_for_the_gate() -> None:
    """One regressed bench among passing and inconclusive ones fails the gate, an invalid one even more."""
    rows = [changes(*STEADY, bench="A_h0"), changes(*WILD, bench="B_h0"), changes(*SLOWER, bench="C_h0")]
    assert gate(policy(AT_LEAST), rows).outcome is Outcome.REGRESSED
    assert gate(policy(AT_LEAST), [*rows, changes(bench="D_h0")]).outcome is Outcome.INVALID


def test_a_rule_that_only_reports_never_fails() -> None:
    """Its check shows the change and its interval, and passes whatever they are."""
    rule = {"metric": "request_throughput", "reported": True}
    result = gate(policy(rule), [changes(*SLOWER)])
    assert result.exit_code == 0
    assert result.checks[0].change == pytest.approx(-0.05, abs=0.002)


def test_a_rule_that_fits_nothing_is_an_error_unless_optional() -> None:
    """A renamed bench must not turn a gate off in silence."""
    rule = {**AT_LEAST, "bench": "GONE_*"}
    with pytest.raises(UsageError, match=r"rules\[0\]: found bench 'GONE_\*'.*allowed: benches .*DEC_h0"):
        gate(policy(rule), [changes(*STEADY)])
    assert gate(policy(AT_LEAST, {**rule, "optional": True}), [changes(*STEADY)]).exit_code == 0


def test_a_latency_may_not_rise() -> None:
    """at_most bounds from above."""
    rule = {"metric": "median_ttft_ms", "at_most": 0.05}
    slow = tuple(1 / one for one in SLOWER)
    assert gate(policy(rule), [changes(*STEADY, metric="median_ttft_ms")]).exit_code == 0
    assert gate(policy(rule), [changes(*[1.1 * one for one in slow], metric="median_ttft_ms")]).exit_code == 1


def test_against_a_stored_run_what_both_arms_share_cancels() -> None:
    """The change is that of the ratio between arms; the interval is Welch's for the difference of the logs."""
    now, before = changes(*(1.10 * one for one in STEADY)), changes(*(1.20 * one for one in STEADY[:5]))
    check = gate(policy({**AT_LEAST, "at_least": -0.2}), [now], stored=[before]).checks[0]
    assert check.change == pytest.approx(1.10 / 1.20 - 1, abs=0.002)
    one, two = np.log(now.quotients), np.log(before.quotients)
    expected = scipy.stats.ttest_ind(one, two, equal_var=False).confidence_interval(0.95)
    assert check.interval is not None
    assert check.interval.low == pytest.approx(math.expm1(expected.low))
    assert check.interval.high == pytest.approx(math.expm1(expected.high))


def test_a_row_that_the_stored_run_lacks_is_invalid() -> None:
    """Nothing to compare with is not a pass."""
    assert gate(policy(AT_LEAST), [changes(*STEADY)], stored=[]).outcome is Outcome.INVALID


def test_a_noise_floor_excuses_and_passes_nothing() -> None:
    """What the host does by itself is no regression past a bound around zero, and no pass; a claim stands."""
    floor = {("DEC_h0", "request_throughput"): NoiseFloor(bench="DEC_h0", deviation=0.03, rounds=6, run="aa")}
    crossing = gate(policy(AT_LEAST), [changes(*(0.97 * one for one in STEADY))], floors=floor)
    assert crossing.outcome is Outcome.INCONCLUSIVE
    result = gate(policy(AT_LEAST), [changes(*SLOWER)], floors=floor)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "noise floor (aa)" in result.checks[0].why
    demanded = policy({**AT_LEAST, "at_least": 0.5})
    assert gate(demanded, [changes(*SLOWER)], floors=floor).outcome is Outcome.REGRESSED


def test_a_run_offers_every_metric_that_its_cells_have() -> None:
    """Quotients are arm over baseline, one per valid round; a metric no cell has is not offered."""
    found = {(one.bench, one.metric): one for one in changes_of(make_pairs([8, 10], [4, 11]), (), "cache_off")}
    assert found["P1024", "request_throughput"].quotients == (0.5, 1.1)
    assert ("P1024", "median_ttft_ms") in found
    assert ("P1024", "audio_throughput") not in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema: 1\nrules: []\n", "rules"),
        ("schema: 1\nrules:\n  - {metric: speed, at_least: 0}\n", "metric"),
        ("schema: 1\nrules:\n  - {metric: median_ttft_ms, at_most: 10}\n", "0.1 is ten percent"),
        ("schema: 1\nrules:\n  - {metric: request_throughput}\n", "no bound"),
        ("schema: 1\nrules:\n  - {metric: request_throughput, at_least: 0, reported: true}\n", "reported beside"),
        ("schema: 1\nrules:\n  - {metric: request_throughput, at_least: 1, at_most: 0}\n", "above at_most"),
        ("schema: 1\nrules:\n  - {metric: request_throughput, at_lest: 0}\n", "did you mean 'at_least'"),
    ],
)
def test_a_wrong_policy_is_one_message_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    """File, line, what was found and what is allowed."""
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=r"policy\.yaml:\d+.*") as caught:
        load_policy(path)
    assert message in str(caught.value)
