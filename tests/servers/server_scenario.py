"""Scenarios that differ only in their server settings."""

from typing import Any

from harness.scenario import Scenario

BENCH = {
    "name": "b",
    "dataset": "random",
    "concurrency": 1,
    "prompts": 1,
    "seed": 0,
    "output": 1,
    "shared_prefix": 0,
    "random_len": 8,
    "range_ratio": 0.0,
}


def scenario(server: dict[str, Any], arm: dict[str, Any], kind: str = "tiny-omni", **more: Any) -> Scenario:
    """A scenario with the arms `off` (the baseline, changing nothing) and `on`."""
    return Scenario.model_validate(
        {
            "schema": 1,
            "name": "s",
            "model": "m",
            "server": {"kind": kind, **server},
            "arms": {"off": {"baseline": True}, "on": arm},
            "rounds": 1,
            "benches": (BENCH,),
            **more,
        }
    )
