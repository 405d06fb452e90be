"""Drives the real `bench` command on small scenarios."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

SCENARIO = """\
schema: 1
name: small
model: tiny-omni
server:
  kind: tiny-omni
  args: {{hidden-size: 64, num-layers: 4, num-blocks: 1024{args}}}
  ready_timeout: {ready}
  stop_timeout: 5.0
arms:
  cache_off:
    baseline: true
    deploy: {{stages: [{{stage_id: 0, enable_prefix_caching: false}}]}}
  cache_on:
    deploy: {{stages: [{{stage_id: 0, enable_prefix_caching: true}}]}}
    prefix_cache: bundled
{on_args}rounds: {rounds}
order: abba
workloads:
  - dataset: random
    modalities: [text]
    table: |
      name        shared_prefix random_len output range_ratio concurrency prompts seed
      warm        64            64         4      0.0         2           4       1
      P256_h94_c1 240           16         8      0.0         1           {prompts}       2
      P128_h0_c4  0             128        4      0.0         4           8       3
  - dataset: prefix_repetition
    modalities: [text]
    table: |
      name    prefix_len suffix_len num_prefixes output concurrency prompts seed
      MP2_c4  96         32         2            4      4           8       4
  - dataset: random
    modalities: [text, audio]
    table: |
      name        shared_prefix random_len output range_ratio concurrency prompts seed
      AUD_h75_c2  96            32         6      0.0         2           6       5
"""


def write_scenario(
    folder: Path, *, rounds: int = 1, prompts: int = 8, fault: str = "", on_fault: str = "", ready: float = 60.0
) -> Path:
    path = folder / "small.yaml"
    on_args = f"    args: {{fault: '{on_fault}'}}\n" if on_fault else ""
    args = f", fault: '{fault}'" if fault else ""
    path.write_text(SCENARIO.format(rounds=rounds, prompts=prompts, args=args, on_args=on_args, ready=ready))
    return path


def bench(*words: str | Path, timeout: float = 100.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.cli", *map(str, words)], capture_output=True, text=True, timeout=timeout
    )


def start_bench(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "harness.cli", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def only_run(folder: Path) -> Path:
    (run,) = (path for path in folder.iterdir() if path.is_dir())
    return run


def wait_for(what: str, found: Any, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not found():
        assert time.monotonic() < deadline, f"{what} did not happen in {timeout} s"
        time.sleep(0.02)


def servers_of(folder: Path) -> list[str]:
    """Command lines of processes that belong to runs under `folder`, guards included."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        line = " ".join(process.info["cmdline"] or ())
        inside = str(folder) in line or str(process.info["cwd"] or "").startswith(str(folder))
        if inside and process.pid != os.getpid() and ("tiny_omni" in line or "guard" in line):
            found.append(line)
    return found


def wait_gone(folder: Path) -> None:
    wait_for("the end of every server", lambda: not servers_of(folder), timeout=30.0)


def interrupt(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def cells(run: Path) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text())
        for path in sorted(run.glob("trials/*/*.json"))
        if path.name not in ("trial.json", ".server.json")
    ]


def requests_of(run: Path, arm: str, name: str, round_: int = 1) -> list[dict[str, Any]]:
    (path,) = run.glob(f"trials/r{round_:02d}-*-{arm}/{name}.requests.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def headings(report: str) -> list[str]:
    return [line for line in report.splitlines() if line.startswith(("#", "| bench", "| arm", "| trial"))]
