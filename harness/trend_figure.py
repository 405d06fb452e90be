"""A series of nights as a figure: a panel per metric, a line per bench and arm, each against its first night."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from harness.atomic import write_atomic
from harness.errors import MissingDependency
from harness.trend import RowSeries, Series, rows_of


def draw_series(series: Series) -> Path:
    """Draws a series beside its file, `<series>.png`; the figure's path.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("it needs matplotlib: pip install 'omni-prefix-bench[figures]'") from None
    rows = rows_of(series.nights)
    metrics = list(dict.fromkeys(row.metric for row in rows))
    figure: Any = Figure(figsize=(9.0, 2.4 * max(len(metrics), 1)), layout="constrained")
    panels = figure.subplots(max(len(metrics), 1), 1, sharex=True, squeeze=False)[:, 0]
    place = {night.run: position for position, night in enumerate(series.nights)}
    for axes, metric in zip(panels, metrics, strict=False):
        for row in rows:
            if row.metric == metric:
                _line(axes, row, place)
        for alarm in series.alarms:
            if alarm.metric == metric and alarm.since in place:
                axes.axvline(place[alarm.since] - 0.5, color="#D55E00", lw=1.0, ls="--")
        axes.axhline(0, color="#999999", lw=0.6)
        axes.set_title(metric, loc="left", fontsize=9)
        axes.set_ylabel("since the first (%)", fontsize=8)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7, frameon=False)
    panels[-1].set_xticks(range(len(place)), [night.at[:10] for night in series.nights], rotation=45, fontsize=7)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, facecolor="white")
    path = series.path.with_suffix(".png")
    write_atomic(path, buffer.getvalue())
    return path


def _line(axes: Any, row: RowSeries, place: dict[str, int]) -> None:
    nights = [place[night.run] for night in row.nights]
    # Against the first night: a gain of 300% and one of 3% move on one scale.
    first = 1 + row.points[0].change
    values = [100 * ((1 + point.change) / first - 1) for point in row.points]
    # A standard error in logarithms is one of the quotient, to first order.
    errors = [100 * (point.error or 0.0) * (1 + point.change) / first for point in row.points]
    axes.errorbar(
        nights, values, yerr=errors, marker="o", ms=3, lw=1.1, capsize=2, label=f"{row.bench} {row.arm}".strip()
    )
