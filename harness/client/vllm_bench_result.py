"""What `vllm bench serve --save-result --save-detailed` wrote, as our records.

The form is that of vLLM 0.30 to 0.32 and vLLM-Omni 0.30, whose client leaves `latencies`, `queue_times` and every
deviation out and tells of speech in its summary only. What a file says twice must agree, and what was asked for must be
there: half of a result would be read as a measurement of something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, ValidationError, model_validator

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
_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda sample: float(np.mean(sample)),
    "median": lambda sample: float(np.median(sample)),
    "std": lambda sample: float(np.std(sample)),
    "p90": lambda sample: float(np.percentile(sample, 90)),
    "p99": lambda sample: float(np.percentile(sample, 99)),
}
"""As its `calculate_metrics` has them."""
_SPEECH = (
    "mean_audio_ttfp_ms", "median_audio_ttfp_ms", "p99_audio_ttfp_ms", "mean_audio_rtf", "median_audio_rtf",
    "mean_audio_duration_s", "total_audio_duration_s", "audio_throughput",
)  # fmt: skip
_ROUNDING = 1e-6
"""Relative, or in the number's own unit: what it and our repetition of its sums may differ by. Both are of float64."""


class VllmBenchResult(BaseModel):
    """The file, as far as it is read. Lists are in prompt order and hold every request, failed ones too.

    Times are in seconds; a failed request's are 0.0. `start_times` are instants of a monotonic clock.
    """

    # The statistics have names made of their parts and stay in `model_extra`.
    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    backend: str
    endpoint_type: str
    num_prompts: int
    duration: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    input_lens: tuple[NonNegativeInt, ...]
    output_lens: tuple[NonNegativeInt, ...]
    ttfts: tuple[NonNegativeFloat | None, ...]
    itls: tuple[tuple[NonNegativeFloat, ...], ...]
    start_times: tuple[float, ...]
    generated_texts: tuple[str, ...]
    errors: tuple[str, ...]
    latencies: tuple[NonNegativeFloat, ...] | None = None
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
        if not self.duration > 0:
            raise ValueError(f"a duration of {self.duration} s")
        # A failed request's prompt does not count; its output is 0 in the list.
        asked = sum(self.input_lens[index] for index in self._completed())
        answered = sum(self.output_lens)
        _agree("total_input_tokens", self.total_input_tokens, asked, "input_lens of those completed", 0.0)
        _agree("total_output_tokens", self.total_output_tokens, answered, "output_lens", 0.0)
        for name, count in (
            ("request_throughput", self.completed),
            ("output_throughput", answered),
            ("total_token_throughput", asked + answered),
        ):
            _agree(name, getattr(self, name), count / self.duration, f"{count} in {self.duration:.6g} s")
        return self

    @classmethod
    def read(cls, path: Path, *, omni: bool = False, speech: bool = False) -> Self:
        """The result in a file.

        Parameters:
            omni: vLLM-Omni's client wrote it.
            speech: statistics of audio were asked for.

        Raises:
            HarnessFailure: there is none, or not in a form that is understood, or one whose numbers contradict each
                other or lack what was asked for.
        """
        try:
            result = cls.model_validate_json(path.read_bytes())
            if not omni:
                result._check_times()
            result._check_statistics(omni)
            if speech:
                result._check_speech()
            return result
        except OSError as error:
            raise HarnessFailure(f"vllm bench serve left no result: {path}: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"])
            # Without a place it is the whole file.
            named = bool(first["loc"]) and isinstance(first["input"], int | float | str)
            found = f", found {repr(first['input'])[:80]}" if named else ""
            raise HarnessFailure(f"{path}: not a result of vllm bench serve: {where}{first['msg']}{found}") from None
        except ValueError as error:
            raise HarnessFailure(f"{path}: not a result of vllm bench serve: {error}") from None

    def statistic(self, name: str) -> float | None:
        """A number of its summary; None where it is absent or no number."""
        value = (self.model_extra or {}).get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if math.isfinite(value) else None

    def _completed(self) -> list[int]:
        """Indices of the requests that it calls completed."""
        return [index for index, error in enumerate(self.errors) if not error]

    def _check_times(self) -> None:
        """A request is completed to vLLM's client once a chunk came, so it has a first and a last one.

        Raises:
            ValueError: one has not.
        """
        for name, values in {"latencies": self.latencies, "queue_times": self.queue_times}.items():
            if values is None:
                raise ValueError(f"{name}: Field required")
        for index in self._completed():
            ttft, latency = self.ttfts[index], (self.latencies or ())[index]
            if not ttft:
                raise ValueError(f"ttfts: {index}: found {ttft}, expected more than 0 s of a completed request")
            if latency < ttft:
                raise ValueError(f"latencies: {index}: found {latency}, expected at least its ttft, {ttft} s")
            # Of one that failed before it was sent, the difference to its arrival is none.
            if (queued := (self.queue_times or ())[index]) < 0:
                raise ValueError(f"queue_times: {index}: found {queued}, expected at least 0 s of a completed request")

    def _check_statistics(self, omni: bool) -> None:
        """Every statistic that has a sample other than 0 is there, and is that of the lists.

        Raises:
            ValueError: it is not.
        """
        for family, sample in self._seconds(omni).items():
            for statistic, of in _STATISTICS.items():
                name = f"{statistic}_{family}_ms"
                measured = self.completed > 0 if sample is None else any(sample)
                if not measured or (omni and statistic == "std"):
                    continue
                found = self._number(name)
                if sample is not None:
                    _agree(name, found, of(sample) * 1e3, "the requests' own times")
                elif found > self.duration * 1e3:
                    raise ValueError(f"{name}: found {found:.10g}, expected at most the load's {self.duration:.6g} s")

    def _seconds(self, omni: bool) -> dict[str, list[float] | None]:
        """The samples behind each family of statistics, in seconds; None where only the file's writer had them.

        They are of the requests that completed. To vLLM-Omni's client TPOT is a request's mean ITL. Where one has
        several tokens and no ITL it may have been timed otherwise, and no sample is named here.
        """
        completed = self._completed()
        ttft = [time for index in completed if (time := self.ttfts[index]) is not None]
        itl = [gap for index in completed for gap in self.itls[index]]
        several = [index for index in completed if self.output_lens[index] > 1]
        if omni or self.latencies is None:
            means = [sum(self.itls[index]) / max(1, len(self.itls[index])) for index in several]
            return {"ttft": ttft, "tpot": means if all(means) else [], "itl": itl, "e2el": None}
        tpot = [
            (self.latencies[index] - (self.ttfts[index] or 0.0)) / (self.output_lens[index] - 1) for index in several
        ]
        return {"ttft": ttft, "tpot": tpot, "itl": itl, "e2el": [self.latencies[index] for index in completed]}

    def _check_speech(self) -> None:
        """Where anything was spoken, every statistic of it is there.

        Raises:
            ValueError: it is not, or how long it was is not said.
        """
        spoken_s = self._number("total_audio_duration_s")
        if spoken_s == 0:
            return
        for name in _SPEECH:
            self._number(name)
        source = f"total_audio_duration_s in {self.duration:.6g} s"
        _agree("audio_throughput", self._number("audio_throughput"), spoken_s / self.duration, source)

    def _number(self, name: str) -> float:
        """A number of its summary that must be there.

        Raises:
            ValueError: it is absent, or no finite number, or a negative one.
        """
        value = self.statistic(name)
        if value is None or value < 0:
            extra = self.model_extra or {}
            found = repr(extra[name])[:80] if name in extra else "nothing"
            raise ValueError(f"{name}: found {found}, expected a finite number of at least 0")
        return value


def _agree(name: str, found: float, expected: float, source: str, rounding: float = _ROUNDING) -> None:
    """Raises ValueError where a number is not what it is made of."""
    if not math.isclose(found, expected, rel_tol=rounding, abs_tol=rounding):
        raise ValueError(f"{name}: found {found:.10g}, expected {expected:.10g} by {source}")


def records_of(result: VllmBenchResult, *, bench: Bench, prompts: Sequence[Prompt]) -> tuple[RequestRecord, ...]:
    """One record per prompt. What the file does not say (`UNTOLD`) is absent.

    Three kinds of request are failed here that `vllm bench serve` counts as completed: an answer without text and, with
    `ignore_eos`, one of fewer tokens than asked for, as with our own client; and a text of more tokens than asked for.

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
    error = result.errors[index].strip() or _unasked(tokens, ttft, bench, prompt)
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


def _unasked(tokens: int, ttft: float | None, bench: Bench, prompt: Prompt) -> str | None:
    """In what an answer is not the one that was asked for; None when it is."""
    if tokens == 0 and "text" in bench.modalities:
        return "no output tokens came"
    if ttft is None and "text" in bench.modalities:
        return f"no text came ({tokens} output tokens counted)"
    if LENGTH_KEYS & bench.extra_body.keys():
        return None
    if bench.ignore_eos and tokens < prompt.output_len:
        return f"partial output: {tokens} of {prompt.output_len} tokens, with ignore_eos"
    # Of an answer that speaks vLLM-Omni's client takes the largest count it is told of, which may be the speech's.
    if tokens > prompt.output_len and "audio" not in bench.modalities:
        return f"too long an output: {tokens} tokens, where at most {prompt.output_len} were asked for"
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
