"""The summary of one bench, with the keys and the definitions of `vllm bench serve`.

Departures, each where that tool would print a number that nobody measured: a statistic without a sample is None (there
0), p90 needs 10 samples and p99 needs 100, and audio means are over the requests that spoke.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import numpy as np

from harness.records import BenchSummary, RequestRecord
from harness.scenario import Bench

BACKENDS = {"chat": "openai-chat-omni", "completions": "openai", "speech": "openai-audio-speech"}
"""Endpoint to the name of the client that `vllm bench serve` would use for it."""

PERCENTILE_SAMPLES = {90: 10, 99: 100}
"""Samples below which a percentile is withheld: it would be the maximum by another name."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Location and spread of a sample; a field is None where the sample is too small for it.

    The deviation is the population's; percentiles interpolate linearly between order statistics (the inclusive
    method, numpy's default).
    """

    mean: float | None
    median: float | None
    std: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, sample: Sequence[float], scale: float = 1.0) -> Self:
        """Statistics of `sample * scale`."""
        if not sample:
            return cls(None, None, None, None, None)
        values = np.asarray(sample, dtype=np.float64) * scale
        p90, p99 = (
            float(np.percentile(values, percent)) if len(values) >= needed else None
            for percent, needed in PERCENTILE_SAMPLES.items()
        )
        return cls(float(values.mean()), float(np.median(values)), float(values.std()), p90, p99)


def time_per_output_token(record: RequestRecord) -> float | None:
    """TPOT in seconds: `(latency - TTFT) / (output_tokens - 1)`; None for a single token.

    The latency of a request that speaks runs on to its last audio, which is not time per text token: there the span
    of its text events stands for `latency - TTFT`, as in vLLM-Omni. In a text request the two spans are the same.
    """
    if record.ttft is None or record.latency is None or record.output_tokens is None or record.output_tokens < 2:
        return None
    span = record.latency - record.ttft if record.audio_seconds is None else sum(record.itl)
    return span / (record.output_tokens - 1)


def summarise(
    records: Sequence[RequestRecord],
    *,
    bench: Bench,
    duration_s: float,
    started_at: datetime,
    model: str,
    tokenizer: str,
    label: str | None = None,
) -> BenchSummary:
    """Summary over one bench. Every statistic is over the requests that succeeded.

    Throughputs divide by `duration_s`, failures and all; output tokens and audio seconds of failed requests do not
    count.

    Parameters:
        duration_s: wall time of the load.
        started_at: UTC; `date` is written in vLLM's form, `YYYYMMDD-HHMMSS`.

    Raises:
        ValueError: no records, or a duration that is not positive.
    """
    if not records or not duration_s > 0:
        raise ValueError(f"bench {bench.name}: a summary needs records and time: got {len(records)} in {duration_s} s")
    good = [record for record in records if record.status == "ok"]
    input_tokens = sum(record.prompt_tokens or 0 for record in good)
    output_tokens = sum(record.output_tokens or 0 for record in good)
    ttft = Spread.of([r.ttft for r in good if r.ttft is not None], 1e3)
    tpot = Spread.of([t for t in map(time_per_output_token, good) if t is not None], 1e3)
    itl = Spread.of([gap for r in good for gap in r.itl], 1e3)
    e2el = Spread.of([r.latency for r in good if r.latency is not None], 1e3)
    ttfp = Spread.of([r.ttfp for r in good if r.ttfp is not None], 1e3)
    rtf = Spread.of([r.audio_rtf for r in good if r.audio_rtf is not None])
    spoken = [r.audio_seconds for r in good if r.audio_seconds is not None]
    backend = BACKENDS[bench.endpoint]
    closed = bench.request_rate is None
    return BenchSummary(
        date=started_at.strftime("%Y%m%d-%H%M%S"),
        backend=backend,
        endpoint_type=backend,
        label=label,
        model_id=model,
        tokenizer_id=tokenizer,
        num_prompts=len(records),
        request_rate="inf" if bench.request_rate is None else bench.request_rate,
        burstiness=1.0 if closed else "inf" if bench.burstiness is None else bench.burstiness,
        max_concurrency=bench.concurrency if closed else None,
        duration=duration_s,
        completed=len(good),
        failed=len(records) - len(good),
        total_input_tokens=input_tokens,
        total_output_tokens=output_tokens,
        request_throughput=len(good) / duration_s,
        output_throughput=output_tokens / duration_s,
        total_token_throughput=(input_tokens + output_tokens) / duration_s,
        mean_ttft_ms=ttft.mean,
        median_ttft_ms=ttft.median,
        std_ttft_ms=ttft.std,
        p90_ttft_ms=ttft.p90,
        p99_ttft_ms=ttft.p99,
        mean_tpot_ms=tpot.mean,
        median_tpot_ms=tpot.median,
        std_tpot_ms=tpot.std,
        p90_tpot_ms=tpot.p90,
        p99_tpot_ms=tpot.p99,
        mean_itl_ms=itl.mean,
        median_itl_ms=itl.median,
        std_itl_ms=itl.std,
        p90_itl_ms=itl.p90,
        p99_itl_ms=itl.p99,
        mean_e2el_ms=e2el.mean,
        median_e2el_ms=e2el.median,
        std_e2el_ms=e2el.std,
        p90_e2el_ms=e2el.p90,
        p99_e2el_ms=e2el.p99,
        mean_audio_ttfp_ms=ttfp.mean,
        median_audio_ttfp_ms=ttfp.median,
        p99_audio_ttfp_ms=ttfp.p99,
        mean_audio_rtf=rtf.mean,
        median_audio_rtf=rtf.median,
        mean_audio_duration_s=sum(spoken) / len(spoken) if spoken else None,
        total_audio_duration_s=sum(spoken) if spoken else None,
        audio_throughput=sum(spoken) / duration_s if spoken else None,
    )
