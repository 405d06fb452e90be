"""The main table for a terminal, in colour."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.accuracy.decision import Verdict as Accuracy
from harness.report import accuracy_text, words
from harness.report.markdown import ratio_cell, verdict_cell
from harness.report.model import GRAVE, MainRow, Report
from harness.report.text import NONE, between, hit_rate, listed, percent, significant
from harness.stats import LEVEL, Verdict

WIDE = 136
"""Columns that the whole table needs."""
_STYLES = {
    Verdict.FASTER: "green",
    Verdict.SLOWER: "bold red",
    Verdict.SAME: "cyan",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.INVALID: "magenta",
}
_ACCURACY = {
    None: "yellow",
    Accuracy.PASS: "green",
    Accuracy.INCONCLUSIVE: "yellow",
    Accuracy.FAIL: "bold red",
    Accuracy.INVALID: "bold magenta",
}


def render_terminal(report: Report, width: int = WIDE) -> RenderableType:
    """The verdict in words, the main table, and the notes that need a look, as one rich renderable.

    Parameters:
        width: columns of the terminal; under `WIDE` the ideal hit rate, interval and TTFP are left to the report.
    """
    parts: list[RenderableType] = []
    if (progress := words.progress(report)) is not None:
        parts.append(Text(progress, style="bold red"))
    parts.append(_table(report, wide=width >= WIDE) if report.others else _alone(report))
    if report.others and width < WIDE:
        parts.append(Text(_left_out(report), style="dim"))
    parts += [
        Text(words.verdict(report).replace("`", "")),
        Text(_proof(report), style="dim"),
    ]
    for verdict, told in accuracy_text.sentences(report.accuracy):
        parts.append(Text(told.replace("`", ""), style=_ACCURACY[verdict]))
    for note in report.notes:
        place = " ".join(part for part in (note.trial, note.bench) if part)
        style = "red" if note.kind in GRAVE else "yellow"
        parts.append(Text.assemble((f"{note.kind}: ", style), f"{place + ': ' if place else ''}{note.text}"))
    return Group(*parts)


def _alone(report: Report) -> Table:
    # Texts, not strings: names are never markup.
    table = Table(
        title=Text(report.manifest.run), title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("bench", no_wrap=True)
    for name in ("hit", "ideal", f"{report.baseline}\nreq/s", "rounds"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    for row in report.alone:
        table.add_row(
            Text(row.bench),
            hit_rate(row.hit),
            NONE if row.hit.ideal is None else percent(row.hit.ideal, signed=False),
            NONE if row.request_throughput is None else significant(row.request_throughput),
            str(row.rounds),
        )
    return table


def _table(report: Report, *, wide: bool) -> Table:
    several = len(report.others) > 1
    table = Table(
        title=Text(report.manifest.run),
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD if wide else None,
        pad_edge=False,
    )
    left = ["bench", *(["arm"] if several else [])]
    middle = [
        "hit",
        *(["ideal"] if wide else []),
        f"{report.baseline}\nreq/s",
        *(["ratio" if several else f"{report.others[0]}\nratio"] if not wide else []),
        *(["ratio of means" if several else f"{report.others[0]}\nratio of means"] if wide else []),
    ]
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in (*middle, "per-round range", *([f"{LEVEL:.0%} interval of\ngeometric mean"] if wide else [])):
        table.add_column(Text(name), justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in report.main:
        style = _STYLES[row.throughput.verdict]
        table.add_row(
            Text(row.bench.name),
            *([Text(row.arm)] if several else []),
            hit_rate(row.hit),
            *([NONE if row.hit.ideal is None else percent(row.hit.ideal, signed=False)] if wide else []),
            NONE if row.throughput.base_mean is None else significant(row.throughput.base_mean),
            Text(ratio_cell(row) if wide else _ratio(row), style=style),
            between(row.throughput.spread),
            *([between(row.throughput.interval)] if wide else []),
            Text(verdict_cell(row) if wide else row.throughput.verdict.value, style=style),
        )
    return table


def _left_out(report: Report) -> str:
    spoken = any(row.ttfp is not None for row in report.main)
    return (
        f"{listed(['ideal hit', 'interval', *(['TTFP'] if spoken else [])])}: in report.md, "
        f"or a terminal of {WIDE} columns"
    )


def _ratio(row: MainRow) -> str:
    return NONE if row.throughput.ratio is None else percent(row.throughput.ratio)


def _proof(report: Report) -> str:
    return words.baseline_proof(report).replace("`", "")
