"""What a report says, as frozen data built from the records of a run. Pure: no clock, no server, no GPU.

`build_report` reads a run once; every renderer (markdown, terminal, figures) takes the `Report` and computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.extend import until_met
from harness.noise import Floors, floors_by_row
from harness.pairs import Pair, pair_up
from harness.parity import Parity, over_rounds, parity
from harness.recorded import scenario_of
from harness.records import CellRecord, Manifest, NoiseRecord, PlannedTrial, TrialRecord
from harness.report import notes
from harness.report.accuracy import AccuracyCheck, accuracy_of
from harness.report.cache_work import CacheWorkRow, cache_work_of
from harness.report.measures import (
    Gain,
    Hit,
    MemoryRow,
    StartRow,
    WorstLag,
    gain_of,
    hit_of,
    lag_of,
    memory_of,
    start_of,
)
from harness.report.notes import Note
from harness.report.pooled import PooledRow, pooled_of
from harness.report.rounds import RoundsRow, rounds_of
from harness.report.uncertainty import UncertaintyRow, floor_of, uncertainty_of
from harness.scenario import Bench, Scenario
from harness.stats import (
    AUDIO_THROUGHPUT,
    MEDIAN_E2EL,
    MEDIAN_RTF,
    MEDIAN_TPOT,
    MEDIAN_TTFP,
    MEDIAN_TTFT,
    OUTPUT_THROUGHPUT,
    REQUEST_THROUGHPUT,
    Comparison,
    Interval,
    Metric,
    compare,
    same_band,
)
from harness.store import RunStore

TEXT_METRICS = (OUTPUT_THROUGHPUT, MEDIAN_TTFT, MEDIAN_TPOT, MEDIAN_E2EL)
AUDIO_METRICS = (AUDIO_THROUGHPUT, MEDIAN_TTFP, MEDIAN_RTF)
GRAVE = ("failed trial", "dropped pair", "invalid cell")
"""Kinds of notes that make a run invalid."""
P99_SAMPLES = 100
"""Requests a cell needs before its 99th percentile is printed."""


@dataclass(frozen=True, slots=True)
class MainRow:
    """One line of the main table: request throughput of one arm on one bench, and audio TTFP where it speaks."""

    bench: Bench
    arm: str
    hit: Hit
    throughput: Comparison
    ttfp: Comparison | None


@dataclass(frozen=True, slots=True)
class AloneRow:
    """One line of the table of a run with one arm: mean request throughput (1/s) of the valid cells of a bench."""

    bench: str
    hit: Hit
    request_throughput: float | None
    rounds: int


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one bench and arm by round, valid cells only. `comparison` is None for the baseline."""

    metric: Metric
    by_round: tuple[tuple[int, float], ...]
    comparison: Comparison | None

    @property
    def mean(self) -> float | None:
        if not self.by_round:
            return None
        return math.fsum(value for _, value in self.by_round) / len(self.by_round)


@dataclass(frozen=True, slots=True)
class PerformanceRow:
    """Normalised throughput and latency of one bench and arm. `p99_e2el` (ms) is None while withheld."""

    bench: str
    arm: str
    requests: int
    """Fewest completed requests of a valid cell."""
    rounds: int
    series: tuple[Series, ...]
    p99_e2el: float | None


@dataclass(frozen=True, slots=True)
class ParityRow:
    """Answers of one arm and those of the baseline. A control compares the baseline with itself."""

    bench: str
    left: str
    right: str
    rounds: str
    """`1 and 2`, `1`, `all rounds (4)`."""
    control: bool
    parity: Parity


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report. Rows are in scenario order."""

    manifest: Manifest
    scenario: Scenario
    scenario_file_sha256: str
    """Of the bytes of the run's scenario.yaml; the manifest's hash is of what was resolved from it."""
    trials: tuple[TrialRecord, ...]
    missing: tuple[PlannedTrial, ...]
    main: tuple[MainRow, ...]
    alone: tuple[AloneRow, ...]
    """The baseline's own numbers where it is the only arm, else empty."""
    baseline_hits: tuple[Hit, ...]
    rounds: tuple[RoundsRow, ...]
    performance: tuple[PerformanceRow, ...]
    cache_work: tuple[CacheWorkRow, ...]
    parity: tuple[ParityRow, ...]
    uncertainty: tuple[UncertaintyRow, ...]
    pooled: tuple[PooledRow, ...]
    noise: NoiseRecord | None
    """The noise floors that held for this run."""
    until_met: bool | None
    """Whether every interval is as narrow as the scenario's `until` asks; None without that rule."""
    memory: tuple[MemoryRow, ...]
    gains: tuple[Gain, ...]
    starts: tuple[StartRow, ...]
    client_lag: WorstLag | None
    notes: tuple[Note, ...]
    accuracy: tuple[AccuracyCheck, ...] = ()

    @property
    def baseline(self) -> str:
        return self.scenario.baseline

    @property
    def valid(self) -> bool:
        """Whether every trial ended well, and every reported cell and every pair of them counts."""
        return not self.missing and not any(note.kind in GRAVE for note in self.notes)

    @property
    def others(self) -> tuple[str, ...]:
        """The arms compared with the baseline."""
        return tuple(arm for arm in self.scenario.arms if arm != self.baseline)

    @property
    def band(self) -> Interval:
        """The ratios called `same`."""
        return same_band(self.scenario.validity.practical_threshold)


def build_report(store: RunStore) -> Report:
    """Read a run and compute everything its report says.

    Raises `RecordError` where a record is missing, unreadable or of another schema. A run with trials still
    missing gives a report that says so.
    """
    manifest, trials, cells = store.manifest(), store.trials(), store.cells()
    scenario, noise = scenario_of(manifest), store.noise()
    floors = floors_by_row(noise)
    pairs = pair_up(scenario, manifest.plan, trials, cells)
    ended = {(trial.round, trial.arm) for trial in trials}
    missing = tuple(trial for trial in manifest.plan if (trial.round, trial.arm) not in ended)
    benches = [bench for bench in scenario.benches if bench.reported]
    arms = [arm for arm in scenario.arms if arm != scenario.baseline]
    # Without another arm there are no pairs: each cell stands for itself.
    standing = () if arms else _standing(trials, cells)
    main = tuple(
        _main_row(bench, arm, pairs, cells, scenario, floors)
        for bench in benches
        for arm in arms
        if _of(pairs, bench, arm)
    )
    throughput = [row.throughput for row in main]
    return Report(
        manifest=manifest,
        scenario=scenario,
        scenario_file_sha256=store.scenario_file_sha256(),
        trials=trials,
        missing=missing,
        main=main,
        alone=() if arms else tuple(_alone_row(bench, scenario.baseline, trials, cells) for bench in benches),
        baseline_hits=tuple(hit_of(cells, bench.name, scenario.baseline) for bench in benches),
        rounds=rounds_of(pairs, REQUEST_THROUGHPUT),
        performance=tuple(row for bench in benches for row in _performance(bench, pairs, scenario, standing)),
        cache_work=tuple(
            row
            for bench in benches
            for arm in scenario.arms
            if (row := cache_work_of(bench.name, arm, _valid_cells(bench, arm, pairs, standing))) is not None
        ),
        parity=tuple(row for bench in benches for row in _parity_rows(store, bench, pairs, manifest.plan, cells)),
        uncertainty=uncertainty_of(throughput, floors, scenario.validity.practical_threshold),
        pooled=tuple(
            row
            for bench in benches
            for arm in scenario.arms
            for row in _pooled(store, bench, arm, _valid_cells(bench, arm, pairs, standing), manifest.plan)
        ),
        noise=noise,
        until_met=until_met(scenario, throughput),
        memory=tuple(row for arm in scenario.arms for row in memory_of(arm, scenario.baseline, trials)),
        gains=tuple(gain for arm in arms if (gain := gain_of(arm, throughput)) is not None),
        starts=tuple(start_of(arm, trials) for arm in scenario.arms if any(trial.arm == arm for trial in trials)),
        client_lag=lag_of(manifest, cells),
        notes=notes.collect(
            manifest,
            trials,
            cells,
            [one for row in main for one in (row.throughput, row.ttfp) if one is not None],
            scenario.rounds,
            [trial for trial in missing if (store.trial_dir(trial) / "server.log").is_file()],
        ),
        accuracy=accuracy_of(store, scenario, cells),
    )


def _of(pairs: Iterable[Pair], bench: Bench, arm: str) -> tuple[Pair, ...]:
    return tuple(pair for pair in pairs if pair.bench == bench.name and pair.arm == arm)


def _pooled(
    store: RunStore, bench: Bench, arm: str, cells: Sequence[CellRecord], plan: Iterable[PlannedTrial]
) -> tuple[PooledRow, ...]:
    trials = {(trial.round, trial.arm): trial for trial in plan}
    return pooled_of(bench.name, arm, [store.requests(trials[cell.cell.round, arm], bench.name) for cell in cells])


def _main_row(
    bench: Bench,
    arm: str,
    pairs: tuple[Pair, ...],
    cells: Iterable[CellRecord],
    scenario: Scenario,
    floors: Floors,
) -> MainRow:
    mine, threshold = _of(pairs, bench, arm), scenario.validity.practical_threshold
    floor, ttfp = (floor_of(floors, bench.name, metric) for metric in (REQUEST_THROUGHPUT, MEDIAN_TTFP))
    return MainRow(
        bench=bench,
        arm=arm,
        hit=hit_of(cells, bench.name, arm),
        throughput=compare(mine, REQUEST_THROUGHPUT, threshold=threshold, floor=floor),
        ttfp=compare(mine, MEDIAN_TTFP, threshold=threshold, floor=ttfp) if "audio" in bench.modalities else None,
    )


def _standing(trials: Iterable[TrialRecord], cells: Iterable[CellRecord]) -> tuple[CellRecord, ...]:
    finished = {(trial.round, trial.arm) for trial in trials if trial.status == "finished"}
    return tuple(cell for cell in cells if not cell.cell.invalid and (cell.cell.round, cell.cell.arm) in finished)


def _alone_row(bench: Bench, arm: str, trials: Iterable[TrialRecord], cells: Sequence[CellRecord]) -> AloneRow:
    values = [cell.request_throughput for cell in _standing(trials, cells) if cell.cell.bench == bench.name]
    return AloneRow(
        bench=bench.name,
        hit=hit_of(cells, bench.name, arm),
        request_throughput=math.fsum(values) / len(values) if values else None,
        rounds=len(values),
    )


def _metrics(bench: Bench) -> tuple[Metric, ...]:
    # The speech endpoint sends no text and counts no tokens.
    text = (MEDIAN_E2EL,) if bench.endpoint == "speech" else TEXT_METRICS
    metrics = text + (AUDIO_METRICS if "audio" in bench.modalities else ())
    # One output token has no time per further token.
    return tuple(metric for metric in metrics if metric is not MEDIAN_TPOT or bench.output > 1)


def _performance(
    bench: Bench, pairs: tuple[Pair, ...], scenario: Scenario, standing: Iterable[CellRecord]
) -> Iterable[PerformanceRow]:
    threshold = scenario.validity.practical_threshold
    for arm in scenario.arms:
        baseline = arm == scenario.baseline
        cells = _valid_cells(bench, arm, pairs, standing)
        if not cells:
            continue
        yield PerformanceRow(
            bench=bench.name,
            arm=arm,
            requests=min(cell.completed for cell in cells),
            rounds=len(cells),
            series=tuple(
                Series(
                    metric=metric,
                    by_round=tuple(
                        (cell.cell.round, value) for cell in cells if (value := getattr(cell, metric.key)) is not None
                    ),
                    comparison=None if baseline else compare(_of(pairs, bench, arm), metric, threshold=threshold),
                )
                for metric in _metrics(bench)
            ),
            p99_e2el=_p99(cells),
        )


def _valid_cells(bench: Bench, arm: str, pairs: Iterable[Pair], standing: Iterable[CellRecord]) -> list[CellRecord]:
    """Cells of one arm, the baseline or another, that stand in a valid pair or alone; one a round, in order."""
    if alone := [cell for cell in standing if (cell.cell.arm, cell.cell.bench) == (arm, bench.name)]:
        return sorted(alone, key=lambda cell: cell.cell.round)
    valid = [pair for pair in pairs if pair.bench == bench.name and pair.valid]
    found = {
        pair.round: pair.base if arm == pair.baseline else pair.other
        for pair in valid
        if arm in (pair.baseline, pair.arm)
    }
    return [cell for cell in found.values() if cell is not None]


def _p99(cells: Sequence[CellRecord]) -> float | None:
    values = [cell.p99_e2el_ms for cell in cells if cell.completed >= P99_SAMPLES and cell.p99_e2el_ms is not None]
    return math.fsum(values) / len(values) if len(values) == len(cells) else None


def _parity_rows(
    store: RunStore,
    bench: Bench,
    pairs: tuple[Pair, ...],
    plan: tuple[PlannedTrial, ...],
    cells: tuple[CellRecord, ...],
) -> Iterable[ParityRow]:
    by_side = {(trial.round, trial.arm): trial for trial in plan}
    mine = [pair for pair in pairs if pair.bench == bench.name]
    if not mine:
        return
    baseline = mine[0].baseline
    measured = sorted(cell.cell.round for cell in cells if cell.cell.arm == baseline and cell.cell.bench == bench.name)
    if len(measured) > 1:
        one, two = measured[:2]
        yield ParityRow(
            bench=bench.name,
            left=baseline,
            right=baseline,
            rounds=f"{one} and {two}",
            control=True,
            parity=parity(
                store.requests(by_side[one, baseline], bench.name),
                store.requests(by_side[two, baseline], bench.name),
            ),
        )
    for arm in dict.fromkeys(pair.arm for pair in mine):
        # Pairs that do not count are compared too: an answer that changed is most telling there.
        both = [pair for pair in _of(mine, bench, arm) if pair.base is not None and pair.other is not None]
        found = [
            parity(
                store.requests(by_side[pair.round, baseline], bench.name),
                store.requests(by_side[pair.round, arm], bench.name),
            )
            for pair in both
        ]
        if found:
            yield ParityRow(bench.name, baseline, arm, str(both[0].round), False, found[0])
        if len(found) > 1:
            yield ParityRow(bench.name, baseline, arm, f"all rounds ({len(found)})", False, over_rounds(found))
