"""A bench and its prompts, for tests of the client."""

from __future__ import annotations

from typing import Any

from harness.client.stream import RawRequest
from harness.scenario import Bench
from harness.workloads.prompt import Prompt

ROW = {
    "name": "b",
    "dataset": "random",
    "shared_prefix": 0,
    "random_len": 5,
    "range_ratio": 0.0,
    "concurrency": 1,
    "prompts": 1,
    "seed": 0,
    "output": 3,
}


def make_bench(**changes: Any) -> Bench:
    return Bench(**(ROW | changes))


def make_prompts(count: int, output_len: int = 3) -> list[Prompt]:
    return [Prompt(f"prompt {index}", prompt_len=5, output_len=output_len) for index in range(count)]


def make_raw(arrivals: list[tuple[int, bytes]], **changes: Any) -> RawRequest:
    """A raw request sent at 1 s, whose body arrived at the given milliseconds after that."""
    raw: dict[str, Any] = {
        "index": 0,
        "due_ns": 900_000_000,
        "sent_ns": 1_000_000_000,
        "finished_ns": 9_000_000_000,
        "http_status": 200,
        "arrivals": tuple((1_000_000_000 + ms * 1_000_000, data) for ms, data in arrivals),
        "error": None,
    }
    return RawRequest(**(raw | changes))
