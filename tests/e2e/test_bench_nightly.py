"""`bench nightly` on the real server: five nights, one arm with steps five times as long from the third on.

Steps last at least 10 ms, a simulated time, so that what else the host does decides nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_process import bench, servers_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCENARIO = """\
schema: 1
name: night
model: tiny-omni
server:
  kind: tiny-omni
  args: {{hidden-size: 64, num-layers: 4, num-blocks: 1024, min-step-ms: 10}}
arms:
  cache_off: {{baseline: true, deploy: {{stages: [{{stage_id: 0, enable_prefix_caching: false}}]}}}}
  cache_on:
    deploy: {{stages: [{{stage_id: 0, enable_prefix_caching: true}}]}}
    prefix_cache: bundled
    args: {{fault: 'slow-step={slow}'}}
rounds: 3
workloads:
  - dataset: random
    table: |
      name        shared_prefix random_len output range_ratio concurrency prompts seed
      warm        64            64         4      0.0         2           4       1
      DEC_c2      0             16         32     0.0         2           8       2
"""
POLICY = """\
schema: 1
rules:
  - {bench: "DEC*", metric: request_throughput, at_least: -0.55}
"""


def test_the_right_night_alarms_once(tmp_path: Path) -> None:
    """Nights three to five regress by the gate; the alarm comes on the fourth, which makes it certain, and no other."""
    rules, results = tmp_path / "policy.yaml", tmp_path / "results"
    rules.write_text(POLICY)
    codes, told = [], []
    for slow in (0.0, 0.0, 4.0, 4.0, 4.0):
        file = tmp_path / "night.yaml"
        file.write_text(SCENARIO.format(slow=slow))
        done = bench("nightly", file, "--policy", rules, "--out", results, timeout=400)
        assert "Traceback" not in done.stderr
        codes.append(done.returncode)
        told.append("ALARM DEC_c2 cache_on request_throughput" in done.stdout)
    assert codes == [0, 0, 1, 1, 1]
    assert told == [False, False, False, True, False]
    runs = sorted(path.name for path in results.glob("night-*"))
    (series,) = results.glob("trend/*.jsonl")
    lines = [json.loads(line) for line in series.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["night", "night", "night", "night", "alarm", "night"]
    assert (lines[4]["since"], lines[4]["seen"]) == (runs[2], runs[3])
    shown = bench("trend", "--results", results, "--json")
    assert shown.returncode == 0, shown.stderr
    assert len(json.loads(shown.stdout)["series"][0]["alarms"]) == 1
    assert servers_of(tmp_path) == []


def test_a_night_that_cannot_be_starts_nothing(tmp_path: Path) -> None:
    """A policy that fits nothing in the scenario is a usage error, told before the first server."""
    file, rules = tmp_path / "night.yaml", tmp_path / "policy.yaml"
    file.write_text(SCENARIO.format(slow=0.0))
    rules.write_text(POLICY.replace("DEC*", "GONE*"))
    done = bench("nightly", file, "--policy", rules, "--out", tmp_path / "results")
    assert done.returncode == 2
    assert "found bench 'GONE*'" in done.stderr
    assert not (tmp_path / "results").exists()
