"""Recorded nights of one scenario with made-up numbers: `slower` is by how much one arm is slower than on night one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from synthetic_run import SyntheticRun

from harness.policy import Policy
from harness.records import CellRecord, PlannedTrial
from harness.store import RunStore

BOUND = {"bench": "*", "metric": "request_throughput", "at_least": -0.10}


@dataclass
class NightRun(SyntheticRun):
    """`slower` = 0.2 takes a sixth off the throughput of `cache_on`."""

    slower: float = 0.0

    def cell(self, planned: PlannedTrial, name: str) -> CellRecord:
        cell = super().cell(planned, name)
        if planned.arm != "cache_on":
            return cell
        keys = ("request_throughput", "output_throughput", "audio_throughput")
        changed = {key: getattr(cell, key) / (1 + self.slower) for key in keys if getattr(cell, key) is not None}
        return cell.model_copy(update=changed)


def night(results: Path, number: int, slower: float = 0.0, **changes: object) -> RunStore:
    """The run of one night, in its own folder below `results`."""
    name = f"synthetic-2026010{number}T000000Z"
    return RunStore.open(NightRun(results / name, run=name, slower=slower, **changes).write())  # type: ignore[arg-type]


def policy(*rules: dict[str, object]) -> Policy:
    return Policy.model_validate({"schema": 1, "rules": list(rules)})
