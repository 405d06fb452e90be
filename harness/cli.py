"""The `bench` command: parses and delegates, nothing else."""

from __future__ import annotations

import json
import os
import shlex
import sys
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import __version__
from harness.errors import BenchError, ExitCode, UsageError

if TYPE_CHECKING:
    from harness.store import RunStore

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
    list[str] | None, typer.Option(help="Only these benches; repeat it for more; globs allowed; `warm` always runs.")
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Another number of rounds.")]
Arms = Annotated[
    list[str] | None, typer.Option(help="Only these arms; repeat it for more; the baseline must be among them.")
]


_BROKEN_PIPE = 141
"""What a shell sees of a program that SIGPIPE ended."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bench {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options that belong to no command."""


@app.command()
def check(
    file: ScenarioFile,
    only: Only = None,
    rounds: Rounds = None,
    arms: Arms = None,
    platform: Annotated[
        str | None, typer.Option(help="Resolve deploy overlays for this device: cuda, npu, ...")
    ] = None,
    as_json: Json = False,
) -> None:
    """Validate a scenario and print its plan; nothing is started."""
    from harness.check import check_report
    from harness.check_text import render_check
    from harness.scenario import load_scenario, narrow

    scenario = narrow(load_scenario(file), tuple(only or ()), rounds, tuple(arms or ()))
    report = check_report(scenario, file, platform)
    typer.echo(json.dumps(report.to_json(), indent=1) if as_json else render_check(report))


@app.command()
def run(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A scenario; not needed with --resume.")] = None,
    only: Only = None,
    rounds: Rounds = None,
    arms: Arms = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("results"),
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Finish an interrupted run.")] = None,
    as_json: Json = False,
) -> None:
    """Run a scenario: a fresh server for each arm of each round, every bench, and a report at the end."""
    from rich.console import Console

    from harness.progress import progress
    from harness.recorded import scenario_of
    from harness.runner import Runner, command_line
    from harness.scenario import load_scenario, narrow
    from harness.store import RunStore

    narrowing = (tuple(only or ()), rounds, tuple(arms or ()))
    if resume is None:
        if file is None:
            raise UsageError("bench run: found neither a scenario nor --resume; allowed: one of them")
        scenario = narrow(load_scenario(file), *narrowing)
        path, store = out / f"{scenario.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}", None
    else:
        path, store = resume, RunStore.open(resume)
        manifest = store.manifest()
        scenario = scenario_of(manifest) if file is None else narrow(load_scenario(file), *narrowing)
        if file is None and any(narrowing):
            raise UsageError(
                "bench run --resume: found --only, --rounds or --arms; allowed: the run is as it was planned"
            )
        file = file or Path(manifest.scenario_file)
    errors = Console(stderr=True, markup=False, emoji=False, highlight=False)
    try:
        with progress(errors) as shown:
            runner = Runner(scenario, file, shown)
            result = runner.start(path, command_line()) if store is None else runner.resume(store)
    except (KeyboardInterrupt, BenchError, OSError):
        if (path / "manifest.json").exists():
            errors.print(f"resume with: bench run --resume {shlex.quote(str(path))}", style="bold", soft_wrap=True)
        raise
    for trial in result.failed:
        errors.print(trial.failure, style="red", soft_wrap=True)
    if store is not None and result.kept == len(store.manifest().plan):
        errors.print(f"nothing left to do: every trial of {path} is finished", soft_wrap=True)
    valid = _finish(result.store, as_json)
    raise typer.Exit(ExitCode.OK if valid and not result.failed else ExitCode.INVALID)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, results/<run>.")],
    as_json: Json = False,
) -> None:
    """Write report.md and the figures anew, from the records alone; exits as the run did."""
    from harness.store import RunStore

    valid = _finish(RunStore.open(run), as_json)
    raise typer.Exit(ExitCode.OK if valid else ExitCode.INVALID)


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


def _finish(store: RunStore, as_json: bool) -> bool:
    """Writes the report and prints it; True when everything in it counts."""
    from rich.console import Console

    from harness.report import build_report, render_terminal, write
    from harness.report.machine import to_json
    from harness.report.terminal import WIDE

    report = build_report(store)
    path = write(store, report)
    if as_json:
        typer.echo(json.dumps({**to_json(report), "report": str(path)}, indent=1))
    else:
        # A file or a pipe has no width of its own: give the table what it needs.
        console = Console(width=None if sys.stdout.isatty() else WIDE, markup=False, emoji=False, highlight=False)
        console.print(render_terminal(report, console.width))
        console.print(f"report: {path}", soft_wrap=True)
    return report.valid


if __name__ == "__main__":
    main()
