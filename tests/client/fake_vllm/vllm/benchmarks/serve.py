"""SIMULATED `vllm bench serve`: its command line and its result file around this project's own load generator, which
goes by the proxies of the environment here, as the real one does.

What the environment variable FAKE_VLLM_BENCH says it does instead: `exit`: fail as the real one does; `hang`: start a
child and never end, deaf to SIGTERM; `nothing`: end well without a result; `garbage`: with half a result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import numpy as np

from harness.client import run_load, to_records
from harness.client.requests import RequestRecord
from harness.scenario import Bench
from harness.workloads import Tokenizer, generate

_Session = aiohttp.ClientSession


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    for name, kind in {
        "backend": str, "endpoint": str, "base-url": str, "model": str, "tokenizer": str, "dataset-name": str,
        "random-prefix-len": int, "random-input-len": int, "random-output-len": int, "random-range-ratio": float,
        "num-prompts": int, "seed": int, "request-rate": float, "max-concurrency": int, "burstiness": float,
        "temperature": float, "extra-body": json.loads, "num-warmups": int, "ready-check-timeout-sec": int,
        "percentile-metrics": str, "metric-percentiles": str, "result-dir": Path, "result-filename": str,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=kind)
    for flag in ("--ignore-eos", "--save-result", "--save-detailed"):
        parser.add_argument(flag, action="store_true")


def main(args: argparse.Namespace) -> None:
    fault = os.environ.get("FAKE_VLLM_BENCH", "")
    print("simulated vllm bench serve", fault)
    if fault == "exit":
        raise ValueError("Initial test run failed")
    if fault == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path("hanging.tmp").write_text(f"{os.getpid()} {child.pid}")
        Path("hanging.tmp").rename("hanging.pids")
        time.sleep(600)
    path = args.result_dir / args.result_filename
    if fault == "garbage":
        path.write_text('{"date": "20260101-')
    elif fault != "nothing":
        path.write_text(json.dumps(_result(args)))


def _result(args: argparse.Namespace) -> dict[str, object]:
    bench = Bench(
        name="fake", dataset=args.dataset_name, shared_prefix=args.random_prefix_len,
        random_len=args.random_input_len, range_ratio=args.random_range_ratio, output=args.random_output_len,
        concurrency=args.max_concurrency or 1, prompts=args.num_prompts, seed=args.seed,
        modalities=tuple(args.extra_body.pop("modalities")), extra_body=args.extra_body, ignore_eos=args.ignore_eos,
    )  # fmt: skip
    prompts = generate(bench, Tokenizer(args.tokenizer))
    with patch("aiohttp.ClientSession", _trusting):
        load = asyncio.run(run_load(bench, prompts, base_url=args.base_url, model=args.model))
    records = to_records(load, bench=bench, prompts=prompts)
    good = [record for record in records if record.status == "ok"]
    outputs = [record.output_tokens or 0 if record.status == "ok" else 0 for record in records]
    asked, answered = sum(record.prompt_tokens or 0 for record in good), sum(outputs)
    times = {
        "ttft": [_zero(record, "ttft") for record in good],
        "tpot": [
            (_zero(record, "latency") - _zero(record, "ttft")) / (count - 1)
            for record in good
            if (count := record.output_tokens or 0) > 1
        ],
        "itl": [gap for record in good for gap in record.itl],
        "e2el": [_zero(record, "latency") for record in good],
    }
    return {
        "date": "20260101-000000", "backend": args.backend, "endpoint_type": args.backend, "label": None,
        "model_id": args.model, "tokenizer_id": args.tokenizer, "num_prompts": args.num_prompts,
        "request_rate": "inf", "burstiness": 1.0, "max_concurrency": args.max_concurrency,
        "duration": load.duration_s, "completed": len(good), "failed": len(records) - len(good),
        "total_input_tokens": asked, "total_output_tokens": answered,
        "request_throughput": len(good) / load.duration_s, "output_throughput": answered / load.duration_s,
        "total_token_throughput": (asked + answered) / load.duration_s,
        "input_lens": [record.prompt_tokens or 0 for record in records], "output_lens": outputs,
        "ttfts": [_zero(record, "ttft") for record in records], "itls": [list(record.itl) for record in records],
        "latencies": [_zero(record, "latency") for record in records],
        "start_times": [record.sent + 1000.0 for record in records],
        "queue_times": [record.queued for record in records],
        "generated_texts": [record.text for record in records], "errors": [record.error or "" for record in records],
    } | {key: value for family, sample in times.items() for key, value in _statistics(family, sample)}  # fmt: skip


def _statistics(family: str, sample: list[float]) -> Iterator[tuple[str, float]]:
    """In milliseconds; 0 without a sample, as in the real one."""
    for name, of in {"mean": np.mean, "median": np.median, "std": np.std}.items():
        yield f"{name}_{family}_ms", float(of(sample or 0)) * 1e3
    for percent in (90, 99):
        yield f"p{percent}_{family}_ms", float(np.percentile(sample or 0, percent)) * 1e3


def _trusting(**settings: Any) -> aiohttp.ClientSession:
    return _Session(**{**settings, "trust_env": True})


def _zero(record: RequestRecord, name: str) -> float:
    return getattr(record, name) or 0.0
