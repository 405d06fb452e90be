"""Cells and pairs with chosen numbers, for tests of the pure functions."""

from __future__ import annotations

from typing import Any

from harness.pairs import Pair
from harness.records import CellInfo, CellRecord, HitRate

ROUND_LATENCY = {"median_ttft_ms": 10.0, "median_e2el_ms": 50.0}


def make_cell(arm: str = "cache_off", number: int = 1, position: int | None = None, **values: Any) -> CellRecord:
    """One valid text cell of 16 prompts, 8 tokens each; `values` replace its keys or those of its `cell`."""
    info = {
        "round": number,
        "position": position or (1 if arm == "cache_off" else 2),
        "arm": arm,
        "bench": "P1024",
        "reported": True,
        "started_at": "2026-01-01T00:00:00Z",
        "finished_at": "2026-01-01T00:00:10Z",
        "modalities": ("text",),
        "hit_rate": None,
        "metrics": None,
        "memory": None,
        "client_lag_ms": None,
    }
    summary = {
        "date": "20260101-000000",
        "backend": "openai-chat",
        "endpoint_type": "openai-chat",
        "model_id": "m",
        "tokenizer_id": "m",
        "num_prompts": 16,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 4,
        "duration": 2.0,
        "completed": 16,
        "failed": 0,
        "total_input_tokens": 16384,
        "total_output_tokens": 128,
        "request_throughput": 8.0,
        "output_throughput": 64.0,
        "total_token_throughput": 8256.0,
        **ROUND_LATENCY,
    }
    info |= {key: values.pop(key) for key in tuple(values) if key in CellInfo.model_fields}
    return CellRecord.model_validate({**summary, **values, "cell": CellInfo.model_validate(info)})


def make_pairs(base: list[float], other: list[float], key: str = "request_throughput") -> list[Pair]:
    """Valid pairs of one metric, one a round, in an order that alternates between rounds."""
    pairs = []
    for number, (one, two) in enumerate(zip(base, other, strict=True), start=1):
        first = number % 2 == 1
        pairs.append(
            Pair(
                round=number,
                bench="P1024",
                arm="cache_on",
                baseline="cache_off",
                base=make_cell("cache_off", number, 1 if first else 2, **{key: one}),
                other=make_cell("cache_on", number, 2 if first else 1, **{key: two}),
            )
        )
    return pairs


def make_hit(queries: float, hits: float, ideal: float | None) -> HitRate:
    """Prefix-cache tokens around a bench."""
    return HitRate(queries=queries, hits=hits, rate=hits / queries if queries else None, ideal=ideal)
