"""What a run's directory refuses, and what it says then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cell_factory import make_cell

from harness.errors import RecordError
from harness.plan import make_plan
from harness.provenance import source_tree
from harness.recorded import scenario_of
from harness.records import Host, Manifest, RequestRecord, SourceTree, TrialRecord
from harness.runner import arm_differences, differences
from harness.scenario import Scenario, load_scenario, scenario_sha256
from harness.store import RunStore

SCENARIO = """\
schema: 1
name: x
model: tiny-omni
server: {kind: tiny-omni}
arms: {cache_off: {baseline: true}, cache_on: {args: {enable-prefix-caching: true}}}
rounds: 2
workloads:
  - dataset: random
    table: |
      name shared_prefix random_len output range_ratio concurrency prompts seed
      P1024 16 16 2 0.0 1 16 1
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    path = tmp_path / "x.yaml"
    path.write_text(SCENARIO)
    return load_scenario(path)


def make_manifest(scenario: Scenario, /, **changes: Any) -> Manifest:
    from harness.provenance import versions
    from harness.runner import our_source

    values: dict[str, Any] = {
        "run": "run",
        "created_at": "2026-01-01T00:00:00Z",
        "command": ("bench",),
        "scenario_file": "x.yaml",
        "scenario": json.loads(json.dumps(scenario.resolved())),
        "scenario_sha256": scenario_sha256(scenario),
        "plan": make_plan(scenario),
        "versions": versions(),
        "sources": (our_source(),),
        "host": Host(
            hostname="h", platform="p", kernel="k", cpu_model="c", cpu_count=1, memory_bytes=1, python="3", load_1m=0.0
        ),
        "tokenizer_sha256": "a" * 64,
    }
    return Manifest(**{**values, **changes})


def make_trial(**changes: Any) -> TrialRecord:
    values: dict[str, Any] = dict.fromkeys(
        ("first_request", "memory_ready", "memory_end", "memory_peak"),
    )
    values |= {
        "round": 1,
        "position": 1,
        "arm": "cache_off",
        "status": "finished",
        "started_at": "2026-01-01T00:00:00Z",
        "finished_at": "2026-01-01T00:01:00Z",
        "argv": (),
        "env": {},
        "resolved": {},
        "resolved_sha256": "0" * 64,
        "pid": 1,
        "port": 1,
        "versions": {"torch": "1.0"},
        "sources": (),
        "cache_config": {},
        "time_to_ready": 1.0,
        "benches": ("P1024",),
        "stopped_by": "sigterm",
    }
    return TrialRecord(**{**values, **changes})


def make_store(folder: Path, scenario: Scenario) -> RunStore:
    """A run whose first trial is finished, with one bench of 16 prompts."""
    store = RunStore.create(folder / "run", make_manifest(scenario), SCENARIO.encode())
    trial = make_trial()
    store.begin_trial(store.manifest().plan[0])
    requests = tuple(RequestRecord(index=index, status="ok", sent=0.0, queued=0.0) for index in range(16))
    store.write_cell(store.manifest().plan[0], make_cell(), requests)
    store.write_trial(trial)
    return store


def test_an_unchanged_run_may_be_resumed(scenario: Scenario) -> None:
    """The manifest of a run that was just started differs in nothing."""
    assert differences(make_manifest(scenario), scenario, "a" * 64) == []


def test_an_edited_scenario_is_refused_even_where_the_hash_is_all_that_tells(scenario: Scenario) -> None:
    """A manifest whose scenario was edited by hand is refused, though the run would follow that very scenario."""
    edited = json.loads(json.dumps(scenario.resolved()))
    edited["rounds"] = 3
    manifest = make_manifest(scenario, scenario=edited)
    assert "manifest.json: its scenario was edited" in differences(manifest, scenario_of(manifest), "a" * 64)


def test_a_plan_that_is_not_the_scenarios_is_refused(scenario: Scenario) -> None:
    """A trial struck from the plan by hand is noticed."""
    manifest = make_manifest(scenario, plan=make_plan(scenario)[:-1])
    assert differences(manifest, scenario, "a" * 64) == ["manifest.json: its plan is not the one of its scenario"]


def test_arms_in_another_order_are_another_run(scenario: Scenario, tmp_path: Path) -> None:
    """The hash does not know the order of the arms; the plan does."""
    path = tmp_path / "y.yaml"
    path.write_text(
        SCENARIO.replace(
            "cache_off: {baseline: true}, cache_on: {args: {enable-prefix-caching: true}}",
            "cache_on: {args: {enable-prefix-caching: true}}, cache_off: {baseline: true}",
        )
    )
    assert differences(make_manifest(scenario), load_scenario(path), "a" * 64) == ["scenario: the order of its arms"]


def test_another_tokenizer_is_refused(scenario: Scenario) -> None:
    """Prompts made with another tokenizer are other prompts; a run from before the hash was kept is let through."""
    (line,) = differences(make_manifest(scenario), scenario, "b" * 64)
    assert line == f"sha256 of the tokenizer: was {'a' * 64}, is {'b' * 64}"
    assert differences(make_manifest(scenario, tokenizer_sha256=None), scenario, "b" * 64) == []


def test_a_server_that_changed_since_is_refused(tmp_path: Path) -> None:
    """Versions and the source commit of each finished trial are those of today, of its own arm only."""
    here = source_tree(tmp_path, "server")
    same = make_trial(sources=(here,))
    assert arm_differences("cache_off", [same], {"torch": "1.0"}) == []
    moved = make_trial(sources=(SourceTree(name="server", path=str(tmp_path), commit="c" * 40, dirty=False),))
    assert arm_differences("cache_off", [moved], {"torch": "2.0"}) == [
        "arm cache_off: version of torch was 1.0, is 2.0",
        f"arm cache_off: commit of server was {'c' * 40}, is outside version control",
    ]
    installed = SourceTree(name="vllm", path="https://host/vllm.git", commit="d" * 40, dirty=False)
    built = make_trial(sources=(installed,))
    assert arm_differences("cache_off", [built], {"torch": "1.0"}, [installed]) == []
    other = installed.model_copy(update={"commit": "e" * 40})
    assert arm_differences("cache_off", [built], {"torch": "1.0"}, [other]) == [
        f"arm cache_off: commit of vllm was {'d' * 40}, is {'e' * 40}"
    ]
    assert arm_differences("cache_on", [moved], {"torch": "2.0"}) == []


def test_a_scenario_that_does_not_validate_is_a_record_error(scenario: Scenario) -> None:
    """One message that names the key, not a traceback."""
    manifest = make_manifest(scenario, scenario={**scenario.resolved(), "rounds": "many"})
    with pytest.raises(RecordError, match=r"manifest\.json of run: scenario\.rounds"):
        scenario_of(manifest)


@pytest.mark.parametrize(
    "name", ["manifest.json", "trials/r01-1-cache_off/trial.json", "trials/r01-1-cache_off/P1024.json"]
)
def test_another_schema_is_refused(tmp_path: Path, scenario: Scenario, name: str) -> None:
    """A record of another version is refused by that version, whatever keys it has."""
    store = make_store(tmp_path, scenario)
    path = store.path / name
    data = json.loads(path.read_text())
    data.get("cell", data)["schema_version"] = 2
    data["new_key"] = 1
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=r"schema_version: found 2; allowed: 1$") as error:
        store.cells()
    assert str(path) in str(error.value)


@pytest.mark.parametrize("damage", ["gone", "cut", "short"])
@pytest.mark.parametrize("name", ["P1024.json", "P1024.requests.jsonl"])
def test_a_damaged_trial_is_not_whole_and_says_how_to_mend_it(
    tmp_path: Path, scenario: Scenario, name: str, damage: str
) -> None:
    """A resume measures it again; a report names the folder to delete."""
    store = make_store(tmp_path, scenario)
    (trial,) = store.trials()
    assert store.whole(trial, ("P1024",))
    assert not store.whole(trial, ("P1024", "P2048"))
    path = store.trial_dir(trial) / name
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif name.endswith("jsonl"):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    else:
        path.write_text(
            path.read_text()
            .replace('"num_prompts": 16', '"num_prompts": 17')
            .replace('"num_prompts":16', '"num_prompts":17')
        )
    assert not store.whole(trial, ("P1024",))
    if damage != "short":
        with pytest.raises(RecordError, match=r"delete .*r01-1-cache_off, then bench run --resume .*run"):
            (store.cells(), store.requests(trial, "P1024"))
