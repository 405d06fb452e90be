"""What two clients made of the same row on one server."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.stats import geometric_interval

CLIENTS = ("ours", "vllm")
_COLUMNS = {
    "request_throughput": 6,
    "cpu_s": 6,
    "median_ttft_ms": 7,
    "median_e2el_ms": 7,
    "server_cores": 12,
    "engine_steps": 12,
}
"""What the table shows of a reading, and how wide."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one client made of one run.

    `cpu_s` is what its process spent during the load, `server_cpu_s` what the server's did: None where they are not to
    be seen. `started_s` is an instant of `time.perf_counter()`.
    """

    client: str
    request_throughput: float
    duration_s: float
    median_ttft_ms: float
    median_e2el_ms: float
    completed: int
    input_tokens: int
    output_tokens: int
    texts: tuple[str, ...]
    started_s: float
    cpu_s: float | None
    server_cpu_s: float | None = None
    engine_steps: float = 0.0
    hits: float = 0.0
    queries: float = 0.0

    @property
    def server_cores(self) -> float | None:
        """Cores that the server kept busy, on average."""
        return None if self.server_cpu_s is None else self.server_cpu_s / self.duration_s


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it. Medians are over the runs of one client."""

    prompts: int
    same_prompts: int
    readings: tuple[Reading, ...]

    def of(self, client: str) -> list[Reading]:
        return [reading for reading in self.readings if reading.client == client]

    def median(self, client: str, name: str) -> float | None:
        """None where one of its runs lacks the figure."""
        values = [getattr(reading, name) for reading in self.of(client)]
        return None if None in values else statistics.median(values)

    @property
    def ratio(self) -> float:
        """Our median request throughput over theirs."""
        ours, theirs = (self.median(client, "request_throughput") for client in CLIENTS)
        assert ours is not None
        assert theirs is not None
        return ours / theirs

    @property
    def by_turn(self) -> list[float]:
        """Ours over theirs, turn by turn: what drifts over minutes cancels."""
        return [
            ours.request_throughput / theirs.request_throughput
            for ours, theirs in zip(self.of("ours"), self.of("vllm"), strict=True)
        ]

    @property
    def counts(self) -> set[tuple[int, int, int]]:
        """Requests completed, tokens in, tokens out: one entry where every run of both agrees."""
        return {(reading.completed, reading.input_tokens, reading.output_tokens) for reading in self.readings}

    @property
    def hit_deltas(self) -> set[tuple[float, float]]:
        """Tokens hit and looked up: one entry where every run of both agrees."""
        return {(reading.hits, reading.queries) for reading in self.readings}


def table(found: Comparison) -> str:
    """The comparison for a person."""
    lines = ["client  req/s   CPU s   TTFT ms  E2EL ms  server cores  engine steps  (req/s of each run)"]
    for client in CLIENTS:
        cells = [
            f"{'-' if value is None else format(value, '.2f'):<{width}}"
            for name, width in _COLUMNS.items()
            for value in [found.median(client, name)]
        ]
        runs = ", ".join(f"{reading.request_throughput:.2f}" for reading in found.of(client))
        lines.append(f"{client:<6}  {'  '.join(cells)}  ({runs})")
    lines += [
        f"ratio of the medians, ours / vllm: {found.ratio - 1:+.2%}",
        f"turn by turn: {_spread(found.by_turn)}",
        f"same prompts: {found.same_prompts} of {found.prompts}",
        f"completed, tokens in, tokens out: {_agreed(found.counts)}",
        f"tokens hit, tokens looked up: {_agreed(found.hit_deltas)}",
        f"same answers: {'yes' if len({reading.texts for reading in found.readings}) == 1 else 'no'}",
    ]
    return "\n".join(lines)


def _spread(ratios: Sequence[float]) -> str:
    median = f"median {statistics.median(ratios) - 1:+.1%}"
    if len(ratios) < 2:
        return median
    low, centre, high = (float(bound) - 1 for bound in geometric_interval(np.array(ratios)))
    return f"geometric mean {centre:+.1%}, 95 % interval {low:+.1%} .. {high:+.1%}, {median}"


def _agreed(found: set[Any]) -> str:
    return (
        ", ".join(f"{value:g}" for value in next(iter(found))) if len(found) == 1 else f"runs differ: {sorted(found)}"
    )
