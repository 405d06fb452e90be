"""`client: vllm-bench`: its command line, and a run from start to end.

The runs are of a simulated command (tests/client/fake_vllm), which the tests' own interpreter finds as its `vllm`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from client_bench import make_bench, make_prompts
from scripted_server import answer_at_once, serve

from harness.client.vllm_bench import VllmBench, check_vllm_bench, find_vllm_bench, run_vllm_bench, without_proxies
from harness.client.vllm_bench_words import needs_omni, serve_words, time_limit
from harness.errors import MissingDependency, UsageError
from harness.scenario import Bench

ASSETS = Path(__file__).parents[2] / "harness" / "tiny_omni" / "assets"
FAKE = Path(__file__).parent / "fake_vllm"


def words_of(bench: Bench, *, omni: bool = False) -> str:
    words = serve_words(
        bench,
        omni=omni,
        base_url="http://127.0.0.1:8000",
        model="m",
        tokenizer=Path("/models/m"),
        result=Path("/trial/vllm-bench/b.json"),
        timeout_s=600.0,
    )
    return " ".join(words)


def test_a_row_is_the_command_of_the_published_tables() -> None:
    """Every argument is that of the commands which the tables were made with; greedy decoding and modalities stated."""
    bench = make_bench(
        modalities=("text",), shared_prefix=3856, random_len=240, output=8, concurrency=64, prompts=256, seed=50025,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )  # fmt: skip
    assert words_of(bench, omni=True) == (
        "--backend openai-chat-omni --endpoint /v1/chat/completions --base-url http://127.0.0.1:8000 "
        "--model m --tokenizer /models/m "
        "--dataset-name random --random-prefix-len 3856 --random-input-len 240 --random-output-len 8 "
        "--random-range-ratio 0.0 --num-prompts 256 --seed 50025 --request-rate inf --max-concurrency 64 --ignore-eos "
        '--temperature 0 --extra-body {"modalities": ["text"], "chat_template_kwargs": {"enable_thinking": false}} '
        "--num-warmups 0 --ready-check-timeout-sec 0 "
        "--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 90,99 "
        "--save-result --save-detailed --result-dir /trial/vllm-bench --result-filename b.json "
        "--omni-request-timeout-s 600.0"
    )


@pytest.mark.parametrize(
    ("changes", "omni", "backend"),
    [
        ({}, False, "openai-chat --endpoint /v1/chat/completions"),
        ({}, True, "openai-chat-omni --endpoint /v1/chat/completions"),
        ({"endpoint": "completions"}, False, "openai --endpoint /v1/completions"),
        ({"endpoint": "completions"}, True, "openai --endpoint /v1/completions"),
    ],
)
def test_the_backend_goes_by_endpoint_and_client(changes: dict[str, Any], omni: bool, backend: str) -> None:
    assert f"--backend {backend} " in words_of(make_bench(**changes), omni=omni)


@pytest.mark.parametrize(
    ("kind", "modalities", "omni"),
    [("vllm", ("text",), False), ("vllm-omni", ("text",), True), ("tiny-omni", ("text", "audio"), True)],
)
def test_vllm_omnis_client_is_used_on_its_server_and_for_speech(
    kind: str, modalities: tuple[str, ...], omni: bool
) -> None:
    assert needs_omni(make_bench(modalities=modalities), kind) is omni


def test_prefix_repetition_has_its_own_arguments() -> None:
    bench = make_bench(
        dataset="prefix_repetition", shared_prefix=None, random_len=None, range_ratio=None,
        prefix_len=3840, suffix_len=256, num_prefixes=32, output=8, prompts=512,
    )  # fmt: skip
    assert (
        "--dataset-name prefix_repetition --prefix-repetition-prefix-len 3840 --prefix-repetition-suffix-len 256 "
        "--prefix-repetition-num-prefixes 32 --prefix-repetition-output-len 8 "
    ) in words_of(bench)


@pytest.mark.parametrize(("burstiness", "said"), [(None, "inf"), (0.5, "0.5")])
def test_an_open_loop_has_a_rate_and_no_bound_on_concurrency(burstiness: float | None, said: str) -> None:
    """Constant gaps, our default, are an infinite burstiness."""
    words = words_of(make_bench(request_rate=2.5, burstiness=burstiness))
    assert f"--request-rate 2.5 --burstiness {said} " in words
    assert "--max-concurrency" not in words


def test_not_to_ignore_eos_is_said_in_the_body() -> None:
    """It ignores the end token of random prompts by itself; the body wins."""
    words = words_of(make_bench(ignore_eos=False))
    assert "--ignore-eos" not in words
    assert '"ignore_eos": false' in words


def test_the_bound_on_the_command_grows_with_its_load() -> None:
    closed = time_limit(make_bench(prompts=10, concurrency=4), 60.0)
    opened = time_limit(make_bench(prompts=10, request_rate=2.0), 60.0)
    assert (closed - 3 * 60.0, opened - 5.0 - 60.0) == (600.0, 600.0)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> VllmBench:
    """The simulated command, in the tests' own interpreter."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    return find_vllm_bench(sys.executable, "vllm")


def test_an_interpreter_without_vllm_is_one_message() -> None:
    """Before anything starts: where it was looked for, and what to do."""
    with pytest.raises(
        MissingDependency, match=f"found vllm-bench, and no vllm in {sys.executable}; allowed: `python:`"
    ):
        check_vllm_bench([make_bench(client="vllm-bench")], "vllm", {"off": sys.executable})


def test_an_interpreter_that_is_none_is_one_message() -> None:
    with pytest.raises(MissingDependency, match="cannot look for vllm in /nowhere/python"):
        check_vllm_bench([make_bench(client="vllm-bench")], "vllm", {"off": "/nowhere/python"})


def test_speech_needs_vllm_omni(fake: VllmBench) -> None:
    bench = make_bench(client="vllm-bench", modalities=("text", "audio"))
    with pytest.raises(MissingDependency, match=f"no vllm_omni in {fake.python}, which it needs for this bench"):
        check_vllm_bench([bench], "tiny-omni", {"off": fake.python})


def test_arms_of_two_clients_are_refused(fake: VllmBench, tmp_path: Path) -> None:
    """A second interpreter, with another version of the package."""
    (tmp_path / "vllm").mkdir()
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    with pytest.raises(UsageError, match=r"found vllm 0.1 .* and vllm unknown .*; allowed: one version"):
        check_vllm_bench([make_bench(client="vllm-bench")], "vllm", {"off": fake.python, "on": str(other)})


def test_no_interpreter_is_looked_at_unless_a_bench_asks() -> None:
    assert check_vllm_bench([make_bench()], "vllm", {"off": "/nowhere/python"}) == {}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exit", "ended with exit status 1: ValueError: Initial test run failed; its log: .*b.vllm-bench.log"),
        ("nothing", "left no result: .*b.json: No such file"),
        ("garbage", "b.json: not a result of vllm bench serve: Invalid JSON"),
    ],
)
async def test_a_command_that_fails_fails_every_request_with_the_reason(
    fake: VllmBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    monkeypatch.setenv("FAKE_VLLM_BENCH", fault)
    load = await run_vllm_bench(
        fake,
        make_bench(client="vllm-bench", prompts=3),
        make_prompts(3),
        base_url="http://127.0.0.1:1",
        model="m",
        tokenizer=tmp_path,
        folder=tmp_path,
        timeout_s=30.0,
    )
    assert load.failure is not None
    assert re.search(message, load.failure), load.failure
    assert [record.error for record in load.records] == [load.failure] * 3
    assert (load.summary.completed, load.summary.failed, load.summary.request_throughput) == (0, 3, 0.0)
    assert "simulated vllm bench serve" in (tmp_path / "b.vllm-bench.log").read_text()


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
async def test_the_server_is_reached_directly_whatever_proxies_the_environment_has(
    fake: VllmBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The command goes by them, our own client does not: between the two, the proxy would be measured."""
    async with serve(answer_at_once) as proxy, serve(answer_at_once) as server:
        monkeypatch.setenv(name, proxy.url)
        load = await run_vllm_bench(
            fake,
            make_bench(client="vllm-bench", prompts=2),
            make_prompts(2),
            base_url=server.url,
            model="m",
            tokenizer=ASSETS,
            folder=tmp_path,
            timeout_s=30.0,
        )
    assert load.failure is None
    assert [record.status for record in load.records] == ["ok", "ok"]
    assert (len(server.bodies), len(proxy.bodies)) == (2, 0)


def test_only_the_proxies_are_kept_from_the_command() -> None:
    """All those that Python goes by; the rest of the environment, as what makes Hugging Face offline, is its own."""
    names = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    proxies = {spelt: "http://proxy:3128" for name in names for spelt in (name, name.upper())}
    others = {"HF_HUB_OFFLINE": "1", "PATH": "/bin", "OPENAI_API_KEY": "k", "PROXY_NAME": "p"}
    assert without_proxies(proxies | others) == others


async def test_cancelling_ends_the_command_and_all_it_started(
    fake: VllmBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the server hangs, or on Ctrl-C."""
    monkeypatch.setenv("FAKE_VLLM_BENCH", "hang")
    monkeypatch.setattr("harness.client.child._STOP_S", 0.2)
    running = asyncio.create_task(
        run_vllm_bench(
            fake,
            make_bench(client="vllm-bench"),
            make_prompts(1),
            base_url="http://127.0.0.1:1",
            model="m",
            tokenizer=tmp_path,
            folder=tmp_path,
            timeout_s=30.0,
        )
    )
    for _ in range(1200):
        if (tmp_path / "hanging.pids").exists():
            break
        await asyncio.sleep(0.05)
    pids = [int(word) for word in (tmp_path / "hanging.pids").read_text().split()]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


SCENARIO = """\
schema: 1
name: theirs
model: tiny-omni
server: {kind: tiny-omni, args: {hidden-size: 64, num-layers: 4, num-blocks: 512}}
arms:
  on: {baseline: true, deploy: {stages: [{stage_id: 0, enable_prefix_caching: true}]}}
rounds: 1
workloads:
  - dataset: random
    client: vllm-bench
    table: |
      name  shared_prefix random_len output range_ratio concurrency prompts seed
      h75   48            16         4      0.0         2           8       1
"""


def run_scenario(folder: Path, fault: str = "") -> tuple[subprocess.CompletedProcess[str], Path]:
    """The finished command and the folder of its one trial."""
    (folder / "theirs.yaml").write_text(SCENARIO)
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "run", folder / "theirs.yaml", "--out", folder / "results"],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": str(FAKE), "FAKE_VLLM_BENCH": fault},
    )
    (trial,) = (folder / "results").glob("*/trials/*")
    return done, trial


def test_a_run_with_this_client_is_a_run_like_any_other(tmp_path: Path) -> None:
    """Its cell is valid, has the hit rate, and says who measured it and what that client does not tell."""
    done, trial = run_scenario(tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads((trial / "h75.json").read_text())
    cell, requests = data["cell"], (trial / "h75.requests.jsonl").read_text().splitlines()
    assert cell["client"] == "vllm bench serve 0.1"
    assert (cell["invalid"], cell["client_lag_ms"]) == ([], None)
    assert any("does not tell, request by request: HTTP status" in caveat for caveat in cell["caveats"])
    assert (data["completed"], data["total_output_tokens"], len(requests)) == (8, 32, 8)
    assert cell["hit_rate"]["rate"] == pytest.approx(cell["hit_rate"]["ideal"], abs=1e-9)
    assert cell["hit_rate"]["hits"] >= 7 * 48
    assert "simulated vllm bench serve" in (trial / "h75.vllm-bench.log").read_text()
    assert json.loads((trial / "vllm-bench" / "h75.json").read_text())["completed"] == 8


def test_a_command_that_fails_makes_its_cell_invalid_and_not_the_trial(tmp_path: Path) -> None:
    done, trial = run_scenario(tmp_path, fault="exit")
    assert done.returncode == 4, (done.returncode, done.stderr)
    (reason,) = json.loads((trial / "h75.json").read_text())["cell"]["invalid"]
    assert reason.startswith("vllm bench serve ended with exit status 1: ValueError: Initial test run failed; its log")
    assert json.loads((trial / "trial.json").read_text())["status"] == "finished"


def test_a_run_without_vllm_ends_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text(SCENARIO)
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "run", tmp_path / "theirs.yaml", "--out", tmp_path / "results"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "theirs.yaml: client: found vllm-bench, and no vllm in" in " ".join(done.stderr.split())
    assert not (tmp_path / "results").exists()
