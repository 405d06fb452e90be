"""Rounds that a run adds by its own rules, passes over the benches, and the noise floor, on the real server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from bench_process import bench, only_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCENARIO = """\
schema: 1
name: rounds
model: tiny-omni
server:
  kind: tiny-omni
  args: {hidden-size: 64, num-layers: 4, num-blocks: 1024}
arms:
  cache_off: {baseline: true, deploy: {stages: [{stage_id: 0, enable_prefix_caching: false}]}}
  cache_on: {deploy: {stages: [{stage_id: 0, enable_prefix_caching: true}]}, prefix_cache: bundled}
rounds: 2
passes: 2
workloads:
  - dataset: random
    table: |
      name        shared_prefix random_len output range_ratio concurrency prompts seed
      warm        64            64         4      0.0         2           4       1
      P128_h75_c2 96            32         8      0.0         2           6       2
"""


def scenario(folder: Path, old: str = "", new: str = "") -> Path:
    path = folder / "rounds.yaml"
    path.write_text(SCENARIO.replace(old, new) if old else SCENARIO)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of two passes."""
    folder = tmp_path_factory.mktemp("rounds")
    done = bench("run", scenario(folder), "--out", folder / "results", timeout=400)
    assert done.returncode == 0, done.stderr
    return only_run(folder / "results")


def test_a_second_pass_is_recorded_and_not_reported(finished: Path) -> None:
    """Its cells lie apart, hit what the first pass left, and memory is read after each pass."""
    for trial in sorted(finished.glob("trials/*")):
        again = json.loads((trial / "pass2" / "P128_h75_c2.json").read_text())
        assert (again["cell"]["pass_number"], again["cell"]["reported"], again["completed"]) == (2, False, 6)
        assert again["cell"]["invalid"] == []
        record = json.loads((trial / "trial.json").read_text())
        assert len(record["memory_passes"]) == 2
        assert all(point["rss"] > 0 for point in record["memory_passes"])
        assert record["benches"] == ["warm", "P128_h75_c2"]
        if record["arm"] == "cache_on":
            first = json.loads((trial / "P128_h75_c2.json").read_text())
            assert again["cell"]["hit_rate"]["rate"] > first["cell"]["hit_rate"]["rate"]
    report = (finished / "report.md").read_text()
    assert "| ready | after pass 1 | after pass 2 | peak |" in report
    assert report.count("| P128_h75_c2 |") == (report.replace("pass2", "")).count("| P128_h75_c2 |")


def test_an_invalid_round_is_dropped_named_and_replaced(finished: Path, tmp_path: Path) -> None:
    """A run that was stopped after its last trial goes on with one round more, and counts in full."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    path = next(run.glob("trials/r02-*-cache_on/P128_h75_c2.json"))
    cell = json.loads(path.read_text())
    cell["cell"]["invalid"] = ["made invalid by a test"]
    path.write_text(json.dumps(cell))
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "finished_at": None}))
    done = bench("run", "--resume", run, timeout=300)
    assert done.returncode == 0, done.stderr
    after = json.loads((run / "manifest.json").read_text())
    (more,) = after["extensions"]
    assert (more["rounds"], more["reason"]) == ([3], "replacement")
    assert after["plan"][:4] == manifest["plan"]
    assert {trial["round"] for trial in after["plan"][4:]} == {3}
    report = (run / "report.md").read_text()
    assert "replaced pair" in report
    assert "made invalid by a test" in report
    assert "1 round was added in their place" in report
    again = bench("run", "--resume", run)
    assert again.returncode == 0, again.stderr
    assert "nothing left to do" in again.stderr


def test_until_stops_at_its_bound_and_aa_leaves_a_floor(tmp_path: Path) -> None:
    """The baseline against itself, one pair of rounds more; the next run of the scenario is judged by its floor."""
    rule = "rounds: 2\nuntil: {half_width: 0.000001, max_rounds: 5}"
    results = tmp_path / "results"
    done = bench("run", scenario(tmp_path, "rounds: 2\npasses: 2", rule), "--aa", "--out", results, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "noise floor: " in done.stderr
    run = next(results.glob("rounds-*"))
    manifest = json.loads((run / "manifest.json").read_text())
    assert [one["reason"] for one in manifest["extensions"]] == ["until"]
    assert max(trial["round"] for trial in manifest["plan"]) == 4
    assert {trial["arm"] for trial in manifest["plan"]} == {"cache_off", "cache_off.again"}
    (floors,) = results.glob("noise/*.json")
    (floor,) = (one for one in json.loads(floors.read_text())["floors"] if one["metric"] == "request_throughput")
    assert (floor["rounds"], floor["deviation"] > 0.0) == (4, True)
    assert floor["run"] == run.name
    shutil.rmtree(run)
    done = bench("run", scenario(tmp_path, "rounds: 2\npasses: 2", "rounds: 1"), "--out", results, timeout=200)
    assert done.returncode == 0, done.stderr
    later = next(results.glob("rounds-*"))
    kept = json.loads((later / "noise.json").read_text())
    assert floor in kept["floors"]
