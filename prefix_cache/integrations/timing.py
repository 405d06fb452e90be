"""What a cache costs the engine, call by call, in place: `python -m prefix_cache.integrations.timing FOLDER...`

A server started with `PREFIX_CACHE_TIMING=FOLDER` writes one file of JSON lines per worker there. The command prints
the medians per kind of step of each folder, and for two folders how many times the first costs the second. The
instrument is the same for every cache.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

_IDLE = 0.5  # seconds without a call after which writing disturbs nobody
_MOST = 100_000  # calls kept in memory before they are written whatever happens


@dataclass(frozen=True, slots=True)
class Shape:
    """What one step computes: tokens of how many requests, of which how many are new, of which how many hit."""

    tokens: int
    requests: int
    new: int
    hits: int


@dataclass(slots=True)
class Call:
    """One call of a cache.

    Parameters:
        op: begin, save, materialize or discard.
        step: the id its save was given; None of a step without one.
        wall_us, cpu_us: microseconds on the clock, and of processor time of the calling thread.
    """

    op: str
    step: int | None
    tokens: int
    requests: int
    new: int
    hits: int
    thread: str = ""
    wall_us: float = 0.0
    cpu_us: float = 0.0


class Recorder:
    """Keeps calls in memory and writes them to a file of this process while nothing is called, and at the end."""

    def __init__(self, folder: Path, stage: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"stage{stage}-{os.getpid()}.jsonl"
        self._calls: list[Call] = []
        self._shapes: dict[int, Shape] = {}
        self._begun: Call | None = None
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._writer = threading.Thread(target=self._write_when_idle, name="prefix-cache-timing", daemon=True)
        self._writer.start()
        atexit.register(self.close)

    @contextmanager
    def begin(self, shape: Shape) -> Iterator[Call]:
        """Times the call that registers a step."""
        self._begun = Call("begin", None, **asdict(shape))
        with self._timed(self._begun):
            yield self._begun

    @contextmanager
    def save(self) -> Iterator[Call]:
        """Times the call that saves the step begun last; whoever makes it sets `step`."""
        begun = self._begun
        shape = Shape(0, 0, 0, 0) if begun is None else Shape(begun.tokens, begun.requests, begun.new, begun.hits)
        call = Call("save", None, **asdict(shape))
        with self._timed(call):
            yield call
        if call.step is not None:
            self._shapes[call.step] = shape
            if begun is not None:
                begun.step = call.step

    @contextmanager
    def consume(self, op: str, step: int) -> Iterator[Call]:
        """Times a step's consumption, on whatever thread."""
        call = Call(op, step, **asdict(self._shapes.pop(step, Shape(0, 0, 0, 0))))
        with self._timed(call):
            yield call

    @contextmanager
    def _timed(self, call: Call) -> Iterator[None]:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        yield
        call.wall_us = (time.perf_counter_ns() - wall) / 1e3
        call.cpu_us = (time.thread_time_ns() - cpu) / 1e3
        call.thread = threading.current_thread().name
        self._last = time.monotonic()
        self._calls.append(call)

    def close(self) -> None:
        """Writes what is left. Idempotent."""
        self._ended.set()
        if self._writer is not threading.current_thread():
            self._writer.join(10)
        self._write(len(self._calls))
        atexit.unregister(self.close)

    def _write_when_idle(self) -> None:
        while not self._ended.wait(_IDLE / 2):
            known = len(self._calls)
            if known > _MOST or (known and time.monotonic() - self._last > _IDLE):
                self._write(known)

    def _write(self, count: int) -> None:
        with self._writing:
            calls, self._calls[:count] = self._calls[:count], []
            if calls:
                with self.path.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(asdict(call)) + "\n" for call in calls)


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one saved and consumed step cost its callers, in microseconds, by call."""

    shape: Shape
    wall_us: Mapping[str, float]
    cpu_us: Mapping[str, float]

    @property
    def kind(self) -> str:
        """`hit`: a request hits; `prefill`: some request computes more than one token or is new; else `decode N`."""
        if self.shape.hits:
            return "hit"
        if self.shape.new or self.shape.tokens > self.shape.requests:
            return "prefill"
        return f"decode {self.shape.requests}"


def read_steps(folder: Path) -> list[StepCost]:
    """Every step in a folder's files that was begun, saved and consumed.

    Raises:
        FileNotFoundError: the folder holds no timings.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise FileNotFoundError(f"no timings in {folder}: was a server started with PREFIX_CACHE_TIMING={folder}?")
    return [step for file in files for step in _join(_read_calls(file))]


def _read_calls(file: Path) -> Iterator[Call]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            yield Call(**json.loads(line))


def _join(calls: Iterable[Call]) -> Iterator[StepCost]:
    by_step: defaultdict[int, dict[str, Call]] = defaultdict(dict)
    for call in calls:
        if call.step is not None:
            by_step[call.step]["consume" if call.op in ("materialize", "discard") else call.op] = call
    for parts in by_step.values():
        if parts.keys() == {"begin", "save", "consume"}:
            begun = parts["begin"]
            yield StepCost(
                Shape(begun.tokens, begun.requests, begun.new, begun.hits),
                {op: call.wall_us for op, call in parts.items()},
                {op: call.cpu_us for op, call in parts.items()},
            )


@dataclass(frozen=True, slots=True)
class Medians:
    """Of the steps of one kind: medians of each call, and of a whole step (which is not their sum)."""

    steps: int
    wall_us: Mapping[str, float]
    cpu_us: Mapping[str, float]


def medians(steps: Sequence[StepCost]) -> dict[str, Medians]:
    """By kind of step, in the order of `hit`, `prefill`, and the decodes by their requests."""
    kinds: defaultdict[str, list[StepCost]] = defaultdict(list)
    for step in steps:
        kinds[step.kind].append(step)
    return {kind: _medians(kinds[kind]) for kind in sorted(kinds, key=_order)}


def _order(kind: str) -> tuple[bool, int, str]:
    name, _, requests = kind.partition(" ")
    return name == "decode", int(requests or 0), name


def _medians(steps: Sequence[StepCost]) -> Medians:
    def of(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
        parts = {op: median(cost[op] for cost in costs) for op in ("begin", "save", "consume")}
        return {**parts, "step": median(sum(cost.values()) for cost in costs)}

    return Medians(len(steps), of([step.wall_us for step in steps]), of([step.cpu_us for step in steps]))


def table(folders: Mapping[str, Mapping[str, Medians]]) -> str:
    """Medians in microseconds, wall / thread CPU, one line per kind and folder; of two folders also the ratio."""
    width = max(map(len, [*folders, "ratio"]))
    lines = [f"{'kind':<12} {'':<{width}} {'steps':>6} {'begin':>16} {'save':>16} {'consume':>16} {'step':>18}"]
    kinds = dict.fromkeys(kind for each in folders.values() for kind in each)
    for kind in sorted(kinds, key=_order):
        found = {name: each[kind] for name, each in folders.items() if kind in each}
        for name, value in found.items():
            cells = [f"{value.wall_us[op]:.0f} / {value.cpu_us[op]:.0f}" for op in ("begin", "save", "consume", "step")]
            widths = (16, 16, 16, 18)
            row = " ".join(f"{cell:>{room}}" for cell, room in zip(cells, widths, strict=True))
            lines.append(f"{kind:<12} {name:<{width}} {value.steps:>6} {row}")
        if len(found) == len(folders) == 2:
            one, other = found.values()
            wall, cpu = one.wall_us["step"] / other.wall_us["step"], one.cpu_us["step"] / other.cpu_us["step"]
            lines.append(f"{kind:<12} {'ratio':<{width}} {'':>6} {'':>50} {f'{wall:.1f}x / {cpu:.1f}x':>18}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m prefix_cache.integrations.timing", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="values of PREFIX_CACHE_TIMING")
    options = parser.parse_args(arguments)
    try:
        found = {str(folder): medians(read_steps(folder)) for folder in options.folders}
    except (OSError, ValueError) as error:
        print(f"timing: {error}", file=sys.stderr)
        return 2
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
