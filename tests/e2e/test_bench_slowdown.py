"""Six pairs on the real server tell 5 % from 0.2 %, where the host's noise does not decide.

Steps last at least 25 ms, as a device's would (`min-step-ms`, a simulated time); the slowdown is of the whole step.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_process import bench, only_run, servers_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCENARIO = """\
schema: 1
name: slowdown
model: tiny-omni
server:
  kind: tiny-omni
  args: {hidden-size: 64, num-layers: 4, num-blocks: 1024, min-step-ms: 25, audio: false}
arms:
  cache_off: {baseline: true, deploy: {stages: [{stage_id: 0, enable_prefix_caching: false}]}}
  slow_5: {deploy: {stages: [{stage_id: 0, enable_prefix_caching: false}]}, args: {fault: slow-step=0.05}}
  slow_02: {deploy: {stages: [{stage_id: 0, enable_prefix_caching: false}]}, args: {fault: slow-step=0.002}}
rounds: 6
order: latin
workloads:
  - dataset: random
    table: |
      name        shared_prefix random_len output range_ratio concurrency prompts seed
      warm        0             32         4      0.0         8           8       1
      DEC32_c8    0             16         32     0.0         8           40      2
"""
POLICY = """\
schema: 1
rules:
  - {bench: DEC*, arm: ARM, metric: request_throughput, at_least: -0.02}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slowdown")
    (folder / "slowdown.yaml").write_text(SCENARIO)
    done = bench("run", folder / "slowdown.yaml", "--out", folder / "results", timeout=800)
    assert done.returncode == 0, done.stderr
    assert servers_of(folder) == []
    return only_run(folder / "results")


@pytest.mark.parametrize(("arm", "outcome", "code"), [("slow_5", "regressed", 1), ("slow_02", "pass", 0)])
def test_five_percent_gates_and_a_fifth_of_one_does_not(
    finished: Path, tmp_path: Path, arm: str, outcome: str, code: int
) -> None:
    """The gate of six valid pairs fails for a step slower by 5 % and passes for one slower by 0.2 %."""
    (tmp_path / "policy.yaml").write_text(POLICY.replace("ARM", arm))
    done = bench("gate", finished, "--policy", tmp_path / "policy.yaml", "--json")
    assert done.returncode == code, done.stdout
    (check,) = json.loads(done.stdout)["checks"]
    assert (check["arm"], check["rounds"], check["outcome"]) == (arm, 6, outcome)


@pytest.mark.parametrize(("arm", "verdict"), [("slow_5", "slower"), ("slow_02", "the same")])
def test_the_report_says_so(finished: Path, arm: str, verdict: str) -> None:
    """It names the slow arm's bench as slower, the other's as the same, and what was simulated and done on purpose."""
    report = (finished / "report.md").read_text()
    assert "**Simulated**: a step of `cache_off`, `slow_5` and `slow_02` lasts at least 25 ms" in report
    assert f"**On purpose**: `{arm}` ran with `fault: slow-step=0.0" in report
    assert f"With `{arm}` against `cache_off`, of 1 bench 1 is {verdict} " in report, report[:2000]


def test_the_server_was_as_slow_as_it_was_told_to_be(finished: Path) -> None:
    """The decoding steps, as the client saw them, are no shorter than 25 ms and than 5 % more: the fault was real."""
    for arm, least in (("cache_off", 25.0), ("slow_5", 26.25)):
        cells = [json.loads(path.read_text()) for path in finished.glob(f"trials/*-{arm}/DEC32_c8.json")]
        assert len(cells) == 6
        assert min(cell["median_itl_ms"] for cell in cells) >= least
