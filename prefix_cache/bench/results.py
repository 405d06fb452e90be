"""Statistics of what was measured. Ratios are taken repeat by repeat, between batches that ran one after the other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .cases import Case, Mode, Sizes
from .pipe import Side
from .samples import FirstSaves, FirstTimes, Resident, Sample

Later = Literal["fresh blocks", "used blocks", "decoding"]
LATER: tuple[Later, ...] = ("fresh blocks", "used blocks", "decoding")


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median, least and greatest of one ratio per repeat."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float]) -> Ratio:
        values = [a / b for a, b in zip(above, below, strict=True)]
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Summary:
    """A case on one side, in microseconds.

    Parameters:
        begin: median of the call over all steps; likewise `save` and `consume`.
        median: of the timed calls of a step together, wall time on the engine's thread, over all steps.
        mean: of a batch, what is only done every few steps (flushes) included; median of the repeats.
        p90: over all steps.
        thread: CPU time of the engine's thread per step, mean of a batch, median of the repeats.
        process: CPU time of the whole process per step, likewise.
        copy: median of a plain copy of the same bytes.
        gather: median of one gather of a hit.
    """

    begin: float | None
    save: float | None
    consume: float | None
    median: float
    mean: float
    p90: float
    thread: float
    process: float
    copy: float | None
    gather: float | None


def median_wall(sample: Sample) -> float:
    return statistics.median(sample.wall)


def mean_wall(sample: Sample) -> float:
    return statistics.fmean(sample.wall)


def mean_thread(sample: Sample) -> float:
    return statistics.fmean(sample.thread)


def process(sample: Sample) -> float:
    return sample.process


def median_copy(sample: Sample) -> float:
    return statistics.median(sample.copy)


def median_gather(sample: Sample) -> float:
    return statistics.median(sample.gather)


def summarise(samples: Sequence[Sample]) -> Summary:
    def pooled(values: Callable[[Sample], Sequence[float]]) -> float | None:
        together = [value for sample in samples for value in values(sample)]
        return statistics.median(together) / 1e3 if together else None

    def repeats(figure: Callable[[Sample], float]) -> float:
        return statistics.median(figure(sample) for sample in samples) / 1e3

    walls = sorted(wall for sample in samples for wall in sample.wall)
    return Summary(
        begin=pooled(lambda sample: sample.begin),
        save=pooled(lambda sample: sample.save),
        consume=pooled(lambda sample: sample.consume),
        median=statistics.median(walls) / 1e3,
        mean=repeats(mean_wall),
        p90=walls[min(len(walls) - 1, len(walls) * 9 // 10)] / 1e3,
        thread=repeats(mean_thread),
        process=repeats(process),
        copy=pooled(lambda sample: sample.copy),
        gather=pooled(lambda sample: sample.gather),
    )


def first_and_later(save: FirstSaves, later: Later) -> tuple[list[int], list[int]]:
    """The first save, and those it is compared with."""
    match later:
        case "fresh blocks":
            return save.arrival, save.arrival_fresh
        case "used blocks":
            return save.arrival, save.arrival_steady
        case "decoding":
            return save.decode, save.decode_steady


@dataclass(slots=True)
class Results:
    """Everything one run measured.

    Parameters:
        about: what ran where: versions, machine, load.
        samples: by case and mode, the batches of each side, in the order they ran.
        firsts: likewise, fresh caches.
        residents: by mode and side.
    """

    sizes: Sizes
    repeats: int
    forward_seconds: float
    about: dict[str, str] = field(default_factory=dict)
    cases: dict[str, Case] = field(default_factory=dict)
    samples: dict[tuple[str, Mode], dict[Side, list[Sample]]] = field(default_factory=dict)
    firsts: dict[tuple[str, Mode], dict[Side, list[FirstTimes]]] = field(default_factory=dict)
    residents: dict[Mode, dict[Side, Resident]] = field(default_factory=dict)

    def against_peer(self, case: str, mode: Mode, figure: Callable[[Sample], float]) -> Ratio | None:
        """Peer over ours: how many times less ours takes. None where one of the two was not measured."""
        sides: Mapping[Side, list[Sample]] = self.samples.get((case, mode), {})
        if "ours" not in sides or "peer" not in sides:
            return None
        return Ratio.of([figure(sample) for sample in sides["peer"]], [figure(sample) for sample in sides["ours"]])

    def of_copy(self, case: str, mode: Mode, figure: Callable[[Sample], float]) -> Ratio | None:
        """Ours over a plain copy of the same bytes in the same batches."""
        samples = self.samples.get((case, mode), {}).get("ours")
        if samples is None:
            return None
        return Ratio.of([figure(sample) for sample in samples], [median_copy(sample) for sample in samples])

    def first_over_later(
        self, case: str, mode: Mode, side: Side, later: Later, *, thread: bool = False
    ) -> Ratio | None:
        """A fresh cache's first save over its later ones of that kind, median: wall time, or the thread's CPU time."""
        saves = self.firsts.get((case, mode), {}).get(side)
        if saves is None:
            return None
        pairs = [first_and_later(save.thread if thread else save.wall, later) for save in saves]
        if not all(first for first, _ in pairs):
            return None
        return Ratio.of([first[0] for first, _ in pairs], [statistics.median(others) for _, others in pairs])

    def to_json(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "sizes": asdict(self.sizes),
            "repeats": self.repeats,
            "forward_seconds": self.forward_seconds,
            "cases": [
                {
                    "case": self.cases[name].to_json(),
                    "mode": mode,
                    "sides": {
                        side: {
                            "summary_us": asdict(summarise(samples)),
                            "batches_ns": [sample.to_json() for sample in samples],
                        }
                        for side, samples in sides.items()
                    },
                }
                for (name, mode), sides in self.samples.items()
            ],
            "first_saves_ns": [
                {
                    "case": name,
                    "mode": mode,
                    "sides": {side: [s.to_json() for s in saves] for side, saves in sides.items()},
                }
                for (name, mode), sides in self.firsts.items()
            ],
            "resident_bytes": {
                mode: {side: resident.to_json() for side, resident in sides.items()}
                for mode, sides in self.residents.items()
            },
        }
