"""`bench trend`: every series as a table and a figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from harness.errors import MissingDependency, UsageError
from harness.trend import Series, read_series
from harness.trend_figure import draw_series
from harness.trend_text import render_series, series_json


@dataclass(frozen=True, slots=True)
class Trends:
    """All series, for a person line by line, and for machines."""

    lines: tuple[RenderableType, ...]
    data: dict[str, Any]


def trends(results: Path) -> Trends:
    """Reads every series below `results/trend` and draws each beside its file, where matplotlib is installed.

    Raises:
        UsageError: there is no such folder.
        RecordError: a series cannot be read.
        MissingDependency: what finds change points is not installed.
    """
    if not results.is_dir():
        raise UsageError(f"--results: found no folder {results}; allowed: where bench run keeps its results")
    found = [read_series(path) for path in sorted((results / "trend").glob("*.jsonl"))]
    lines: list[RenderableType] = [] if found else [f"no series in {results / 'trend'}: bench nightly appends to one"]
    for series in found:
        lines += [render_series(series), _figure(series)]
    return Trends(tuple(lines), {"series": [series_json(series) for series in found]})


def _figure(series: Series) -> str:
    try:
        return f"figure: {draw_series(series)}"
    except MissingDependency as missing:
        return f"no figure: {missing}"
