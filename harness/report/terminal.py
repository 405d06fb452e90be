"""The main table for a terminal, in colour."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.report import words
from harness.report.markdown import ratio_cell, verdict_cell
from harness.report.model import Report
from harness.report.text import NONE, between, hit_rate, percent, significant
from harness.stats import LEVEL, Verdict

_STYLES = {
    Verdict.FASTER: "green",
    Verdict.SLOWER: "bold red",
    Verdict.SAME: "cyan",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.INVALID: "magenta",
}


def render_terminal(report: Report) -> RenderableType:
    """The verdict in words, the main table, and the notes that need a look, as one rich renderable."""
    parts: list[RenderableType] = []
    if (progress := words.progress(report)) is not None:
        parts.append(Text(progress, style="bold red"))
    parts += [_table(report), Text(words.verdict(report).replace("`", "")), Text(_proof(report), style="dim")]
    for note in report.notes:
        place = " ".join(part for part in (note.trial, note.bench) if part)
        style = "red" if note.kind in ("failed trial", "dropped pair") else "yellow"
        parts.append(Text.assemble((f"{note.kind}: ", style), f"{place + ': ' if place else ''}{note.text}"))
    return Group(*parts)


def _table(report: Report) -> Table:
    several = len(report.others) > 1
    table = Table(title=report.manifest.run, title_justify="left", header_style="bold")
    table.add_column("bench", no_wrap=True)
    if several:
        table.add_column("arm", no_wrap=True)
    table.add_column("stage-0 hit", justify="right")
    table.add_column("ideal", justify="right")
    table.add_column(f"{report.baseline} (req/s)", justify="right")
    table.add_column("ratio" if several else "".join(report.others), justify="right")
    table.add_column("per-round range", justify="right")
    table.add_column(f"{LEVEL:.0%} interval", justify="right")
    table.add_column("verdict", no_wrap=True)
    for row in report.main:
        style = _STYLES[row.throughput.verdict]
        table.add_row(
            row.bench.name,
            *([row.arm] if several else []),
            hit_rate(row.hit),
            NONE if row.hit.ideal is None else percent(row.hit.ideal, signed=False),
            NONE if row.throughput.base_mean is None else significant(row.throughput.base_mean),
            Text(ratio_cell(row), style=style),
            between(row.throughput.spread),
            between(row.throughput.interval),
            Text(verdict_cell(row), style=style),
        )
    return table


def _proof(report: Report) -> str:
    return words.baseline_proof(report).replace("`", "")
