"""A run with the baseline alone has a report too, and no name in any report is taken for markup."""

import io
import json
import os
import statistics
import subprocess
import sys

import pytest
from report_tables import rendered, rows
from rich.console import Console
from synthetic_run import THROUGHPUT, SyntheticRun

from harness.records import CellRecord, PlannedTrial
from harness.report import build_report, regenerate, render_terminal
from harness.report.machine import to_json
from harness.store import RunStore


def shown(report, width=136):
    console = Console(width=width, file=io.StringIO(), markup=False)
    console.print(render_terminal(report, width))
    return console.file.getvalue()


def bench_report(run, *words, **options):
    return subprocess.run(
        [sys.executable, "-m", "harness.cli", "report", str(run), *words],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        **{"stdout": subprocess.PIPE, **options},
    )


def test_one_arm_has_its_numbers_and_nothing_to_compare(tmp_path):
    """The mean of each bench over its rounds, in the report, on a terminal and for machines."""
    text = rendered(tmp_path / "run", one_arm=True)
    means = {name: statistics.mean(values["cache_off"]) for name, values in THROUGHPUT.items() if name != "warm"}
    table = rows(text, "Request throughput")
    assert {row["bench"]: float(row["cache_off (req/s)"]) for row in table} == pytest.approx(means, rel=1e-3)
    assert {row["rounds"] for row in table} == {"4"}
    assert "`cache_off` is the only arm: nothing to compare." in text
    assert {row["arm"] for row in rows(text, "Normalised throughput and latency")} == {"cache_off"}
    store = RunStore.open(tmp_path / "run")
    report = build_report(store)
    assert report.valid
    for width in (80, 136):
        assert "nothing to compare" in shown(report, width)
        assert "19.51" in shown(report, width)
    data = to_json(report)
    assert data["benches"] == []
    assert {row["bench"]: row["mean"] for row in data["alone"]} == pytest.approx(means)
    assert "](figures/latency.png)" in regenerate(store).read_text(encoding="utf-8")


def test_an_invalid_cell_of_the_only_arm_makes_the_run_invalid(tmp_path):
    """Failed requests are never a valid run, though there is no pair to drop; other benches keep their numbers."""
    reason = "3 requests failed; allowed: 0"
    run = SyntheticRun(tmp_path / "run", one_arm=True, invalid=(("r02-1-cache_off", "DEC100_c4", reason),)).write()
    report = build_report(RunStore.open(run))
    assert not report.valid
    assert to_json(report)["valid"] is False
    (note,) = (note for note in report.notes if note.kind == "invalid cell")
    assert (note.trial, note.bench, note.text) == ("r02-1-cache_off", "DEC100_c4", reason)
    assert {row.bench: row.rounds for row in report.alone}["DEC100_c4"] == 3
    done = bench_report(run)
    assert done.returncode == 4, done.stderr
    assert reason in done.stdout
    assert "Not every cell counted (DEC100_c4)" in done.stdout


def test_a_cell_whose_pair_is_dropped_is_told_once(tmp_path):
    """With a partner the reason stands with the pair."""
    run = SyntheticRun(tmp_path / "run", invalid=(("r02-2-cache_off", "DEC100_c4", "ours"),)).write()
    report = build_report(RunStore.open(run))
    assert not report.valid
    assert [note.kind for note in report.notes if "ours" in note.text] == ["dropped pair"]


@pytest.mark.parametrize("one_arm", [False, True])
def test_names_are_never_markup(tmp_path, one_arm):
    """Brackets and colons in a run's name or folder are printed as they are."""
    folder = tmp_path / "m[a]" / "r[/b]:smile:"
    done = bench_report(SyntheticRun(folder, one_arm=one_arm, run="r[/b]:smile:[red]").write())
    assert done.returncode == 0, done.stderr
    assert "r[/b]:smile:[red]" in done.stdout
    assert f"report: {folder}/report.md" in done.stdout


def test_progress_takes_no_reason_for_markup(tmp_path):
    """A reason with brackets in it does not end the run."""
    from harness.progress import progress

    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    run = SyntheticRun(tmp_path / "run", invalid=(("r01-1-cache_off", "DEC100_c4", "no [/x] here"),))
    trial = run.plan[0]
    assert isinstance(trial, PlannedTrial)
    cell = run.cell(trial, "DEC100_c4")
    assert isinstance(cell, CellRecord)
    with progress(console) as shown_:
        shown_.run(10.0)
        shown_.trial(trial, 1, 2)
        shown_.phase("starting [/the] server")
        shown_.cell(cell)
    assert "invalid: no [/x] here" in console.file.getvalue()
    assert "starting [/the] server" in console.file.getvalue()


def test_a_report_that_cannot_be_written_is_one_message(tmp_path):
    """A folder where report.md should be: exit code 5, the path, no traceback."""
    run = SyntheticRun(tmp_path / "run").write()
    (run / "report.md").mkdir()
    done = bench_report(run)
    assert done.returncode == 5
    assert len(done.stderr.splitlines()) == 1
    assert "report.md" in done.stderr


def test_scoring_a_run_without_accuracy_checks_says_so(tmp_path):
    """One line beside the table, and exit code 0: nothing failed; machines still read JSON alone."""
    run = SyntheticRun(tmp_path / "run", one_arm=True).write()
    for words in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "harness.cli", "score", str(run), *words], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == f"nothing to score: {run} has no accuracy checks\n"
    assert json.loads(done.stdout)["valid"] is True


def test_a_manifest_that_was_spoilt_is_one_message(tmp_path):
    run = SyntheticRun(tmp_path / "run").write()
    data = json.loads((run / "manifest.json").read_text())
    data["scenario"]["rounds"] = "many"
    (run / "manifest.json").write_text(json.dumps(data))
    for words in (["report"], ["run", "--resume"]):
        done = subprocess.run(
            [sys.executable, "-m", "harness.cli", *words, str(run)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2
        assert "scenario.rounds" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_reader_that_went_away_is_no_news(tmp_path, words):
    """`bench report RUN | head -0` says nothing on standard error."""
    run = SyntheticRun(tmp_path / "run").write()
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = bench_report(run, *words, stdout=writing)
    finally:
        os.close(writing)
    assert done.stderr == ""
    assert done.returncode != 0


def test_a_terminal_without_the_signs_gets_others(tmp_path):
    """ASCII output replaces what it cannot print."""
    done = bench_report(SyntheticRun(tmp_path / "run").write(), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "P1024_h94_c4" in done.stdout
    assert "?" in done.stdout
