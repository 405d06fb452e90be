"""A bench's summary agrees with vLLM's own, and says nothing where nothing was measured."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_bench import make_bench

from harness.client.summary import Spread, summarise, time_per_output_token
from harness.records import BenchSummary, RequestRecord

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "summary.json").read_text())


def request(index: int = 0, **changes: Any) -> RequestRecord:
    base: dict[str, Any] = {
        "index": index,
        "status": "ok",
        "http_status": 200,
        "sent": 0.0,
        "queued": 0.0,
        "ttft": 0.1,
        "latency": 0.5,
        "itl": (0.1, 0.3),
        "prompt_tokens": 10,
        "output_tokens": 3,
        "tokens_from": "usage",
    }
    return RequestRecord(**(base | changes))


def summary(records: list[RequestRecord], duration_s: float = 2.0, **changes: Any) -> BenchSummary:
    return summarise(
        records,
        bench=make_bench(**changes),
        duration_s=duration_s,
        started_at=datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC),
        model="m",
        tokenizer="t",
    )


def test_summary_equals_vllm_on_the_same_requests() -> None:
    """Every number that vLLM's `calculate_metrics` gives for 140 scripted requests is ours too."""
    records = [
        request(
            index,
            status="ok" if given["success"] else "failed",
            sent=given["sent"],
            ttft=given["ttft"],
            itl=tuple(given["itl"]),
            latency=given["latency"],
            prompt_tokens=given["prompt_tokens"],
            output_tokens=given["output_tokens"],
        )
        for index, given in enumerate(GOLDEN["requests"])
    ]
    ours = summary(records, GOLDEN["duration_s"]).model_dump()
    assert {key: ours[key] for key in GOLDEN["summary"]} == pytest.approx(GOLDEN["summary"], rel=1e-9)


def test_traffic_of_a_closed_loop() -> None:
    """Closed loop: an infinite rate, burstiness 1 and the concurrency, as vLLM writes them."""
    seen = summary([request()], concurrency=8)
    assert (seen.request_rate, seen.burstiness, seen.max_concurrency) == ("inf", 1.0, 8)
    assert (seen.date, seen.backend, seen.endpoint_type) == ("20260304-050607", "openai-chat-omni", "openai-chat-omni")
    assert (seen.model_id, seen.tokenizer_id, seen.num_prompts) == ("m", "t", 1)


@pytest.mark.parametrize(("burstiness", "written"), [(None, "inf"), (0.5, 0.5)])
def test_traffic_of_an_open_loop(burstiness: float | None, written: float | str) -> None:
    """Open loop: the rate, no limit on concurrency; constant gaps are infinite burstiness, and survive JSON."""
    seen = summary([request()], request_rate=4.0, burstiness=burstiness, endpoint="completions")
    assert (seen.request_rate, seen.burstiness, seen.max_concurrency) == (4.0, written, None)
    assert seen.backend == "openai"
    assert BenchSummary.model_validate_json(seen.model_dump_json()) == seen


def test_nothing_measured_is_none_and_not_zero() -> None:
    """All failed: rates are truly zero, statistics do not exist."""
    seen = summary([request(status="failed", error="x"), request(1, status="failed", error="x")])
    assert (seen.completed, seen.failed, seen.request_throughput, seen.output_throughput) == (0, 2, 0.0, 0.0)
    statistics = {value for key, value in seen.model_dump().items() if key.startswith(("mean", "median", "std", "p9"))}
    assert statistics == {None}
    assert (seen.total_audio_duration_s, seen.audio_throughput) == (None, None)


def test_single_tokens_have_no_tpot() -> None:
    """A bench of one token per request has TTFT and E2EL, no TPOT and no ITL."""
    seen = summary([request(output_tokens=1, itl=(), latency=0.1)])
    assert (seen.mean_ttft_ms, seen.mean_e2el_ms) == (100.0, 100.0)
    assert (seen.mean_tpot_ms, seen.mean_itl_ms) == (None, None)


def test_audio_is_summed_over_the_requests_that_spoke() -> None:
    """Audio seconds per second of wall time; means over speakers, not over the silent."""
    spoke = [
        request(index, ttfp=0.2 + index, audio_seconds=1.0 + index, audio_rtf=0.5 + index, latency=3.0)
        for index in range(2)
    ]
    seen = summary([*spoke, request(2)], modalities=("text", "audio"))
    assert (seen.total_audio_duration_s, seen.mean_audio_duration_s, seen.audio_throughput) == (3.0, 1.5, 1.5)
    assert (seen.mean_audio_ttfp_ms, seen.mean_audio_rtf) == (pytest.approx(700.0), 1.0)
    assert seen.p99_audio_ttfp_ms is None


def test_time_per_token_of_a_speaking_request_ends_with_its_text() -> None:
    """The Talker's time is not time per text token; for text alone both spans agree."""
    assert time_per_output_token(request()) == pytest.approx(0.2)
    assert time_per_output_token(request(latency=9.0, audio_seconds=2.0)) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("n", "p90", "p99"), [(9, False, False), (10, True, False), (99, True, False), (100, True, True)]
)
def test_percentiles_need_enough_samples(n: int, p90: bool, p99: bool) -> None:
    """p90 from 10 samples on, p99 from 100 on, by linear interpolation between order statistics."""
    sample = list(np.random.default_rng(n).exponential(size=n))
    spread = Spread.of(sample)
    assert (spread.p90 is not None, spread.p99 is not None) == (p90, p99)
    if p90:
        ordered, at = sorted(sample), 0.9 * (n - 1)
        low = int(at)
        assert spread.p90 == pytest.approx(ordered[low] + (at - low) * (ordered[low + 1] - ordered[low]))


@pytest.mark.parametrize(("records", "duration_s"), [([], 1.0), ([request()], 0.0)])
def test_no_requests_or_no_time_is_an_error(records: list[RequestRecord], duration_s: float) -> None:
    """There is no summary of nothing."""
    with pytest.raises(ValueError, match="needs records and time"):
        summary(records, duration_s)
