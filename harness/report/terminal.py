"""The main table for a terminal, in colour: whole, compact or, where neither fits, as blocks of lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.accuracy.decision import Verdict as Accuracy
from harness.report import accuracy_text, words
from harness.report.markdown import ratio_cell, verdict_cell
from harness.report.model import GRAVE, AloneRow, MainRow, Report
from harness.report.notes import Note
from harness.report.text import NONE, between, count, hit_rate, listed, percent, significant
from harness.stats import LEVEL, Verdict

UNCUT = 100_000
"""Columns of what has no width of its own, a file or a pipe: more than any table needs."""
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


def render_terminal(report: Report, width: int = UNCUT) -> RenderableType:
    """The verdict in words, the main table, and the notes that need a look, as one rich renderable.

    Parameters:
        width: columns of the terminal. Where the whole table does not fit, the ideal hit rate, interval and TTFP are
            left to the report; where that does not either, there is a block of lines per row. Nothing is cut.
    """
    parts: list[RenderableType] = []
    if (progress := words.progress(report)) is not None:
        parts.append(Text(progress, style="bold red"))
    parts += [
        *(_main(report, width) if report.others else _alone(report, width)),
        Text(words.verdict(report).replace("`", "")),
        Text(_proof(report), style="dim"),
    ]
    for verdict, told in accuracy_text.sentences(report.accuracy):
        parts.append(Text(told.replace("`", ""), style=_ACCURACY[verdict]))
    for alike in _alike(report.notes):
        note = alike[0]
        place = " ".join(part for part in (note.trial, note.bench) if part)
        if len(alike) > 1:
            place = f"{count(len(alike), 'trial')}, the first {place}"
        style = "red" if note.kind in GRAVE else "yellow"
        parts.append(Text.assemble((f"{note.kind}: ", style), f"{place + ': ' if place else ''}{note.text}"))
    return Group(*parts)


def columns(table: RenderableType) -> int:
    """How many columns of a terminal it takes with nothing cut or wrapped."""
    console = Console(width=UNCUT)
    return Measurement.get(console, console.options, table).maximum


def _alike(notes: tuple[Note, ...]) -> Iterator[list[Note]]:
    """Notes that are told in one line: caveats of one kind that several trials have; every other stands alone.

    Several of one kind in the same trial, such as what was not checked there, stay several.
    """
    found: dict[tuple[str | int, ...], list[Note]] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for index, note in enumerate(notes):
        key: tuple[str | int, ...] = (index,)
        if note.kind == "caveat" and note.trial is not None and note.bench is None:
            kind = note.text.partition(": ")[0]
            seen[note.trial, kind] += 1
            key = (kind, seen[note.trial, kind])
        found.setdefault(key, []).append(note)
    yield from found.values()


def _main(report: Report, width: int) -> Iterator[RenderableType]:
    whole, compact = (_table(report, wide=wide) for wide in (True, False))
    if (needed := columns(whole)) <= width:
        yield whole
    elif columns(compact) <= width:
        yield compact
        yield Text(_left_out(report, needed), style="dim")
    else:
        yield Text(report.manifest.run, style="italic")
        for row in report.main:
            yield from _block(report, row)


def _block(report: Report, row: MainRow) -> Iterator[Text]:
    """All that the whole table has of a row, as lines that a narrow terminal may wrap and never cuts."""
    one, ideal = row.throughput, row.hit.ideal
    base = NONE if one.base_mean is None else significant(one.base_mean)
    style = _STYLES[one.verdict]
    yield Text.assemble(f"{row.bench.name}, {row.arm}: ", (verdict_cell(row), style))
    yield Text.assemble(f"  {report.baseline} {base} req/s, ratio of means ", (ratio_cell(row), style))
    yield Text(f"  per-round range {between(one.spread)}")
    yield Text(f"  {LEVEL:.0%} interval of geometric mean {between(one.interval)}")
    yield Text(f"  hit {hit_rate(row.hit)}, ideal {NONE if ideal is None else percent(ideal, signed=False)}")


def _alone(report: Report, width: int) -> Iterator[RenderableType]:
    table = _alone_table(report)
    if columns(table) <= width:
        yield table
        return
    yield Text(report.manifest.run, style="italic")
    for row in report.alone:
        hit, ideal, throughput, _ = _alone_cells(row)
        yield Text(f"{row.bench}: {report.baseline} {throughput} req/s, {count(row.rounds, 'round')}")
        yield Text(f"  hit {hit}, ideal {ideal}")


def _alone_cells(row: AloneRow) -> tuple[str, str, str, str]:
    return (
        hit_rate(row.hit),
        NONE if row.hit.ideal is None else percent(row.hit.ideal, signed=False),
        NONE if row.request_throughput is None else significant(row.request_throughput),
        str(row.rounds),
    )


def _alone_table(report: Report) -> Table:
    # Texts, not strings: names are never markup.
    table = Table(
        title=Text(report.manifest.run), title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("bench", no_wrap=True)
    for name in ("hit", "ideal", f"{report.baseline}\nreq/s", "rounds"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    for row in report.alone:
        table.add_row(Text(row.bench), *_alone_cells(row))
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


def _left_out(report: Report, needed: int) -> str:
    spoken = any(row.ttfp is not None for row in report.main)
    return (
        f"{listed(['ideal hit', 'interval', *(['TTFP'] if spoken else [])])}: in report.md, "
        f"or a terminal of {needed} columns"
    )


def _ratio(row: MainRow) -> str:
    return NONE if row.throughput.ratio is None else percent(row.throughput.ratio)


def _proof(report: Report) -> str:
    return words.baseline_proof(report).replace("`", "")
