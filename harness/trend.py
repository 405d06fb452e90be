"""The trend: what nightly runs of one scenario measured, night after night, and the night on which it changed.

A series is one append-only file per scenario, host class and set of versions, `results/trend/<name>.jsonl`: one line
per night, and one per alarm that was given. What is followed is the change of an arm against the baseline arm of its
own run, in which whatever the whole machine did that night cancels.

Change points are found by PELT (Killick, Fearnhead and Eckley, 2012) of the library `ruptures`, on the logarithms of
the quotients in units of what they differ by from night to night. One night is no change, good or bad: it takes two in
a row. The last level is compared with the best one since the last alarm, so that a regression that creeps is told of
when it adds up.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from harness.errors import MissingDependency, RecordError
from harness.gate import Changes
from harness.records import SCHEMA, Record

RUN_OF_NIGHTS = 2
"""Nights in a row that a change must last before it is one."""
_PENALTY = 16.0
"""What one more change point must save in squared standard deviations: levels four standard errors apart. Every night
looks for every change again, so that the usual 3 log n (11 for 45 nights) would find one in every tenth steady series.
"""
_LEAST_ERROR = 1e-3
"""Spread below which nights are not believed to be that alike: a tenth of a percent."""
_NORMAL_MEDIAN = 0.6745
"""Median distance of a normal variable from its mean, in standard deviations."""


class Point(Record):
    """One row of one night: the geometric mean change over rounds, minus one, and its standard error in logs."""

    bench: str
    arm: str
    metric: str
    change: float
    error: float | None
    rounds: int


class Night(Record):
    """One run of a series."""

    kind: Literal["night"] = "night"
    schema_version: int = SCHEMA
    at: str
    run: str
    commit: str | None
    versions: dict[str, str]
    points: tuple[Point, ...]


class Alarm(Record):
    """A change that was told of, once: since which night, seen on which, from what to what (ratios minus one)."""

    kind: Literal["alarm"] = "alarm"
    schema_version: int = SCHEMA
    bench: str
    arm: str
    metric: str
    since: str
    """The run of the first night after the change."""
    seen: str
    """The run on which it was told."""
    before: float
    after: float

    @property
    def text(self) -> str:
        row = " ".join(part for part in (self.bench, self.arm, self.metric) if part)
        return f"{row}: {self.before:+.1%} before, {self.after:+.1%} since {self.since}"


Line = Night | Alarm
_LINE: TypeAdapter[Line] = TypeAdapter(Line)  # discriminated by `kind`, whose literals differ


@dataclass(frozen=True, slots=True)
class Series:
    """A whole file, in the order it was written."""

    path: Path
    nights: tuple[Night, ...]
    alarms: tuple[Alarm, ...]


def series_path(results: Path, scenario: str, host_class: str, versions: Mapping[str, str]) -> Path:
    """Where the series of this scenario lies, for hosts of this class and these versions of what it runs on."""
    text = json.dumps(dict(sorted(versions.items())))
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{scenario}-{host_class}-{digest}")
    return results / "trend" / f"{name}.jsonl"


def read_series(path: Path) -> Series:
    """A series, empty where there is no file yet. A last line without its end is a write that was cut off: ignored.

    Raises:
        RecordError: a whole line is not one of a series.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Series(path, (), ())
    lines = text.split("\n")[:-1]
    found: list[Line] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(_LINE.validate_json(line))
        except ValidationError as error:
            raise RecordError(f"{path}:{number}: found no line of a series: {error.errors()[0]['msg']}") from None
    nights = tuple(line for line in found if isinstance(line, Night))
    return Series(path, nights, tuple(line for line in found if isinstance(line, Alarm)))


def append(path: Path, lines: Iterable[Line]) -> None:
    """Adds whole lines at the end, in one write."""
    data = b"".join(line.model_dump_json().encode() + b"\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        # What a write that was cut off has left of its line.
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def points_of(changes: Iterable[Changes]) -> tuple[Point, ...]:
    """One point per row with a valid round."""
    points = []
    for one in changes:
        if not one.quotients:
            continue
        logs = np.log(one.quotients)
        count = len(logs)
        error = float(logs.std(ddof=1)) / math.sqrt(count) if count > 1 else None
        points.append(Point(
            bench=one.bench, arm=one.arm, metric=one.metric,
            change=math.expm1(float(logs.mean())), error=error, rounds=count,
        ))  # fmt: skip
    return tuple(points)


def new_alarms(
    series: Series, *, threshold: float, watched: Callable[[RowSeries], bool] = lambda _row: True
) -> tuple[Alarm, ...]:
    """Changes for the worse that the last night makes certain and nobody was told of.

    Parameters:
        threshold: smallest change of the ratio that matters, as a share.
        watched: which rows to look at.

    Raises:
        MissingDependency: `ruptures` is not installed.
    """
    found = (_alarm(series, row, threshold) for row in rows_of(series.nights) if watched(row))
    return tuple(alarm for alarm in found if alarm is not None)


@dataclass(frozen=True, slots=True)
class RowSeries:
    """One row over the nights that have it."""

    bench: str
    arm: str
    metric: str
    nights: tuple[Night, ...]
    points: tuple[Point, ...]


def rows_of(nights: Sequence[Night]) -> tuple[RowSeries, ...]:
    """Every row of a series, in the order of first appearance."""
    found: dict[tuple[str, str, str], list[tuple[Night, Point]]] = {}
    for night in nights:
        for point in night.points:
            found.setdefault((point.bench, point.arm, point.metric), []).append((night, point))
    return tuple(
        RowSeries(*key, tuple(night for night, _ in pairs), tuple(point for _, point in pairs))
        for key, pairs in found.items()
    )


def change_points(points: Sequence[Point], first: int = 0) -> list[int]:
    """Positions at which a new level begins, each level at least two nights long; empty for a steady series.

    Parameters:
        first: the night to look from. How much nights differ by themselves is read from all of them.
    """
    if len(points) - first < 2 * RUN_OF_NIGHTS:
        return []
    try:
        import ruptures
    except ImportError:
        raise MissingDependency(
            "bench trend: found no ruptures, which finds change points; install omni-prefix-bench[trend]"
        ) from None
    signal = np.log1p([point.change for point in points[first:]]) / _scale(points)
    # PELT of the squared distance from a level's mean, in C: `Pelt(model="l2")` gives the same, eighty times slower.
    search = ruptures.KernelCPD(kernel="linear", min_size=RUN_OF_NIGHTS)
    ends = search.fit(signal[:, None]).predict(pen=_PENALTY)
    return [first + int(end) for end in ends[:-1]]


def higher_is_better(metric: str) -> bool:
    return metric.endswith("_throughput")


def _scale(points: Sequence[Point]) -> float:
    """How much one night differs from the next by itself, as a standard deviation of the logarithm.

    The larger of what the rounds of a night say and what neighbouring nights do: machines differ from night to night
    by more than rounds do within one. The median of those differences, because a step is in one of them only.
    """
    errors = [point.error for point in points if point.error]
    within = float(np.median(errors)) if errors else _LEAST_ERROR
    steps = np.abs(np.diff(np.log1p([point.change for point in points])))
    between = float(np.median(steps)) / (_NORMAL_MEDIAN * math.sqrt(2.0))
    return max(within, between, _LEAST_ERROR)


def _alarm(series: Series, row: RowSeries, threshold: float) -> Alarm | None:
    """What was told of is where the row begins: its level is the one to compare with, so nothing is told of twice."""
    told = {alarm.since for alarm in series.alarms if _is_of(alarm, row)}
    first = max((index for index, night in enumerate(row.nights) if night.run in told), default=0)
    starts = change_points(row.points, first)
    if not starts:
        return None
    sign = 1.0 if higher_is_better(row.metric) else -1.0
    logs = sign * np.log1p([point.change for point in row.points])
    before = max(_reached(logs[start:stop]) for start, stop in pairwise((first, *starts)))
    after = -_reached(-logs[starts[-1] :])
    bound = before - math.log1p(threshold)
    if after >= bound:
        return None
    # A level is at least two nights long, so it may begin with a good one.
    since = starts[-1] + int(np.argmax(logs[starts[-1] :] < bound))
    return Alarm(
        bench=row.bench,
        arm=row.arm,
        metric=row.metric,
        since=row.nights[since].run,
        seen=row.nights[-1].run,
        before=math.expm1(sign * before),
        after=math.expm1(sign * after),
    )


def _reached(level: NDArray[np.float64]) -> float:
    """The median of a level, but no more than two nights in a row reached: one night says nothing, good or bad."""
    return min(float(np.median(level)), float(np.minimum(level[:-1], level[1:]).max()))


def _is_of(alarm: Alarm, row: RowSeries) -> bool:
    return (alarm.bench, alarm.arm, alarm.metric) == (row.bench, row.arm, row.metric)
