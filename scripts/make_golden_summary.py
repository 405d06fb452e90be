"""Write tests/golden/summary.json: what vLLM's own `calculate_metrics` makes of a set of requests.

    PYTHON_WITH_VLLM scripts/make_golden_summary.py > tests/golden/summary.json

Runs in an environment with vLLM and needs nothing of this project. The file holds the requests and vLLM's numbers, so
that a test can put the same requests to `harness.client.summarise` without vLLM.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys

import vllm
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics

DURATION_S = 37.25
PERCENTILES = [90.0, 99.0]
FAMILIES = ("ttft", "tpot", "itl", "e2el")


def scripted_outputs(count: int, seed: int) -> list[RequestFuncOutput]:
    """`count` outputs as vLLM's client would fill them in; every ninth failed, every seventh a single token."""
    draw = random.Random(seed)
    outputs = []
    for index in range(count):
        tokens = 1 if index % 7 == 0 else draw.randint(2, 12)
        ttft = draw.uniform(0.02, 0.9)
        itl = [draw.expovariate(40.0) for _ in range(tokens - 1)]
        outputs.append(
            RequestFuncOutput(
                success=index % 9 != 8,
                output_tokens=tokens,
                prompt_len=draw.randint(10, 4000),
                ttft=ttft,
                itl=itl,
                latency=ttft + sum(itl),
                start_time=draw.uniform(0.0, 30.0),
                error="" if index % 9 != 8 else "scripted failure",
            )
        )
    return outputs


def main() -> None:
    outputs = scripted_outputs(count=140, seed=20)
    with contextlib.redirect_stdout(sys.stderr):
        metrics, _ = calculate_metrics([], outputs, DURATION_S, None, PERCENTILES, {})
    numbers = {
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input,
        "total_output_tokens": metrics.total_output,
        "request_throughput": metrics.request_throughput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
    }
    for family in FAMILIES:
        for statistic in ("mean", "median", "std"):
            numbers[f"{statistic}_{family}_ms"] = float(getattr(metrics, f"{statistic}_{family}_ms"))
        for percent, value in getattr(metrics, f"percentiles_{family}_ms"):
            numbers[f"p{percent:.0f}_{family}_ms"] = float(value)
    requests = [
        {
            "success": output.success,
            "prompt_tokens": output.prompt_len,
            "output_tokens": output.output_tokens,
            "ttft": output.ttft,
            "itl": output.itl,
            "latency": output.latency,
            "sent": output.start_time,
        }
        for output in outputs
    ]
    golden = {"vllm": vllm.__version__, "duration_s": DURATION_S, "requests": requests, "summary": numbers}
    json.dump(golden, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
