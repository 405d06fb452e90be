"""The noise floor: by how much a host class lets one and the same arm differ from itself (`order: aa`).

A run in `aa` order compares the baseline with itself, so every change it measures is noise. Its floors are kept in
`results/noise/<host class>.json` and widen the verdicts of later runs of the same scenario on hosts of that class.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from harness.atomic import write_atomic
from harness.errors import RecordError
from harness.records import SCHEMA, Host, Record
from harness.stats import FIRM_ROUNDS, Comparison


class NoiseFloor(Record):
    """What one bench varied by, with nothing changed.

    `low` and `high` are the 95 % interval of the change between the baseline and itself, widened to hold zero, as
    ratios minus one.
    """

    bench: str
    low: float
    high: float
    rounds: int
    run: str


class NoiseRecord(Record):
    """The floors of one scenario on one host class, from its latest `aa` run."""

    schema_version: int = SCHEMA
    host_class: str
    scenario: str
    measured_at: str
    floors: tuple[NoiseFloor, ...]


def host_class(host: Host) -> str:
    """A name for hosts that may stand for each other: processor, cores, memory to the gigabyte, and GPUs."""
    parts = (host.cpu_model, str(host.cpu_count), f"{host.memory_bytes / 2**30:.0f}", *host.gpus)
    name = re.sub(r"[^a-z0-9]+", "-", " ".join((host.gpus[0] if host.gpus else host.cpu_model, parts[1])).lower())
    return f"{name.strip('-')}-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:8]}"


def floors_of(comparisons: Iterable[Comparison], run: str) -> tuple[NoiseFloor, ...]:
    """Floors from the comparisons of an `aa` run; benches with too few valid rounds have none."""
    return tuple(
        NoiseFloor(
            bench=one.bench,
            low=min(one.interval.low, 0.0),
            high=max(one.interval.high, 0.0),
            rounds=len(one.rounds),
            run=run,
        )
        for one in comparisons
        if one.interval is not None and len(one.rounds) >= FIRM_ROUNDS
    )


def noise_path(results: Path, host: Host, scenario: str) -> Path:
    return results / "noise" / f"{host_class(host)}-{scenario}.json"


def write_noise(path: Path, record: NoiseRecord) -> None:
    write_atomic(path, record.model_dump_json(indent=1).encode() + b"\n")


def read_noise(path: Path) -> dict[str, NoiseFloor]:
    """The floors by bench; none where no `aa` run has been made.

    Raises:
        RecordError: the file is not such a record.
    """
    try:
        data = json.loads(path.read_bytes())
        return {floor.bench: floor for floor in NoiseRecord.model_validate(data).floors}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, ValidationError) as error:
        raise RecordError(f"{path}: found no noise record ({error}); allowed: what an `order: aa` run writes") from None
