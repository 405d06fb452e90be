"""`bench gate` on recorded runs: the policy, the run's own validity, an earlier run, and the files CI reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from night_run import BOUND, night, policy
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import UsageError
from harness.gate import ACCURACY, Check, GateResult, Outcome
from harness.gate_text import sentence
from harness.gating import check_policy, gate_run
from harness.junit import junit_xml
from harness.noise import load_sha256
from harness.policy import load_policy
from harness.recorded import scenario_of
from harness.records import Extension, NoiseFloor, NoiseRecord
from harness.scenario import load_scenario
from harness.store import RunStore

ROOT = Path(__file__).parent.parent.parent


def run_checks(result: GateResult) -> list[str]:
    return [check.why for check in result.checks if check.metric == "run"]


def test_a_slower_arm_regresses(tmp_path: Path) -> None:
    """The bench whose whole interval breaks the bound is the one that is named."""
    result = gate_run(night(tmp_path, 1, slower=0.2), policy(BOUND))
    assert result.exit_code == 1
    assert {check.bench for check in result.checks if check.outcome is Outcome.REGRESSED} >= {"DEC100_c4"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"skip": ("r04-2-cache_off",)}, "unfinished: 1 of 8 trials"),
        ({"failed": ("r02-1-cache_on",)}, "the server died in r02-1-cache_on"),
        ({"invalid": (("r02-1-cache_on", "DEC100_c4", "late"),)}, "DEC100_c4, cache_on: the pair of round 2"),
    ],
    ids=["unfinished", "failed trial", "dropped pair"],
)
def test_a_run_that_is_not_whole_and_valid_is_invalid(tmp_path: Path, changes: dict, reason: str) -> None:
    """Whatever its other checks say."""
    result = gate_run(night(tmp_path, 1, **changes), policy({**BOUND, "at_least": -0.9}))
    assert result.exit_code == 4
    assert any(reason in why for why in run_checks(result))


def test_wrong_answers_are_wrong_however_little_the_rest_is_worth() -> None:
    """An accuracy check that failed is named and exits 1, also where pairs of benches did not count."""
    wrong = Check("SAY", "", ACCURACY, None, None, 2, None, Outcome.REGRESSED, "max_wer of cache_on: above")
    dropped = Check("", "", "run", None, None, 0, None, Outcome.INVALID, "the pair of round 1 did not count")
    result = GateResult((dropped, wrong))
    assert result.exit_code == 1
    assert sentence(result) == "regressed: 1 of 2 checks (SAY accuracy)"
    slower = replace(wrong, metric="request_throughput")
    assert GateResult((dropped, slower)).exit_code == 4


def replaced(store: RunStore) -> RunStore:
    """The run as if only three rounds had been planned, and the fourth added for one that did not count."""
    manifest = store.manifest()
    more = Extension(rounds=(4,), reason="replacement", why="a pair did not count", at="2026-01-01T00:00:00Z")
    scenario = {**manifest.scenario, "rounds": 3}
    store.write_manifest(manifest.model_copy(update={"scenario": scenario, "extensions": (more,)}))
    return store


def test_a_pair_that_was_replaced_is_no_loss(tmp_path: Path) -> None:
    """As many rounds count as were planned."""
    store = replaced(night(tmp_path, 1, invalid=(("r02-1-cache_on", "DEC100_c4", "late"),)))
    result = gate_run(store, policy({**BOUND, "at_least": -0.9}))
    assert result.exit_code == 0
    assert run_checks(result) == []


def test_an_earlier_run_of_another_load_is_refused(tmp_path: Path) -> None:
    """Equal names are not equal loads."""
    now, before = night(tmp_path, 1), night(tmp_path, 2)
    assert gate_run(now, policy({**BOUND, "at_least": -0.5}), before).exit_code == 0
    manifest = before.manifest()
    benches = [{**bench, "prompts": bench["prompts"] + 1} for bench in manifest.scenario["benches"][:2]]
    scenario = {**manifest.scenario, "benches": [*benches, *manifest.scenario["benches"][2:]]}
    before.write_manifest(manifest.model_copy(update={"scenario": scenario}))
    with pytest.raises(
        UsageError, match=r"(?s)allowed: a run that matches\n.*benches\.warm\.prompts.*benches\.P1024_h0_c4\.prompts"
    ):
        gate_run(now, policy(BOUND), before)


@pytest.mark.parametrize(("slower", "known", "unknown"), [(0.04, 3, 1), (0.028, 3, 3), (0.01, 0, 0)])
def test_the_noise_floor_that_the_run_kept_excuses_and_passes_nothing(
    tmp_path: Path, slower: float, known: int, unknown: int
) -> None:
    """It is read from the run's folder, so that the same run is always judged alike. What breaks a bound within the
    floor is no regression, and nothing passes for being within it: this host cannot tell."""
    store = night(tmp_path, 1, slower=slower)
    narrow = policy({"bench": "P1024_h0_c4", "metric": "request_throughput", "at_least": -0.03})
    assert gate_run(store, narrow).exit_code == unknown
    floor = NoiseFloor(bench="P1024_h0_c4", deviation=0.05, rounds=6, run="aa")
    scenario = scenario_of(store.manifest())
    loads = {"P1024_h0_c4": load_sha256(scenario, "P1024_h0_c4")}
    store.write_noise(
        NoiseRecord(host_class="h", scenario="synthetic", measured_at="2026", loads=loads, floors=(floor,))
    )
    assert gate_run(store, narrow).exit_code == known


def test_a_policy_that_cannot_fit_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """The rule and what there is."""
    scenario = scenario_of(night(tmp_path, 1).manifest())
    check_policy(policy(BOUND, {"metric": "memory_peak_rss", "at_most": 0.1}), scenario)
    with pytest.raises(UsageError, match=r"rules\[0\]: found bench 'NO\*'.*allowed: benches P1024_h0_c4"):
        check_policy(policy({**BOUND, "bench": "NO*"}), scenario)


@pytest.mark.parametrize("file", sorted((ROOT / "policies").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_policies_fit_what_they_are_for(file: Path) -> None:
    """Each is valid and could be met: by the quickstart, and the one on accuracy by the scenario that has some."""
    scenario = "speech_cpu" if file.stem == "accuracy" else "quickstart"
    check_policy(load_policy(file), load_scenario(ROOT / "scenarios" / f"{scenario}.yaml"))


def test_required_accuracy_that_is_not_there_is_refused() -> None:
    """A job that gates accuracy alone must not stay green on a scenario without any."""
    scenario = load_scenario(ROOT / "scenarios" / "quickstart.yaml")
    with pytest.raises(UsageError, match="accuracy: found required, and no accuracy check with limits in scenario q"):
        check_policy(load_policy(ROOT / "policies" / "accuracy.yaml"), scenario)


def test_a_policy_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    """Rules that may be left out, all of them left out, judge nothing: a slip, told before anything starts."""
    store = night(tmp_path, 1)
    nothing = policy({**BOUND, "bench": "ZZZ*", "optional": True})
    for judge in (lambda: check_policy(nothing, scenario_of(store.manifest())), lambda: gate_run(store, nothing)):
        with pytest.raises(UsageError, match="rules: found 1, none of which fits scenario"):
            judge()


def test_rules_on_a_single_arm_are_refused_by_what_is_missing(tmp_path: Path) -> None:
    """The arm that is not there is named, not the benches that are; so too where the run is unfinished."""
    for number, skip in enumerate(((), ("r02-1-cache_off", "r03-1-cache_off")), 1):
        store = night(tmp_path, number, one_arm=True, skip=skip)
        for rule in (BOUND, {**BOUND, "optional": True}):
            with pytest.raises(UsageError, match=r"scenario synthetic: found one arm, cache_off, .*two arms or more"):
                gate_run(store, policy(rule))


def test_a_policy_whose_bounds_fit_nothing_is_refused_whatever_it_reports(tmp_path: Path) -> None:
    """A misspelt bench, or a metric that nobody measured, beside a rule that only shows decides nothing."""
    store = night(tmp_path, 1, slower=0.3)
    shown = {"bench": "*", "metric": "request_throughput", "reported": True}
    misspelt = policy({**BOUND, "bench": "P1023*", "optional": True}, shown)
    with pytest.raises(UsageError, match="rules: found 1, none of which fits scenario"):
        check_policy(misspelt, scenario_of(store.manifest()))
    unmeasured = policy({"bench": "DEC*", "metric": "median_audio_rtf", "at_most": 0.1, "optional": True}, shown)
    with pytest.raises(UsageError, match="found bounds on median_audio_rtf alone, which no bench that they fit has"):
        gate_run(store, unmeasured)
    assert gate_run(store, policy(shown)).outcome is Outcome.REPORTED


def test_a_run_is_no_baseline_of_itself(tmp_path: Path) -> None:
    """Every change would be none, and the gate would pass whatever the arms do."""
    store = night(tmp_path, 1, slower=0.3)
    with pytest.raises(UsageError, match="the run that is gated; allowed: an earlier one"):
        gate_run(store, policy(BOUND), RunStore(store.path))


def test_a_metric_that_some_valid_rounds_lack_is_invalid(tmp_path: Path) -> None:
    """What is left of it is no sample of all rounds."""
    store = night(tmp_path, 1)
    path = store.path / "trials" / "r02-1-cache_on" / "DEC100_c4.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "median_ttft_ms": None}))
    rule = {"bench": "DEC*", "metric": "median_ttft_ms", "at_most": 0.5}
    result = gate_run(store, policy(rule))
    assert result.exit_code == 4
    rounds = len(store.manifest().plan) // 2
    assert result.checks[0].why == f"measured in {rounds - 1} of {rounds} valid rounds"


def test_an_earlier_run_of_another_server_is_refused(tmp_path: Path) -> None:
    """Another model or argument is not what changed on purpose between two runs of a gate."""
    now, before = night(tmp_path, 1), night(tmp_path, 2)
    manifest = before.manifest()
    before.write_manifest(manifest.model_copy(update={"scenario": {**manifest.scenario, "model": "another"}}))
    with pytest.raises(
        UsageError, match=r"what must be the same; allowed: a run that matches\n  scenario model: .another. and"
    ):
        gate_run(now, policy(BOUND), before)


def test_an_earlier_run_that_is_not_whole_judges_nothing(tmp_path: Path) -> None:
    """A server that died then makes the gate invalid now."""
    now, before = night(tmp_path, 1), night(tmp_path, 2, failed=("r01-2-cache_on",))
    result = gate_run(now, policy({**BOUND, "at_least": -0.5}), before)
    assert result.exit_code == 4
    assert "the stored run: the server died in r01-2-cache_on" in run_checks(result)


def open_loop(store: RunStore) -> RunStore:
    """The run as if its requests had come at a rate."""
    for path in store.path.glob("trials/*/*.json"):
        record = json.loads(path.read_text())
        if "request_rate" in record:
            path.write_text(json.dumps({**record, "request_rate": 8.0}))
    return store


def test_an_open_loop_passes_by_its_latency_alone(tmp_path: Path) -> None:
    """Its throughput is that of the load, however long an answer takes; a drop in it still counts."""
    store = open_loop(night(tmp_path, 1))
    latency = {"bench": "*", "metric": "mean_e2el_ms", "at_most": 0.5}
    result = gate_run(store, policy(BOUND))
    assert result.exit_code == 3
    assert all("limit mean_e2el_ms too" in check.why for check in result.checks)
    assert gate_run(store, policy(BOUND, latency)).exit_code == 0
    assert gate_run(store, policy(BOUND, {**latency, "at_most": None, "reported": True})).exit_code == 3
    for blind in ({**latency, "metric": "median_e2el_ms"}, {**latency, "at_most": None, "at_least": -0.9}):
        assert gate_run(store, policy(BOUND, blind)).exit_code == 3, "half of the answers, or no limit"
    slow = open_loop(night(tmp_path / "slow", 1, slower=0.3))
    assert gate_run(slow, policy(BOUND, latency)).exit_code == 1


def test_junit_counts_are_those_of_its_elements(tmp_path: Path) -> None:
    """A case per check; regressed is a failure, invalid an error, inconclusive skipped, everything else passes."""
    store = night(tmp_path, 1, slower=0.2, failed=("r02-1-cache_on",))
    rules = (
        BOUND,
        {"bench": "AUD*", "metric": "request_throughput", "at_least": 0.0},
        {**BOUND, "bench": "P1024_h94*"},
    )
    result = gate_run(store, policy(*rules))
    root = ElementTree.fromstring(junit_xml(result, store.manifest()))
    (suite,) = root
    assert root.tag == "testsuites"
    assert len(suite.findall("testcase")) == len(result.checks) == int(suite.attrib["tests"])
    for attribute, element, outcome in (
        ("failures", "failure", Outcome.REGRESSED),
        ("errors", "error", Outcome.INVALID),
        ("skipped", "skipped", Outcome.INCONCLUSIVE),
    ):
        expected = sum(check.outcome is outcome for check in result.checks)
        assert expected > 0, outcome
        assert len(suite.findall(f"testcase/{element}")) == int(suite.attrib[attribute]) == expected
    allowed = {"testcase", "failure", "error", "skipped", "system-out"}
    assert {element.tag for element in suite.iter()} - {"testsuite"} <= allowed
    assert all(case.attrib["name"] and case.attrib["classname"] for case in suite.findall("testcase"))


def test_the_command_tells_people_machines_and_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code, JSON, JUnit file and the job's summary agree."""
    store = night(tmp_path, 1, slower=0.2)
    rules = tmp_path / "policy.yaml"
    rules.write_text("schema: 1\nrules:\n  - {metric: request_throughput, at_least: -0.10}\n")
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    words = ["gate", str(store.path), "--policy", str(rules), "--junit", str(tmp_path / "junit.xml"), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    data = json.loads(done.stdout)
    assert (data["outcome"], data["exit_code"]) == ("regressed", 1)
    assert "regressed" in summary.read_text()
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert int(suite.attrib["failures"]) == sum(check["outcome"] == "regressed" for check in data["checks"])
    people = CliRunner().invoke(app, words[:-1])
    assert people.exit_code == 1
    assert "DEC100_c4" in people.stdout
