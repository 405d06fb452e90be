"""The `bench` command: parses and delegates, nothing else."""

from __future__ import annotations

import json
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from harness import __version__
from harness.errors import BenchError, ExitCode, UsageError

app = typer.Typer(
    help="Prove what a prefix cache does for an omni-modality model server: faster where prompts share a prefix, "
    "free where they do not, and the same answers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
serve = typer.Typer(help="Start a server to play with.", no_args_is_help=True)
app.add_typer(serve, name="serve")

ScenarioFile = Annotated[Path, typer.Argument(metavar="FILE", help="A scenario, such as scenarios/quickstart.yaml.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Only these benches, a,b or --only again for more; globs allowed; `warm` always runs."),
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Another number of rounds.")]
Arms = Annotated[
    list[str] | None,
    typer.Option(help="Only these arms, a,b or --arms again for more; the baseline must be among them."),
]
Aa = Annotated[bool, typer.Option("--aa", help="The baseline against itself, in place of the arms: the noise floor.")]
PolicyFile = Annotated[Path, typer.Option("--policy", metavar="FILE", help="Rules, such as policies/default.yaml.")]


_LEFT_OVER = {"allow_extra_args": True}
"""Settings of the commands that say themselves what a word too many may have been meant for."""
_BROKEN_PIPE = 141
"""What a shell sees of a program that SIGPIPE ended."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bench {__version__}")
        raise typer.Exit


def _names(given: list[str] | None) -> tuple[str, ...]:
    """What --only or --arms was given; no name holds a comma, so one parts two names."""
    return tuple(name.strip() for each in given or () for name in each.split(","))


def _none_left_over(context: typer.Context) -> None:
    if context.args:
        raise UsageError(
            f"bench {context.info_name}: found {' '.join(context.args)!r} left over; allowed: one FILE; --only and "
            "--arms may be given again, or take several names with commas (--arms a,b)"
        )


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options that belong to no command."""


@app.command(context_settings=_LEFT_OVER)
def check(
    context: typer.Context,
    file: ScenarioFile,
    only: Only = None,
    rounds: Rounds = None,
    arms: Arms = None,
    aa: Aa = False,
    platform: Annotated[
        str | None, typer.Option(help="Resolve deploy overlays for this device: cuda, npu, ...")
    ] = None,
    as_json: Json = False,
) -> None:
    """Validate a scenario and print its plan; nothing is started."""
    from harness.check import check_report
    from harness.check_text import render_check
    from harness.commands.run import Narrowing, narrowed

    _none_left_over(context)
    scenario = narrowed(file, Narrowing(_names(only), rounds, _names(arms), aa))
    report = check_report(scenario, file, platform)
    typer.echo(json.dumps(report.to_json(), indent=1) if as_json else render_check(report))


@app.command(context_settings=_LEFT_OVER)
def run(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A scenario; not needed with --resume.")] = None,
    only: Only = None,
    rounds: Rounds = None,
    arms: Arms = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("results"),
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Finish an interrupted run.")] = None,
    aa: Aa = False,
    gate: Annotated[Path | None, typer.Option(metavar="POLICY", help="Hold the run against a policy.")] = None,
    as_json: Json = False,
) -> None:
    """Run a scenario: a fresh server for each arm of each round, every bench, and a report at the end."""
    from harness.commands.gate import judged, policy_of
    from harness.commands.run import Narrowing, exit_code, finish, run, tell

    _none_left_over(context)
    policy = None if gate is None else policy_of(gate)
    ran = run(file, Narrowing(_names(only), rounds, _names(arms), aa), out, resume, policy)
    report, path = finish(ran.store)
    if policy is None:
        tell(report, path, as_json=as_json)
        raise typer.Exit(exit_code(report, ran))
    found = judged(ran.store, policy)
    tell(report, path, found.table, as_json=as_json, gate=found.data)
    raise typer.Exit(found.exit_code)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, results/<run>.")],
    as_json: Json = False,
) -> None:
    """Write report.md and the figures anew, from the records alone; exits as the run did."""
    from harness.commands.run import exit_code, finish, tell
    from harness.store import RunStore

    found, path = finish(RunStore.open(run))
    tell(found, path, as_json=as_json)
    raise typer.Exit(exit_code(found))


@app.command()
def gate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, results/<run>.")],
    policy: PolicyFile,
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="An earlier run: bound what changed since, not against an arm.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML here.")] = None,
    as_json: Json = False,
) -> None:
    """Hold a run against a policy: 0 pass, 1 regressed, 3 inconclusive, 4 invalid."""
    from harness.commands.gate import judged, policy_of
    from harness.commands.run import console
    from harness.store import RunStore

    stored = None if baseline is None else RunStore.open(baseline)
    found = judged(RunStore.open(run), policy_of(policy), stored, junit)
    if as_json:
        typer.echo(json.dumps(found.data, indent=1))
    else:
        console().print(found.table)
    raise typer.Exit(found.exit_code)


@app.command()
def trend(
    results: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """What nightly runs measured, night after night, and when it changed: a table and a figure for each series."""
    from harness.commands.run import console
    from harness.commands.trend import trends

    found = trends(results)
    if as_json:
        typer.echo(json.dumps(found.data, indent=1))
    else:
        for line in found.lines:
            console().print(line, soft_wrap=isinstance(line, str))


@app.command(context_settings=_LEFT_OVER)
def nightly(
    context: typer.Context,
    file: ScenarioFile,
    policy: PolicyFile,
    only: Only = None,
    rounds: Rounds = None,
    arms: Arms = None,
    out: Annotated[Path, typer.Option(help="Where runs and series are kept.")] = Path("results"),
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML here.")] = None,
) -> None:
    """One night: check, run, report, gate, and the trend with its alarms, in one exit code."""
    from harness.commands.nightly import nightly as one_night
    from harness.commands.run import Narrowing

    _none_left_over(context)
    raise typer.Exit(one_night(file, policy, Narrowing(_names(only), rounds, _names(arms)), out, junit))


@app.command()
def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, results/<run>.")],
    recogniser: Annotated[
        str | None, typer.Option(help="In place of the scenario's: whisper, module:function.")
    ] = None,
    wer_model: Annotated[str | None, typer.Option(help="Path or cached name of a Whisper model.")] = None,
    normaliser: Annotated[str | None, typer.Option(help="whisper-english or seed-tts.")] = None,
    encoder: Annotated[str | None, typer.Option(help="resemblyzer or wavlm.")] = None,
    sim_model: Annotated[str | None, typer.Option(help="Path of the encoder's weights, or its folder.")] = None,
    as_json: Json = False,
) -> None:
    """Score the answers that a run kept, without a server; exits as its accuracy checks say."""
    from rich.console import Console

    from harness.accuracy.models import Instead
    from harness.accuracy.score import score_run
    from harness.accuracy.verdict import exit_code
    from harness.commands.run import finish, tell
    from harness.store import RunStore

    errors = Console(stderr=True, markup=False, emoji=False, highlight=False)
    store = RunStore.open(run)
    with store.writing(), errors.status("scoring") as status:
        summaries = score_run(store, Instead(recogniser, wer_model, normaliser, encoder, sim_model), status.update)
    if not summaries:
        errors.print(f"nothing to score: {run} has no accuracy checks", soft_wrap=True)
    tell(*finish(store), as_json=as_json)
    raise typer.Exit(exit_code(summaries))


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="The earlier run.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="The later run.")],
    force: Annotated[bool, typer.Option("--force", help="Compare runs that do not match all the same.")] = False,
    as_json: Json = False,
) -> None:
    """What differs between two runs, and how the results changed; other code is listed, another set-up is refused."""
    from harness.compare import compare_runs
    from harness.compare_text import render_comparison, to_json
    from harness.store import RunStore

    found = compare_runs(RunStore.open(first), RunStore.open(second), force=force)
    typer.echo(json.dumps(to_json(found), indent=1) if as_json else render_comparison(found))
    raise typer.Exit(ExitCode.OK if found.compared and not found.unfinished else ExitCode.INVALID)


@app.command()
def scope(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="The table as data.")] = Path("scenarios/scope.yaml"),
    results: Annotated[Path, typer.Option(help="Where runs and published tables are kept.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """Where the cache is on by default, and why: model by model, what was published and what was measured here."""
    from harness.scope import scope_report
    from harness.scope_text import render_scope

    report = scope_report(file, results)
    typer.echo(json.dumps(report.to_json(), indent=1) if as_json else render_scope(report))


@app.command()
def defaults(
    python: Annotated[str | None, typer.Option(help="An interpreter that has vLLM-Omni.")] = None,
    source: Annotated[Path | None, typer.Option(help="A checkout of vLLM-Omni, in place of an installed one.")] = None,
    platform: Annotated[list[str] | None, typer.Option(help="Only this device; repeat it for more.")] = None,
    as_json: Json = False,
) -> None:
    """Which stages of vLLM-Omni's shipped profiles have prefix caching on, device by device."""
    from harness.servers.deploy.defaults import defaults_of_python, defaults_of_source
    from harness.servers.deploy.defaults_text import render_defaults

    if python is not None and source is not None:
        raise UsageError("bench defaults: found --python and --source; allowed: one of them")
    platforms = tuple(platform or ())
    found = defaults_of_python(python, platforms) if source is None else defaults_of_source(source, platforms)
    typer.echo(json.dumps(found.to_json(), indent=1) if as_json else render_defaults(found))
    raise typer.Exit(ExitCode.FAILURE if found.disagreements else ExitCode.OK)


@serve.command(
    "tiny-omni",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def tiny_omni(context: typer.Context) -> None:
    """The reference server, as the quickstart starts it; `bench serve tiny-omni --help` lists its options."""
    from harness.tiny_omni.serve import main as serve_main

    raise typer.Exit(serve_main(context.args))


def main() -> None:
    """Entry point: every error a person can cause or mend is one message and an exit code of the design."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that lacks a minus sign must not cost anybody a report.
            stream.reconfigure(errors="replace")
    try:
        app(standalone_mode=True)
    except BrokenPipeError:
        # The reader has gone; Python's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_BROKEN_PIPE)
    except OSError as error:
        print(f"bench: {_said(error)}", file=sys.stderr)
        sys.exit(ExitCode.FAILURE)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)


def _said(error: OSError) -> str:
    return ": ".join(str(part) for part in (error.filename, error.strerror or error) if part is not None)


if __name__ == "__main__":
    main()
