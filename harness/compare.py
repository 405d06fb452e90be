"""Two runs beside each other: what differs between them, whether they may be compared, and by how much they changed.

What was changed on purpose, the code, is only listed; what must be the same, so that the code is the cause, blocks.
Pure functions of the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.accuracy.records import CheckSummary
from harness.accuracy.verdict import summaries_of
from harness.changed import changed
from harness.compare_scores import ScoreRow, score_rows, tools_of
from harness.errors import UsageError
from harness.gate import Changes, change_between, changes_of
from harness.noise import host_class
from harness.pairs import pair_up
from harness.recorded import scenario_of
from harness.records import CellRecord, Manifest, TrialRecord
from harness.scenario import Scenario
from harness.stats import LEVEL, REQUEST_THROUGHPUT, Interval, Metric
from harness.store import RunStore

# How often and how long is no other measurement; where code and weights lie says nothing of what they are.
_LISTED_KEYS = re.compile(
    r"rounds|until\b.*|description|profile\b.*|tokenizer|(server|arms\.[^.]+)\.(source|python|model_path)"
)
_BLOCKING_VERSIONS = ("python", "aiohttp")
"""Of this side's distributions: those that the load generator's own speed goes by."""
_OURS = "omni-prefix-bench"
_UNKNOWN = "unknown"
_LONGEST = 60
"""Characters of a setting that are shown."""
_THERE = "there"
_NAMED = ("benches", "checks", "arms")
"""Parts of a scenario that are told by name: what only one run has is absent in the other, not another value."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same in both runs. `blocks`: with it the runs' numbers mean different things."""

    what: str
    first: str
    second: str
    blocks: bool

    def __str__(self) -> str:
        return f"{self.what}: {' and '.join(side for side in (self.first, self.second) if side != _THERE)}"

    @property
    def absent(self) -> bool:
        """Whether one of the runs lacks it altogether."""
        return _THERE in (self.first, self.second)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run that lacks trials: how many were planned, and the folder names of those without a record."""

    run: str
    planned: int
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One run's value: a ratio minus one, or a mean; and how many rounds stand behind it."""

    value: float | None
    rounds: int


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One bench, arm and metric in both runs.

    Parameters:
        change: geometric mean of the second run over the first's, minus one.
        interval: Welch's, on logarithms; None under two rounds in either.
    """

    bench: str
    arm: str
    metric: str
    first: Side
    second: Side
    change: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs.

    Parameters:
        ratios: of the ratio between arm and baseline, in which whatever both arms of a run share cancels.
        absolute: of each arm's own request throughput, in which the machine's state on the day does not cancel.
        scores: of the accuracy checks, those that were not scored included.
        unfinished: those of the two that lack trials; all else here rests on the trials that have a record.
    """

    first: str
    second: str
    unfinished: tuple[Unfinished, ...]
    differences: tuple[Difference, ...]
    ratios: tuple[ChangeRow, ...]
    absolute: tuple[ChangeRow, ...]
    scores: tuple[ScoreRow, ...]

    @property
    def compared(self) -> bool:
        """Whether any row has a valid round, or any check a score, in both runs."""
        return any(row.change is not None for row in (*self.ratios, *self.absolute)) or any(
            None not in (row.first, row.second) for row in self.scores
        )


@dataclass(frozen=True, slots=True)
class _Run:
    name: str
    manifest: Manifest
    scenario: Scenario
    trials: tuple[TrialRecord, ...]
    cells: tuple[CellRecord, ...]
    checks: tuple[CheckSummary, ...]


def compare_runs(first: RunStore, second: RunStore, *, force: bool = False, level: float = LEVEL) -> RunComparison:
    """Compare a run with an earlier one.

    Parameters:
        force: compare what does not match all the same.

    Raises:
        UsageError: they do not match; the message lists what.
        RecordError: a record is missing or unreadable.
    """
    one, two = _read(first), _read(second)
    differences = tuple(_differences(one, two))
    blocking = [difference for difference in differences if difference.blocks]
    if blocking and not force:
        found = "1 difference" if len(blocking) == 1 else f"{len(blocking)} differences"
        shared = ", which compares what both have" if any(difference.absent for difference in blocking) else ""
        raise UsageError(
            f"{first.path} and {second.path}: found {found} in what must be the same; allowed: "
            f"runs that match, or --force{shared}\n  " + "\n  ".join(map(str, blocking))
        )
    return RunComparison(
        first=one.name,
        second=two.name,
        unfinished=tuple(lack for run in (one, two) if (lack := _unfinished(run)) is not None),
        differences=differences,
        ratios=tuple(_ratio_rows(one, two, level)),
        absolute=tuple(_absolute_rows(one, two, REQUEST_THROUGHPUT, level)),
        scores=tuple(score_rows(_checks(one, two), one.checks, two.checks)),
    )


def differences_between(first: RunStore, second: RunStore) -> tuple[Difference, ...]:
    """What is not the same in two runs; raises RecordError where a record is missing or unreadable."""
    return tuple(_differences(_read(first), _read(second)))


def _read(store: RunStore) -> _Run:
    manifest = store.manifest()
    return _Run(store.path.name, manifest, scenario_of(manifest), store.trials(), store.cells(), summaries_of(store))


def _unfinished(run: _Run) -> Unfinished | None:
    ended = {(trial.round, trial.arm) for trial in run.trials}
    missing = tuple(trial.slug for trial in run.manifest.plan if (trial.round, trial.arm) not in ended)
    return Unfinished(run.name, len(run.manifest.plan), missing) if missing else None


def _differences(one: _Run, two: _Run) -> Iterator[Difference]:
    first, second = (_by_name(run.scenario.resolved()) for run in (one, two))
    for part in _NAMED:
        # Taken out as they are told, so that what is left has the same names in both.
        for name in [each for each in first[part] if each not in second[part]]:
            del first[part][name]
            yield Difference(f"scenario {part}.{name}", _THERE, "not in the second run", True)
        for name in [each for each in second[part] if each not in first[part]]:
            del second[part][name]
            yield Difference(f"scenario {part}.{name}", "not in the first run", _THERE, True)
    for each in changed(first, second):
        blocks = _LISTED_KEYS.fullmatch(each.key) is None
        yield Difference(f"scenario {each.key}", _cut(each.before), _cut(each.after), blocks)
    facts = (_facts(one), _facts(two))
    for key in dict.fromkeys([*facts[0], *facts[1]]):
        values = [fact.get(key, (_UNKNOWN, False)) for fact in facts]
        (before, blocks), (after, also) = values
        if before != after:
            # What was not recorded is no proof of a difference.
            known = _UNKNOWN not in (before, after)
            yield Difference(key, before, after, (blocks or also) and known)


def _checks(*runs: _Run) -> Iterator[str]:
    return (check.name for run in runs for check in run.scenario.checks)


def _by_name(resolved: dict[str, Any]) -> dict[str, Any]:
    """A scenario whose lists of loads are mappings, so that one load more is one difference."""
    return {
        key: {one["name"]: one for one in value} if key in ("benches", "checks") else value
        for key, value in resolved.items()
    }


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _facts(run: _Run) -> dict[str, tuple[str, bool]]:
    """What a run was made with: text by name, and whether another text forbids a comparison."""
    manifest = run.manifest
    host = manifest.host
    facts: dict[str, tuple[str, bool]] = {
        "host class": (host_class(host), True),
        "host": (host.hostname, False),
        "kernel": (host.kernel, False),
        "scheduling by session": (_or_unknown(host.autogroup), False),
        "sha256 of the tokenizer": (_or_unknown(manifest.tokenizer_sha256), True),
    }
    for name, version in manifest.versions.items():
        facts[f"version of {name}"] = (version, name in _BLOCKING_VERSIONS)
    for tree in manifest.sources:
        facts[f"commit of {tree.name}"] = (tree.state, False)
    facts |= {name: (label, True) for name, label in tools_of(run.checks).items()}
    for arm in run.scenario.arms:
        trial = next((trial for trial in run.trials if trial.arm == arm), None)
        if trial is not None:
            facts |= {f"arm {arm}: {key}": value for key, value in _trial_facts(trial).items()}
    return facts


def _trial_facts(trial: TrialRecord) -> dict[str, tuple[str, bool]]:
    facts: dict[str, tuple[str, bool]] = {"resolved configuration": (trial.resolved_sha256[:12], False)}
    for name, version in trial.versions.items():
        facts[f"version of {name}"] = (version, name != _OURS)
    for tree in trial.sources:
        if tree.name != _OURS:  # the manifest's
            facts[f"commit of {tree.name}"] = (tree.state, False)
    for label, text in trial.cache_config.items():
        facts[f"server's {label}"] = (text, False)
    if trial.model is not None:
        facts["model revision"] = (_or_unknown(trial.model.revision), True)
        facts["sha256 of config.json"] = (_or_unknown(trial.model.config_sha256), True)
        facts["sha256 of the weights' index and sizes"] = (_or_unknown(trial.model.weights_sha256), True)
    if trial.host is not None and trial.host.container is not None:
        facts["processors allowed"] = (str(trial.host.container.cpus), True)
        facts["memory allowed"] = (str(trial.host.container.memory_bytes), True)
    for index, gpu in enumerate(trial.gpus or ()):
        facts[f"GPU {index}"] = (gpu.name, True)
        facts[f"power cap of GPU {index}"] = (_or_unknown(gpu.power_limit), True)
        facts[f"highest SM clock of GPU {index}"] = (_or_unknown(gpu.sm_clock_max), True)
    return facts


def _or_unknown(value: object) -> str:
    return _UNKNOWN if value is None else str(value)


def _ratio_rows(one: _Run, two: _Run, level: float) -> Iterator[ChangeRow]:
    before, after = ({(c.bench, c.arm, c.metric): c for c in _changes(run)} for run in (one, two))
    for key in dict.fromkeys([*before, *after]):
        sides = [found.quotients if (found := changes.get(key)) else () for changes in (before, after)]
        yield _row(key, sides[0], sides[1], [_mean(side, of_ratios=True) for side in sides], level)


def _changes(run: _Run) -> Iterable[Changes]:
    pairs = pair_up(run.scenario, run.manifest.plan, run.trials, run.cells)
    return changes_of(pairs, run.trials, run.scenario.baseline)


def _absolute_rows(one: _Run, two: _Run, metric: Metric, level: float) -> Iterator[ChangeRow]:
    before, after = (_values(run, metric) for run in (one, two))
    for key in dict.fromkeys([*before, *after]):
        sides = [values.get(key, ()) for values in (before, after)]
        yield _row((*key, metric.key), sides[0], sides[1], [_mean(side) for side in sides], level)


def _values(run: _Run, metric: Metric) -> Mapping[tuple[str, str], tuple[float, ...]]:
    """The metric by bench and arm, of every reported cell that counts."""
    whole = {(trial.round, trial.arm) for trial in run.trials if trial.status == "finished"}
    found: dict[tuple[str, str], tuple[float, ...]] = {}
    for cell in run.cells:
        info = cell.cell
        if info.reported and not info.invalid and (info.round, info.arm) in whole:
            found[info.bench, info.arm] = (*found.get((info.bench, info.arm), ()), metric.of(cell))
    return found


def _mean(values: tuple[float, ...], *, of_ratios: bool = False) -> float | None:
    if not values:
        return None
    return change_between(values, None, LEVEL)[0] if of_ratios else sum(values) / len(values)


def _row(
    key: tuple[str, str, str],
    before: tuple[float, ...],
    after: tuple[float, ...],
    shown: list[float | None],
    level: float,
) -> ChangeRow:
    change, interval = change_between(after, before, level) if before and after else (None, None)
    first, second = (Side(value, len(side)) for value, side in zip(shown, (before, after), strict=True))
    return ChangeRow(*key, first, second, change, interval)
