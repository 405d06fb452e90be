"""What `vllm bench serve --save-result --save-detailed` wrote, as our records.

The form is that of vLLM 0.30 to 0.32 and vLLM-Omni 0.30, whose client leaves `latencies` and `queue_times` out and
tells of speech in its summary only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from harness.client.requests import LENGTH_KEYS
from harness.client.summary import PERCENTILE_SAMPLES, summarise, time_per_output_token
from harness.errors import HarnessFailure
from harness.records import BenchSummary, RequestRecord
from harness.scenario import Bench
from harness.workloads.prompt import Prompt

UNTOLD = "HTTP status, finish reason, cached tokens, and whether the server or the client counted tokens"
"""What its file does not say of a request."""
UNTOLD_SPEECH = "when and what it spoke"

_TIMES = ("ttft", "tpot", "itl", "e2el")
_SPEECH = (
    "mean_audio_ttfp_ms", "median_audio_ttfp_ms", "p99_audio_ttfp_ms", "mean_audio_rtf", "median_audio_rtf",
    "mean_audio_duration_s", "total_audio_duration_s", "audio_throughput",
)  # fmt: skip


class VllmBenchResult(BaseModel):
    """The file, as far as it is read. Lists are in prompt order and hold every request, failed ones too.

    Times are in seconds; a failed request's are 0.0. `start_times` are instants of a monotonic clock.
    """

    # The statistics have names made of their parts and stay in `model_extra`.
    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    backend: str
    endpoint_type: str
    num_prompts: int
    duration: float
    completed: int
    failed: int
    total_output_tokens: int
    input_lens: tuple[int, ...]
    output_lens: tuple[int, ...]
    ttfts: tuple[float | None, ...]
    itls: tuple[tuple[float, ...], ...]
    start_times: tuple[float, ...]
    generated_texts: tuple[str, ...]
    errors: tuple[str, ...]
    latencies: tuple[float, ...] | None = None
    queue_times: tuple[float, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        lists = {
            "input_lens": self.input_lens, "output_lens": self.output_lens, "ttfts": self.ttfts, "itls": self.itls,
            "start_times": self.start_times, "generated_texts": self.generated_texts, "errors": self.errors,
            "latencies": self.latencies, "queue_times": self.queue_times,
        }  # fmt: skip
        for name, values in lists.items():
            if values is not None and len(values) != self.num_prompts:
                raise ValueError(f"{name} has {len(values)} entries for {self.num_prompts} prompts")
        failed = sum(1 for error in self.errors if error)
        if (self.failed, self.completed) != (failed, self.num_prompts - failed):
            raise ValueError(f"{self.completed} completed and {self.failed} failed, yet {failed} errors")
        if sum(self.output_lens) != self.total_output_tokens:
            raise ValueError(
                f"{self.total_output_tokens} output tokens in all, {sum(self.output_lens)} request by request"
            )
        if not self.duration > 0:
            raise ValueError(f"a duration of {self.duration} s")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """The result in a file.

        Raises:
            HarnessFailure: there is none, or not in a form that is understood.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise HarnessFailure(f"vllm bench serve left no result: {path}: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"])
            raise HarnessFailure(f"{path}: not a result of vllm bench serve: {where}{first['msg']}") from None

    def statistic(self, name: str) -> float | None:
        """A number of its summary; None where it is absent or no number."""
        value = (self.model_extra or {}).get(name)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def records_of(result: VllmBenchResult, *, bench: Bench, prompts: Sequence[Prompt]) -> tuple[RequestRecord, ...]:
    """One record per prompt. What the file does not say (`UNTOLD`) is absent.

    Two kinds of request are failed here that `vllm bench serve` counts as completed, as with our own client: an answer
    without tokens, and with `ignore_eos` one of fewer tokens than asked for.

    Raises:
        HarnessFailure: the file is of another number of prompts.
    """
    if result.num_prompts != len(prompts):
        raise HarnessFailure(f"vllm bench serve sent {result.num_prompts} prompts; the bench has {len(prompts)}")
    first = min(result.start_times)
    return tuple(_record(result, index, first, bench, prompt) for index, prompt in enumerate(prompts))


def _record(result: VllmBenchResult, index: int, first: float, bench: Bench, prompt: Prompt) -> RequestRecord:
    tokens = result.output_lens[index]
    ttft = result.ttfts[index] or None
    itl = result.itls[index]
    latency: float | None = None
    if result.latencies is not None:
        latency = result.latencies[index] or None
    elif "audio" not in bench.modalities and ttft is not None:
        latency = ttft + sum(itl)
    error = result.errors[index].strip() or _incomplete(tokens, bench, prompt)
    return RequestRecord(
        index=index,
        status="ok" if error is None else "failed",
        error=error,
        sent=result.start_times[index] - first,
        queued=None if result.queue_times is None else max(0.0, result.queue_times[index]),
        ttft=ttft,
        latency=latency,
        itl=itl,
        prompt_tokens=result.input_lens[index],
        output_tokens=tokens,
        text=result.generated_texts[index],
    )


def _incomplete(tokens: int, bench: Bench, prompt: Prompt) -> str | None:
    if tokens == 0 and "text" in bench.modalities:
        return "no output tokens came"
    fixed_length = bench.ignore_eos and not LENGTH_KEYS & bench.extra_body.keys()
    if fixed_length and tokens < prompt.output_len:
        return f"partial output: {tokens} of {prompt.output_len} tokens, with ignore_eos"
    return None


def summary_of(
    result: VllmBenchResult,
    records: Sequence[RequestRecord],
    *,
    bench: Bench,
    started_at: datetime,
    model: str,
    tokenizer: str,
) -> BenchSummary:
    """The summary of the bench: counts and throughputs over our records, every statistic as `vllm bench serve` has it.

    The two agree by definition. Its statistics without a sample are absent here, not 0, and its percentiles of too few
    samples are withheld as ours are.

    Parameters:
        records: those of `records_of`.
        started_at: UTC.
    """
    ours = summarise(
        records, bench=bench, duration_s=result.duration, started_at=started_at, model=model, tokenizer=tokenizer
    )
    told: dict[str, object] = {"backend": result.backend, "endpoint_type": result.endpoint_type}
    samples = _samples(records)
    for family in _TIMES:
        for name in ("mean", "median", "std", "p90", "p99"):
            key = f"{name}_{family}_ms"
            enough = samples[family] >= (PERCENTILE_SAMPLES[int(name[1:])] if name[0] == "p" else 1)
            told[key] = result.statistic(key) if enough else None
    spoke = "audio" in bench.modalities and bool(result.statistic("total_audio_duration_s"))
    for key in _SPEECH:
        enough = spoke and (not key.startswith("p99_") or samples["e2el"] >= PERCENTILE_SAMPLES[99])
        told[key] = result.statistic(key) if enough else None
    return ours.model_copy(update=told)


def _samples(records: Sequence[RequestRecord]) -> dict[str, int]:
    """How many samples stand behind each family of statistics."""
    good = [record for record in records if record.status == "ok"]
    return {
        "ttft": sum(record.ttft is not None for record in good),
        "tpot": sum(record.itl != () or time_per_output_token(record) is not None for record in good),
        "itl": sum(len(record.itl) for record in good),
        "e2el": len(good),
    }
