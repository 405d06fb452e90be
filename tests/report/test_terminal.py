"""What `bench` prints for a person: nothing is cut, whatever the terminal, and nothing is said eight times."""

import io
import os
import pty
import subprocess
import sys

import pytest
import synthetic_run
from rich.console import Console
from synthetic_run import SyntheticRun

from harness.gate import Check, GateResult, Outcome
from harness.gate_text import render_gate
from harness.records import Caveat
from harness.report import build_report, render_terminal
from harness.stats import Interval
from harness.store import RunStore

CUT = "\N{HORIZONTAL ELLIPSIS}"
BENCHES = ("P1024_h0_c4", "P1024_h94_c4", "DEC100_c4", "AUD_h94_c2")
LONG = "a-bench-with-as-long-a-name-as-" + "x" * 40
WHY = "the interval crosses the bound; bound widened to this host's noise floor (quickstart-20260101T000000Z)"
CHECKS = GateResult(
    (
        Check(
            "P1024_h94_c4", "cache_on", "request_throughput", 3.566, Interval(3.38, 4.01), 4, Interval(-0.03, 0.05),
            Outcome.REGRESSED, WHY,
        ),
        Check("", "cache_on", "memory_peak_rss", -0.01, None, 1, Interval(-0.1, float("inf")), Outcome.PASS, ""),
        Check("", "", "run", None, None, 0, None, Outcome.INVALID, "unfinished: 1 of 8 trials have no record"),
    )
)  # fmt: skip


def with_long_name(monkeypatch):
    """DEC100_c4 under another name."""
    monkeypatch.setattr(synthetic_run, "SCENARIO", synthetic_run.SCENARIO.replace("DEC100_c4  ", f"{LONG}  "))
    for table in (synthetic_run.THROUGHPUT, synthetic_run.HITS, synthetic_run.IDEAL):
        monkeypatch.setitem(table, LONG, table["DEC100_c4"])


def printed(renderable, width):
    console = Console(width=width, file=io.StringIO(), markup=False, emoji=False, highlight=False)
    console.print(renderable)
    return console.file.getvalue()


def report_at(root, width):
    return printed(render_terminal(build_report(RunStore.open(root)), width), width)


@pytest.mark.parametrize("width", [60, 80, 100, 110])
def test_a_gate_on_a_narrow_terminal_cuts_nothing(width):
    """Where its table does not fit there is a block of lines per check, with every number and every reason."""
    text = printed(render_gate(CHECKS, "a-run"), width)
    assert CUT not in text
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    at = lines.index("regressed: P1024_h94_c4, cache_on, request_throughput")
    told = " ".join("\n".join(lines[at:]).split())
    minus = "\N{MINUS SIGN}"
    assert (
        f"change +356.6%, interval +338.0% .. +401.0%, allowed {minus}3.0% .. +5.0%, 4 rounds {WHY} "
        f"pass: cache_on, memory_peak_rss change {minus}1.0%, allowed \N{GREATER-THAN OR EQUAL TO} {minus}10.0%, "
        "1 round invalid: run 0 rounds unfinished: 1 of 8 trials have no record"
    ) in told


def test_a_gate_on_a_wide_terminal_is_a_table():
    """The reason alone is wrapped; from where the rest fits on, a check is a line again, and nothing is cut."""
    text = printed(render_gate(CHECKS, "a-run"), 150)
    assert CUT not in text
    (line,) = [line for line in text.splitlines() if "request_throughput" in line and "+338.0% .. +401.0%" in line]
    assert "\N{MINUS SIGN}3.0% .. +5.0%" in line
    assert set(WHY.split()) <= set(text.split())


def test_a_word_of_a_reason_wider_than_its_column_is_folded():
    """A path or a run's name without a space in it is not cut either."""
    why = "see " + "w" * 200
    one = GateResult((Check("B", "a", "run", None, None, 0, None, Outcome.INVALID, why),))
    text = printed(render_gate(one, "r"), 110)
    assert CUT not in text
    assert text.count("w") >= 200


def test_names_are_whole_where_the_compact_table_does_not_fit(tmp_path):
    """Three arms on a narrow terminal: a block of lines per bench and arm, with all that the table has."""
    root = SyntheticRun(tmp_path / "run", third_arm=True).write()
    text = report_at(root, 60)
    assert CUT not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 60
    for bench in BENCHES:
        for arm in ("cache_on", "cache_new"):
            assert f"{bench}, {arm}: " in text
    minus = "\N{MINUS SIGN}"
    block = text[text.index("P1024_h94_c4, cache_on") :].splitlines()[:5]
    assert block[0].startswith("P1024_h94_c4, cache_on: faster")
    assert block[1] == "  cache_off 19.51 req/s, ratio of means +356.6%"
    assert block[2] == "  per-round range +343.5% .. +367.9%"
    assert block[3].startswith("  95% interval of geometric mean +3")
    assert block[4] == "  hit 92.6%, ideal 93.8%"
    assert f"ratio of means +16.3%; TTFP {minus}" in text
    assert "a terminal of" not in text


@pytest.mark.parametrize("width", [40, 80, 136, 200])
@pytest.mark.parametrize("shape", [{}, {"third_arm": True}, {"one_arm": True}])
def test_no_width_cuts_the_report(tmp_path, monkeypatch, shape, width):
    """Names as long as a scenario allows are whole on any terminal that has room for a word of theirs."""
    with_long_name(monkeypatch)
    text = report_at(SyntheticRun(tmp_path / "run", **shape).write(), width)
    assert CUT not in text
    assert LONG in "".join(line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("command", ["report", "gate"])
def test_what_goes_into_a_file_is_not_cut(tmp_path, command):
    """A pipe has no width: long names and intervals are whole, and a row is one line."""
    root = SyntheticRun(tmp_path / "run", third_arm=True).write()
    policy = tmp_path / "policy.yaml"
    policy.write_text("schema: 1\nrules:\n  - {bench: '*', metric: request_throughput, at_least: -0.0301}\n")
    words = [str(root)] if command == "report" else [str(root), "--policy", str(policy)]
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", command, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "40"},
    )
    assert done.stderr == ""
    assert CUT not in done.stdout
    for bench in BENCHES:
        for arm in ("cache_on", "cache_new"):
            (row,) = [line for line in done.stdout.splitlines() if {bench, arm} <= set(line.split()[:3])]
            assert row.count(" .. ") == {"report": 2, "gate": 1}[command]


def test_a_row_in_a_file_is_a_line_however_long(tmp_path, monkeypatch):
    """The whole table, in which 136 columns cut the verdict and the interval of benches with long names."""
    with_long_name(monkeypatch)
    root = SyntheticRun(tmp_path / "run", third_arm=True).write()
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "report", str(root)], capture_output=True, text=True, timeout=60
    )
    rows = [line for line in done.stdout.splitlines() if line.lstrip().startswith(LONG) and " .. " in line]
    assert [row.split()[1] for row in rows] == ["cache_on", "cache_new"]
    assert all(row.split()[-1] == "slower" for row in rows)
    assert CUT not in done.stdout


def test_a_terminal_keeps_its_own_width(tmp_path):
    """On a terminal of 80 columns no line is longer."""
    root = SyntheticRun(tmp_path / "run", third_arm=True).write()
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "harness.cli", "report", str(root)],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"},
    ) as process:
        os.close(theirs)
        told = b""
        while chunk := _read(ours):
            told += chunk
        assert process.wait(60) == 0
    os.close(ours)
    text = told.decode()
    assert CUT not in text
    table = text[: text.index("report: ")]
    assert max(len(line.rstrip()) for line in table.splitlines() if "\x1b" not in line) <= 80


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


class Grown(SyntheticRun):
    """Every trial grew, and none of it was checked in two ways."""

    def trial(self, planned):
        growth = f"stage 0 grew by {planned.round} MiB"
        told = [("memory growth", growth), ("not checked", "its command line"), ("not checked", "its age")]
        caveats = tuple(Caveat(kind=kind, message=text, line=None) for kind, text in told)
        if planned.slug == "r02-1-cache_on":
            caveats += (Caveat(kind="preemption", message="2 requests were preempted", line=17, count=2),)
        return super().trial(planned).model_copy(update={"caveats": caveats})


def test_a_caveat_of_every_trial_is_told_once(tmp_path):
    """One line per kind with the number of trials and the first one's words; two that differ in a trial stay two."""
    root = Grown(tmp_path / "run").write()
    lines = [line for line in report_at(root, 200).splitlines() if line.startswith("caveat: ")]
    assert lines == [
        "caveat: 8 trials, the first r01-1-cache_off: memory growth: stage 0 grew by 1 MiB",
        "caveat: 8 trials, the first r01-1-cache_off: not checked: its command line",
        "caveat: 8 trials, the first r01-1-cache_off: not checked: its age",
        "caveat: r02-1-cache_on: preemption: 2 requests were preempted (2 times)",
    ]
