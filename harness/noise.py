"""The noise floor: by how much a host class lets one and the same arm differ from itself (`order: aa`).

A run in `aa` order compares the baseline with itself, so every change it measures is noise. Its floors are kept in
`results/noise/<host class>-<scenario>.json`, and copied into each later run of that scenario on a host of that class,
where they widen the band of its verdicts. A floor holds for the very load it was measured with.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError

from harness.atomic import write_atomic
from harness.errors import RecordError
from harness.records import Host, NoiseFloor, NoiseRecord
from harness.scenario import Scenario
from harness.stats import FIRM_ROUNDS, LEVEL, Comparison

Floors = Mapping[tuple[str, str], NoiseFloor]
"""By bench and metric."""

_CENTRE = 2.0
"""Standard errors that the centre of a run without any change stays within, 19 times of 20."""


def host_class(host: Host) -> str:
    """A name for hosts that may stand for each other: processor, cores, memory to the gigabyte, and GPUs."""
    parts = (host.cpu_model, str(host.cpu_count), f"{host.memory_bytes / 2**30:.0f}", *host.gpus)
    name = re.sub(r"[^a-z0-9]+", "-", " ".join((host.gpus[0] if host.gpus else host.cpu_model, parts[1])).lower())
    return f"{name.strip('-')}-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:8]}"


def floors_of(comparisons: Iterable[Comparison], run: str) -> tuple[NoiseFloor, ...]:
    """Floors from the comparisons of an `aa` run; what has too few valid rounds has none."""
    return tuple(
        NoiseFloor(
            bench=one.bench,
            metric=one.metric.key,
            deviation=math.sqrt(math.fsum(math.log1p(each.ratio) ** 2 for each in one.rounds) / len(one.rounds)),
            rounds=len(one.rounds),
            run=run,
        )
        for one in comparisons
        if len(one.rounds) >= FIRM_ROUNDS
    )


def half_width(floor: NoiseFloor, rounds: int) -> float:
    """The practical threshold under which the interval of as many rounds stays, 19 times of 20, with nothing changed.

    The interval reaches from its centre, two standard errors from zero at the most, by Student's t times a standard
    error of its own, which exceeds the known one by no more than the 95th percentile of Snedecor's F allows. 0 under
    2 rounds, which have no interval.
    """
    if rounds < 2:
        return 0.0
    # Not scipy.stats: the same quantiles, without a second of imports.
    from scipy.special import fdtri, stdtrit

    reach = float(stdtrit(rounds - 1, 0.5 + LEVEL / 2)) * math.sqrt(float(fdtri(rounds - 1, floor.rounds, LEVEL)))
    return math.expm1((_CENTRE + reach) * floor.deviation / math.sqrt(rounds))


def load_sha256(scenario: Scenario, bench: str) -> str:
    """Digest of what a floor holds for: the bench, the server and the baseline arm."""
    parts = (
        next(one for one in scenario.benches if one.name == bench),
        scenario.server,
        scenario.arms[scenario.baseline],
    )
    text = json.dumps([part.model_dump(mode="json") for part in parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def noise_path(results: Path, host: Host, scenario: str) -> Path:
    return results / "noise" / f"{host_class(host)}-{scenario}.json"


def write_noise(path: Path, record: NoiseRecord) -> None:
    write_atomic(path, record.model_dump_json(indent=1).encode() + b"\n")


def noise_for(results: Path, host: Host, scenario: Scenario) -> NoiseRecord | None:
    """The floors that hold for a run that starts now; None where there are none, and for an `aa` run itself.

    Raises:
        RecordError: the host's file is no noise record.
    """
    record = None if scenario.order == "aa" else read_noise(noise_path(results, host, scenario.name))
    if record is None:
        return None
    same = {
        bench.name for bench in scenario.benches if record.loads.get(bench.name) == load_sha256(scenario, bench.name)
    }
    floors = tuple(floor for floor in record.floors if floor.bench in same)
    return record.model_copy(update={"floors": floors}) if floors else None


def read_noise(path: Path) -> NoiseRecord | None:
    """The record; None where no `aa` run has been made.

    Raises:
        RecordError: the file is not such a record.
    """
    try:
        return NoiseRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ValidationError) as error:
        raise RecordError(f"{path}: found no noise record ({error}); allowed: what an `order: aa` run writes") from None


def floors_by_row(record: NoiseRecord | None) -> Floors:
    """A record's floors by bench and metric."""
    return {} if record is None else {(floor.bench, floor.metric): floor for floor in record.floors}
