"""Latency of single requests: percentiles over all of an arm's requests together, and round by round. Pure functions.

Pooled percentiles see the tail that no single round is long enough for; the spread of the rounds shows whether one of
them made it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.records import RequestRecord
from harness.report.measures import Spread

PERCENTILES = (50, 90, 99)
P99_SAMPLES = 100
"""Values below which a 99th percentile is withheld: it would be the maximum by another name."""
Latency = Callable[[RequestRecord], float | None]

LATENCIES: dict[str, Latency] = {
    "TTFT": lambda request: request.ttft,
    "E2EL": lambda request: request.latency,
    "TTFP": lambda request: request.ttfp,
}


@dataclass(frozen=True, slots=True)
class PooledRow:
    """One latency of one bench and arm, in milliseconds.

    Parameters:
        requests: answered ones of the valid rounds, all together.
        pooled: the percentiles over them; None where withheld.
        by_round: smallest and largest of each round's own percentile; None where withheld in a round.
    """

    bench: str
    arm: str
    latency: str
    requests: int
    pooled: tuple[float | None, ...]
    by_round: tuple[Spread | None, ...]


def pooled_of(bench: str, arm: str, rounds: Sequence[Sequence[RequestRecord]]) -> tuple[PooledRow, ...]:
    """A row for each latency that the answers have.

    Parameters:
        rounds: the requests of each valid round.
    """
    rows = []
    for name, latency in LATENCIES.items():
        values = [_milliseconds(requests, latency) for requests in rounds]
        everything = [value for each in values for value in each]
        if everything:
            rows.append(
                PooledRow(
                    bench=bench,
                    arm=arm,
                    latency=name,
                    requests=len(everything),
                    pooled=tuple(_percentile(everything, percent) for percent in PERCENTILES),
                    by_round=tuple(_spread(values, percent) for percent in PERCENTILES),
                )
            )
    return tuple(rows)


def _milliseconds(requests: Sequence[RequestRecord], latency: Latency) -> list[float]:
    found = (latency(request) for request in requests if request.status == "ok")
    return [value * 1000.0 for value in found if value is not None]


def _percentile(values: Sequence[float], percent: int) -> float | None:
    if not values or (percent == 99 and len(values) < P99_SAMPLES):
        return None
    return float(np.percentile(values, percent))


def _spread(rounds: Sequence[Sequence[float]], percent: int) -> Spread | None:
    found = [value for values in rounds if (value := _percentile(values, percent)) is not None]
    return Spread(min(found), max(found), len(found)) if len(found) == len(rounds) else None
