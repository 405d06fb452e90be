"""The scope as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from harness.published import PublishedRow
from harness.report.text import NONE, between, count, percent, significant
from harness.scope import Figure, Measured, ScopeEntry, ScopeReport
from harness.stats import Interval

WIDTH = 120
_BASIS = {"measured": "measured", "review": "code read", "none": "not validated"}


def render_scope(report: ScopeReport) -> str:
    """The table of all rows, then for each row its evidence, its published table and its runs."""
    head = ("model", "stage", "default", "published", "examined by", "runs here")
    rows = [
        (
            textwrap.shorten(entry.row.model, 44, placeholder=" ..."),
            entry.row.stage,
            "on" if entry.row.default else "off",
            _BASIS[entry.row.basis],
            entry.row.scenario or NONE,
            str(len(entry.runs)) if entry.row.scenario else NONE,
        )
        for entry in report.entries
    ]
    lines = [*_wrapped(f"Prefix caching by model. Published: {report.source}", ""), "", *_table(head, rows)]
    for entry in report.entries:
        lines += ["", *_entry(entry)]
    return "\n".join(lines)


def _entry(entry: ScopeEntry) -> Iterator[str]:
    row = entry.row
    yield from _wrapped(f"{row.model}, {row.stage} ({', '.join(row.profiles)})", "")
    yield from _wrapped(f"published: {row.evidence}", "  ")
    if entry.published:
        yield from ("", "  published, not measured here")
        yield from _table(
            ("bench", "stage-0 hit", "off (req/s)", "older cache", "improved cache", "range over rounds"),
            [_published(one) for one in entry.published],
        )
    for run in entry.runs:
        yield ""
        yield from _run(run)


def _published(row: PublishedRow) -> tuple[str, ...]:
    return (
        row.bench,
        _rate(row.hit),
        f"{row.cache_off:.4g}",
        _ratio(row.older, row.older_ttfp),
        _ratio(row.improved, row.improved_ttfp),
        between(Interval(*row.improved_range)),
    )


def _run(run: Measured) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    state = "" if run.valid else "; not all of it counts, see its report"
    yield from _wrapped(f"measured here: {run.run}, {run.date[:10]}{state}", "  ")
    yield from _wrapped(f"{'; '.join(run.sources)}; {versions or 'no versions recorded'}", "  ")
    if not run.figures:
        yield "  nothing to compare yet"
        return
    yield from _table(
        ("bench", "arm", "stage-0 hit", "ideal", "off (req/s)", "ratio", "range over rounds", "verdict"),
        [_figure(one) for one in run.figures],
    )


def _figure(one: Figure) -> tuple[str, ...]:
    return (
        one.bench,
        one.arm,
        NONE if one.hit is None else _rate(one.hit),
        NONE if one.ideal is None else percent(one.ideal, signed=False),
        NONE if one.baseline is None else significant(one.baseline),
        NONE if one.ratio is None else _ratio(one.ratio, one.ttfp),
        NONE if one.range is None else between(Interval(*one.range)),
        f"{one.verdict} ({count(one.rounds, 'round')})",
    )


def _rate(hit: tuple[float, float]) -> str:
    low, high = (percent(end, signed=False) for end in hit)
    return low if low == high else f"{low} .. {high}"


def _ratio(ratio: float, ttfp: float | None) -> str:
    return percent(ratio) if ttfp is None else f"{percent(ratio)}; TTFP {percent(ttfp)}"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *rows)
    ]
