"""The scope: where the prefix cache is on by default, the evidence, and what runs here say of it.

`scenarios/scope.yaml` holds the table as data. `scope_report` joins it with the published tables and with the runs in
a results directory; what was published and what was measured here stay apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from harness._scenario_errors import describe, first_error
from harness._scenario_load import load_scenario
from harness._scenario_types import Frozen, refusal
from harness._scenario_yaml import read_document
from harness.errors import UsageError
from harness.published import PublishedRow, read_published
from harness.records import SourceTree
from harness.report.model import MainRow, Report, build_report
from harness.store import RunStore

Basis = Literal["measured", "review", "none"]
Text = Annotated[str, Field(min_length=1)]


class ScopeRow(Frozen):
    """One claim: a model's profiles, whether they turn the cache of a stage on, and why."""

    model: Text
    profiles: Annotated[list[Text], Field(min_length=1)]
    stage: Text
    default: bool
    basis: Basis
    """Somebody measured it, somebody read the code, or neither."""
    evidence: Text
    scenario: Text | None = None
    """The scenario that examines it, by its file beside the scope's."""
    published: Text | None = None
    """Its published table, by its file in `published/` of the results."""


class ScopeFile(Frozen):
    """A scope file."""

    schema_version: Literal[1] = Field(alias="schema")
    source: Text
    rows: Annotated[list[ScopeRow], Field(min_length=1)]

    @field_validator("schema_version", mode="before")
    @classmethod
    def _check_schema(cls, value: object) -> object:
        # A literal takes what equals it: true and 1.0 too.
        if type(value) is not int:
            raise refusal(describe(value), "1")
        return value


@dataclass(frozen=True, slots=True)
class Figure:
    """What a run measured on one bench and arm against its baseline. Ratios are quotients minus one.

    Parameters:
        hit: lowest and highest hit rate of stage 0 over the rounds; None where nothing was counted.
        ideal: that of an unbounded cache; None where it is not known.
        baseline: mean request throughput of the baseline, 1/s; None, like the ratios, where no round counts.
        ttfp: ratio of the median time to the first audio; None for a bench that does not speak.
    """

    bench: str
    arm: str
    hit: tuple[float, float] | None
    ideal: float | None
    baseline: float | None
    ratio: float | None
    range: tuple[float, float] | None
    ttfp: float | None
    rounds: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a scenario.

    Parameters:
        date: when it was started, ISO 8601 in UTC.
        sources: revisions of the bench and of servers that ran from a checkout.
        versions: of what the servers ran on, by distribution.
        valid: every trial ended well and every reported cell counts.
    """

    run: str
    scenario: str
    date: str
    sources: tuple[str, ...]
    versions: Mapping[str, str]
    valid: bool
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class ScopeEntry:
    """One row with what there is on it."""

    row: ScopeRow
    published: tuple[PublishedRow, ...]
    runs: tuple[Measured, ...]


@dataclass(frozen=True, slots=True)
class ScopeReport:
    """The whole scope."""

    source: str
    entries: tuple[ScopeEntry, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data; ratios and hit rates are shares, an absent number is null."""
        return {
            "source": self.source,
            "rows": [
                {
                    **entry.row.model_dump(),
                    "published_not_measured_here": [asdict(row) for row in entry.published],
                    "runs": [asdict(run) for run in entry.runs],
                }
                for entry in self.entries
            ],
        }


def load_scope(path: Path) -> ScopeFile:
    """Read and validate a scope file.

    Raises:
        ScenarioError: the one thing to correct first.
    """
    document = read_document(path)
    try:
        return ScopeFile.model_validate(document.data)
    except ValidationError as error:
        raise first_error(
            error, ScopeFile, document.data, document.error, lambda loc: document.line(loc) or 0
        ) from None


def scope_report(path: Path, results: Path) -> ScopeReport:
    """Join a scope file with the results in a directory.

    Parameters:
        path: the scope file; scenarios are looked for beside it.
        results: holds `published/` and runs, directly or in `examples/`.

    Raises:
        BenchError: a scope file, scenario, table or record that cannot be read; the message names it.
    """
    scope = load_scope(path)
    if not results.is_dir():
        # Not an absence of runs: a claim whose evidence nobody looked at would read like one without any.
        raise UsageError(f"{results}: found no such folder; allowed: one with runs and published tables (--results)")
    names = {row.scenario: load_scenario(path.parent / row.scenario).name for row in scope.rows if row.scenario}
    runs = measured_runs(results, frozenset(names.values()))
    return ScopeReport(
        scope.source,
        tuple(
            ScopeEntry(
                row,
                read_published(results / "published" / row.published) if row.published else (),
                tuple(run for run in runs if row.scenario and run.scenario == names[row.scenario]),
            )
            for row in scope.rows
        ),
    )


def measured_runs(results: Path, scenarios: frozenset[str]) -> tuple[Measured, ...]:
    """The runs of these scenarios in a results directory, oldest first.

    Raises:
        RecordError: a record that cannot be read.
    """
    manifests = sorted([*results.glob("*/manifest.json"), *results.glob("examples/*/manifest.json")])
    stores = [RunStore(manifest.parent) for manifest in manifests]
    found = [measured(build_report(store)) for store in stores if store.manifest().scenario.get("name") in scenarios]
    return tuple(sorted(found, key=lambda run: (run.date, run.run)))


def measured(report: Report) -> Measured:
    """What a run's report says, in short."""
    trees = [*report.manifest.sources, *(tree for trial in report.trials for tree in trial.sources)]
    versions = {name: version for trial in report.trials for name, version in trial.versions.items()}
    return Measured(
        run=report.manifest.run,
        scenario=report.scenario.name,
        date=report.manifest.created_at,
        sources=tuple(dict.fromkeys(_revision(tree) for tree in trees)),
        versions=dict(sorted(versions.items())),
        valid=report.valid,
        figures=tuple(_figure(row) for row in report.main),
    )


def _figure(row: MainRow) -> Figure:
    one, rate = row.throughput, row.hit.rate
    return Figure(
        bench=row.bench.name,
        arm=row.arm,
        hit=None if rate is None else (rate.low, rate.high),
        ideal=row.hit.ideal,
        baseline=one.base_mean,
        ratio=one.ratio,
        range=None if one.spread is None else (one.spread.low, one.spread.high),
        ttfp=None if row.ttfp is None else row.ttfp.ratio,
        rounds=len(one.rounds),
        verdict=one.verdict.value,
    )


def _revision(tree: SourceTree) -> str:
    if tree.commit is None:
        return f"{tree.name} outside version control"
    return f"{tree.name} {tree.commit[:12]}{' with local changes' if tree.dirty else ''}"
