"""A series of nights as a table, and as JSON."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.report.text import NONE, percent
from harness.trend import RowSeries, Series, change_points, rows_of


def render_series(series: Series) -> RenderableType:
    """A line per row of the series: how many nights, where it was, where it is, since when."""
    found = Table(title=Text(series.path.stem), title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for name in ("bench", "arm", "metric", "nights", "first night", "last night", "level since", "alarms"):
        found.add_column(name, justify="right" if name in ("nights", "first night", "last night") else "left")
    for row in rows_of(series.nights):
        starts = change_points(row.points)
        alarms = [alarm for alarm in series.alarms if (alarm.bench, alarm.arm, alarm.metric) == _key(row)]
        found.add_row(
            Text(row.bench or NONE),
            Text(row.arm),
            Text(row.metric),
            str(len(row.points)),
            percent(row.points[0].change),
            percent(row.points[-1].change),
            Text(row.nights[starts[-1]].run if starts else "the first night"),
            Text(", ".join(alarm.since for alarm in alarms) or NONE, style="bold red" if alarms else ""),
        )
    return Group(found, *(Text(f"ALARM on {alarm.seen}: {alarm.text}", style="red") for alarm in series.alarms))


def series_json(series: Series) -> dict[str, Any]:
    """JSON-able; changes are shares, against the baseline arm of the same night."""
    return {
        "series": series.path.stem,
        "nights": [night.run for night in series.nights],
        "rows": [
            {
                "bench": row.bench or None,
                "arm": row.arm,
                "metric": row.metric,
                "nights": [night.run for night in row.nights],
                "changes": [point.change for point in row.points],
                "errors": [point.error for point in row.points],
                "change_points": [row.nights[start].run for start in change_points(row.points)],
            }
            for row in rows_of(series.nights)
        ],
        "alarms": [alarm.model_dump(exclude={"kind", "schema_version"}) for alarm in series.alarms],
    }


def _key(row: RowSeries) -> tuple[str, str, str]:
    return row.bench, row.arm, row.metric
