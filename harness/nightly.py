"""What a night concludes from its run: the gate, the series it is appended to, the alarms it gives, one exit code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ExitCode
from harness.gate import GateResult, Outcome
from harness.gating import gate_run, run_changes
from harness.noise import host_class
from harness.policy import Policy
from harness.recorded import scenario_of
from harness.records import Manifest, TrialRecord
from harness.store import RunStore
from harness.trend import Alarm, Night, RowSeries, append, new_alarms, points_of, read_series, series_path

_UNDER_TEST = ("omni-prefix-bench",)
_RELEASE = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The end of a night.

    Parameters:
        series: the file of the series; None where the night was not appended, because its run is invalid.
        alarms: those that are new.
    """

    gate: GateResult
    series: Path | None
    alarms: tuple[Alarm, ...]

    @property
    def exit_code(self) -> int:
        """The gate's; a new alarm is a regression, unless something worse was found."""
        if self.alarms and self.gate.outcome is not Outcome.INVALID:
            return ExitCode.REGRESSED
        return self.gate.exit_code


def conclude(store: RunStore, policy: Policy, results: Path) -> Conclusion:
    """Gates a run, appends it to its series and looks for what changed; a run counts once, however often it is told.

    Alarms are given for what a rule of the policy bounds, changed by more than the scenario's practical threshold.

    Raises:
        UsageError: a rule fits nothing, or what finds change points is not installed.
        RecordError: a record or the series cannot be read.
    """
    result = gate_run(store, policy)
    if result.outcome is Outcome.INVALID:
        return Conclusion(result, None, ())
    manifest, trials = store.manifest(), store.trials()
    scenario = scenario_of(manifest)
    path = series_path(results, scenario.name, host_class(manifest.host), series_versions(manifest, trials))
    if manifest.run not in {night.run for night in read_series(path).nights}:
        append(path, [_night(store, manifest, trials)])

    def bounded(row: RowSeries) -> bool:
        # What a whole trial has, such as memory, is of no bench.
        return any(
            rule.metric == row.metric and not rule.reported and rule.fits(row.bench or "*", row.arm)
            for rule in policy.rules
        )

    alarms = new_alarms(read_series(path), threshold=scenario.validity.practical_threshold, watched=bounded)
    append(path, alarms)
    return Conclusion(result, path, alarms)


def series_versions(manifest: Manifest, trials: tuple[TrialRecord, ...]) -> dict[str, str]:
    """The releases a series belongs to. What is under test is not among them, nor are the builds of one release."""
    every: Mapping[str, str] = {
        **manifest.versions,
        **{name: v for trial in trials for name, v in trial.versions.items()},
    }
    return {
        name: found.group() if (found := _RELEASE.match(version)) else version
        for name, version in every.items()
        if name not in _UNDER_TEST
    }


def _night(store: RunStore, manifest: Manifest, trials: tuple[TrialRecord, ...]) -> Night:
    return Night(
        at=manifest.created_at,
        run=manifest.run,
        commit=next((source.commit for source in manifest.sources), None),
        versions={**manifest.versions, **{name: v for trial in trials for name, v in trial.versions.items()}},
        points=points_of(run_changes(store)),
    )
