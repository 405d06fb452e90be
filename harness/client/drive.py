"""Driving a bench with the load generator that it asks for, and what comes of it as records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.client.load import LoadResult, Progress, run_load
from harness.client.requests import to_records
from harness.client.summary import summarise
from harness.client.vllm_bench import VllmBench, VllmBenchLoad, run_vllm_bench
from harness.records import BenchSummary, RequestRecord
from harness.scenario import Bench
from harness.workloads import Prompt, Tokenizer


@dataclass(frozen=True, slots=True)
class Measured:
    """One bench as records, whichever client drove it.

    Parameters:
        client: the load generator and its version where it is not our own.
        failures: why its numbers count for nothing.
        caveats: what to know of numbers that count.
    """

    records: tuple[RequestRecord, ...]
    summary: BenchSummary
    client: str | None = None
    failures: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


async def drive(
    bench: Bench,
    prompts: Sequence[Prompt],
    *,
    vllm_bench: VllmBench | None,
    base_url: str,
    model: str,
    tokenizer: Tokenizer,
    folder: Path,
    timeout_s: float,
    on_progress: Progress,
) -> LoadResult | VllmBenchLoad:
    """Run a bench's load to its end.

    Parameters:
        vllm_bench: what `check_vllm_bench` found; needed where the bench asks for that client.
        model: the name to send; the one `/v1/models` answers.
        folder: of the trial, for what another client writes.
        timeout_s: bound on one request.
    """
    if bench.client == "vllm-bench":
        assert vllm_bench is not None
        return await run_vllm_bench(
            vllm_bench,
            bench,
            prompts,
            base_url=base_url,
            model=model,
            tokenizer=tokenizer.folder,
            folder=folder,
            timeout_s=timeout_s,
        )
    return await run_load(bench, prompts, base_url=base_url, model=model, on_progress=on_progress, timeout_s=timeout_s)


def measure(
    result: LoadResult | VllmBenchLoad, *, bench: Bench, prompts: Sequence[Prompt], model: str, tokenizer: Tokenizer
) -> Measured:
    """The records of a load, and their summary.

    Parameters:
        model: the name for the summary.
    """
    if isinstance(result, VllmBenchLoad):
        summary = result.summary.model_copy(update={"model_id": model})
        failures = () if result.failure is None else (result.failure,)
        return Measured(result.records, summary, result.client, failures, result.caveats)
    records = to_records(result, bench=bench, prompts=prompts, count_tokens=lambda text: len(tokenizer.encode(text)))
    summary = summarise(
        records,
        bench=bench,
        duration_s=result.duration_s,
        started_at=result.started_at,
        model=model,
        tokenizer=str(tokenizer.folder),
    )
    return Measured(tuple(records), summary)
