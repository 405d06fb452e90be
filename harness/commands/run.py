"""`bench run`: runs or resumes a scenario, writes its report, and keeps the noise floor of an `aa` run."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from harness.accuracy.readiness import cannot_score
from harness.accuracy.verdict import exit_code as accuracy_code
from harness.accuracy.verdict import unscored
from harness.errors import BenchError, ExitCode, UsageError
from harness.extend import comparisons
from harness.gate import METRICS
from harness.noise import floors_of, host_class, load_sha256, noise_path, write_noise
from harness.pairs import pair_up
from harness.policy import Policy
from harness.progress import progress
from harness.provenance import utc_now
from harness.recorded import scenario_of
from harness.records import NoiseRecord
from harness.report import Report, build_report, render_terminal, write
from harness.report.machine import to_json
from harness.report.terminal import UNCUT
from harness.scenario import Scenario, load_scenario, narrow
from harness.store import RunStore


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What the command line asked for of a scenario."""

    only: tuple[str, ...] = ()
    rounds: int | None = None
    arms: tuple[str, ...] = ()
    aa: bool = False

    def __bool__(self) -> bool:
        return bool(self.only or self.rounds or self.arms or self.aa)


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that came to its end. `failed`: whether a server died."""

    store: RunStore
    failed: bool


def run(file: Path | None, narrowing: Narrowing, out: Path, resume: Path | None, policy: Policy | None = None) -> Ran:
    """Runs a scenario into a new directory below `out`, or finishes an interrupted run; scores what it can.

    Parameters:
        policy: what the run will be held against; a rule that could not fit is refused before anything starts.

    Raises:
        BenchError: the run could not be carried out; what was measured is kept, and how to resume was said.
    """
    from harness.gating import check_policy
    from harness.runner import Runner, command_line

    store = None if resume is None else RunStore.open(resume)
    if store is None:
        if file is None:
            raise UsageError("bench run: found neither a scenario nor --resume; allowed: one of them")
        scenario = narrowed(file, narrowing)
        path = out / f"{scenario.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    else:
        path, manifest = store.path, store.manifest()
        scenario = scenario_of(manifest) if file is None else narrowed(file, narrowing)
        if file is None and narrowing:
            raise UsageError(
                "bench run --resume: found --only, --rounds, --arms or --aa; allowed: the run is as it was planned"
            )
        file = file or Path(manifest.scenario_file)
    if policy is not None:
        check_policy(policy, scenario)
    errors = console(stderr=True)
    for lack in cannot_score(scenario.checks):
        errors.print(f"note: {lack}", style="yellow", soft_wrap=True)
    try:
        with progress(errors) as shown:
            runner = Runner(scenario, file, shown)
            result = runner.start(path, command_line()) if store is None else runner.resume(store)
    except (KeyboardInterrupt, BenchError, OSError) as error:
        refused = resume is not None and isinstance(error, UsageError)
        if not refused and RunStore(path).begun:
            errors.print(f"resume with: bench run --resume {shlex.quote(str(path))}", style="bold", soft_wrap=True)
        raise
    for trial in result.failed:
        errors.print(trial.failure, style="red", soft_wrap=True)
    done = store is not None and result.kept == len(store.manifest().plan)
    if done:
        errors.print(f"nothing left to do: every trial of {path} is finished", soft_wrap=True)
    if scenario.checks and (not done or unscored(result.store)):
        _score_or_say_why(result.store, errors)
    if scenario.order == "aa":
        _keep_noise(result.store, errors)
    return Ran(result.store, bool(result.failed))


def narrowed(file: Path, narrowing: Narrowing) -> Scenario:
    """The part of a scenario file that the command line asked for.

    Raises:
        UsageError: the file is wrong, or a name fits nothing in it.
    """
    scenario = narrow(load_scenario(file), narrowing.only, narrowing.rounds, narrowing.arms)
    return scenario.against_itself() if narrowing.aa else scenario


def finish(store: RunStore) -> tuple[Report, Path]:
    """Writes the report from the records; the report and its file."""
    report = build_report(store)
    return report, write(store, report)


def tell(report: Report, path: Path, *more: RenderableType, as_json: bool = False, **data: Any) -> None:
    """Prints the main table, and what else there is to say: `more` to a person, `data` to machines."""
    out = console()
    if as_json:
        # Not through the console, which would wrap it.
        sys.stdout.write(json.dumps({**to_json(report), "report": str(path), **data}, indent=1) + "\n")
        return
    out.print(render_terminal(report, out.width))
    for each in more:
        out.print(each)
    out.print(f"report: {path}", soft_wrap=True)


def console(*, stderr: bool = False) -> Console:
    """Where people read; a file or a pipe has no width of its own: nothing is cut or wrapped there."""
    width = None if stderr or sys.stdout.isatty() else UNCUT
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def exit_code(report: Report, ran: Ran | None = None) -> int:
    """Of a run that no policy judges: 1 for wrong answers, 4 for data that cannot be trusted, else its accuracy's.

    As in a gate: what was answered wrongly was, however little the rest can be trusted.
    """
    summaries = [one.summary for one in report.accuracy]
    scored = accuracy_code(summary for summary in summaries if summary is not None)
    if scored == ExitCode.REGRESSED:
        return scored
    if not report.valid or (ran is not None and ran.failed):
        return ExitCode.INVALID
    return scored if scored or None not in summaries else ExitCode.INCONCLUSIVE


def _keep_noise(store: RunStore, errors: Console) -> None:
    """Makes the changes that an `aa` run measured the noise floors of its host."""
    manifest = store.manifest()
    scenario = scenario_of(manifest)
    pairs = pair_up(scenario, manifest.plan, store.trials(), store.cells())
    found = [one for metric in METRICS for one in comparisons(scenario, pairs, metric)]
    floors = floors_of(found, manifest.run)
    if not floors:
        errors.print("no noise floor: it needs 3 valid rounds", style="yellow")
        return
    record = NoiseRecord(
        host_class=host_class(manifest.host),
        scenario=scenario.name,
        measured_at=utc_now(),
        loads={floor.bench: load_sha256(scenario, floor.bench) for floor in floors},
        floors=floors,
    )
    path = noise_path(store.path.parent, manifest.host, scenario.name)
    write_noise(path, record)
    errors.print(f"noise floor: {path}", soft_wrap=True)


def _score_or_say_why(store: RunStore, errors: Console) -> None:
    """Scores the answers; where this machine lacks what that takes, one message says what, and they are kept."""
    from harness.accuracy.score import score_run

    try:
        with errors.status("scoring") as status:
            score_run(store, tell=status.update)
    except BenchError as error:
        again = f"bench score {shlex.quote(str(store.path))}"
        errors.print(f"accuracy not scored: {error}\nthe answers are kept: {again}", style="yellow", soft_wrap=True)
