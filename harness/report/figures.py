"""Figures of a report, as PNG. matplotlib is imported only when one is drawn."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.atomic import write_atomic
from harness.errors import MissingDependency
from harness.report.model import MainRow, PerformanceRow, Report, Series
from harness.report.text import MINUS, percent
from harness.stats import LEVEL, MEDIAN_E2EL, MEDIAN_TTFP, MEDIAN_TTFT, Metric, Verdict

# Okabe and Ito's colours: told apart with every kind of colour vision, and in print.
_ARMS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_BASELINE = "#555555"
_VERDICTS = {
    Verdict.FASTER: "#009E73",
    Verdict.SLOWER: "#D55E00",
    Verdict.SAME: "#0072B2",
    Verdict.INCONCLUSIVE: "#888888",
    Verdict.INVALID: "#888888",
}
_TICKS = (-90, -80, -60, -40, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50, 100, 200, 400, 800, 1600, 3200)
_LINEAR_PERCENT = 3.0
_LATENCIES = (MEDIAN_TTFT, MEDIAN_E2EL, MEDIAN_TTFP)
# Any: the stubs spell out every key of rcParams, and only some versions have them.
_STYLE: Any = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "ytick.left": False,
    "axes.axisbelow": True,
    # A report must not change with the machine's fonts.
    "font.family": "DejaVu Sans",
}


def draw_figures(report: Report, out_dir: Path) -> tuple[Path, ...]:
    """Draw what the records allow into `out_dir` and return the files.

    A figure without a single valid pair behind it is not drawn. Raises `MissingDependency` without matplotlib.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(
            "figures need matplotlib: install the extra with `pip install 'omni-prefix-bench[figures]'`"
        ) from error
    drawn: list[Path] = []
    with mpl.rc_context(_STYLE):
        for name, draw in (("throughput.png", _throughput), ("latency.png", _latency)):
            figure = draw(report, Figure)
            if figure is not None:
                drawn.append(_write(figure, out_dir / name))
    return tuple(drawn)


def _write(figure: Any, path: Path) -> Path:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, facecolor="white", bbox_inches="tight", pad_inches=0.15)
    write_atomic(path, buffer.getvalue())
    return path


def _throughput(report: Report, figure_type: Any) -> Any | None:
    rows = [row for row in report.main if row.throughput.rounds]
    if not rows:
        return None
    figure = figure_type(figsize=(10.0, 1.7 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    band = rows[0].throughput.band
    axes.axvspan(band.low * 100, band.high * 100, color="#0072B2", alpha=0.10, lw=0)
    axes.axvline(0, color="#333333", lw=0.8)
    for place, row in enumerate(rows):
        _ratio_row(axes, place, row)
    several = len(report.others) > 1
    _label_rows(axes, [f"{row.bench.name}, {row.arm}" if several else row.bench.name for row in rows])
    axes.set_xscale("asinh", linear_width=_LINEAR_PERCENT)
    bounds = [value for row in rows for value in _extent(row)] + [band.low * 100 * 1.6, band.high * 100 * 1.6]
    _percent_axis(axes, min(bounds), max(bounds))
    who = "".join(report.others) if not several else "each arm"
    axes.set_title(f"Request throughput of {who} against {report.baseline}: geometric mean of the rounds")
    axes.set_xlabel(
        f"change (linear near 0, logarithmic beyond ±{_LINEAR_PERCENT:.0f}%); "
        f"shaded: {percent(band.low)} .. {percent(band.high)}, counts as the same"
    )
    _ratio_legend(figure, rows)
    return figure


def _extent(row: MainRow) -> list[float]:
    one = row.throughput
    intervals = [bounds for bounds in (one.spread, one.interval) if bounds is not None]
    # An interval of two rounds can be wider than any page: it is cut at the axis, its bounds are in the table.
    return [min(max(value * 100, -90.0), 3200.0) for bounds in intervals for value in (bounds.low, bounds.high)]


def _ratio_row(axes: Any, place: int, row: MainRow) -> None:
    one = row.throughput
    assert one.geometric is not None
    colour = _VERDICTS[one.verdict]
    if one.interval is not None:
        axes.plot(
            [max(one.interval.low * 100, -99.0), one.interval.high * 100],
            [place, place],
            color=colour,
            lw=3.2,
            alpha=0.55,
            solid_capstyle="butt",
            zorder=2,
        )
    axes.scatter(
        [each.ratio * 100 for each in one.rounds],
        [place] * len(one.rounds),
        s=22,
        facecolor="white",
        edgecolor=colour,
        linewidth=0.9,
        zorder=3,
    )
    axes.scatter([one.geometric * 100], [place], s=34, marker="D", color=colour, zorder=4, linewidth=0)
    axes.annotate(
        f"{percent(one.geometric)}  {one.verdict}",
        (1.01, place),
        xycoords=("axes fraction", "data"),
        va="center",
        color=colour,
        annotation_clip=False,
    )


def _ratio_legend(figure: Any, rows: Sequence[MainRow]) -> None:
    from matplotlib.lines import Line2D

    grey = "#555555"
    handles = [
        Line2D([], [], marker="D", color=grey, lw=0, ms=5, label="geometric mean"),
        Line2D([], [], marker="o", markerfacecolor="white", color=grey, lw=0, ms=5, label="one round"),
    ]
    if any(row.throughput.interval is not None for row in rows):
        handles.append(Line2D([], [], color=grey, lw=3.2, alpha=0.55, label=f"{LEVEL:.0%} interval"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8.5)


def _percent_axis(axes: Any, low: float, high: float) -> None:
    """Ticks at round percentages, thinned so that their labels do not touch."""

    def scaled(value: float) -> float:
        return math.asinh(value / _LINEAR_PERCENT)

    room = 0.04 * (scaled(high) - scaled(low))
    left, right = scaled(low) - room, scaled(high) + room
    # Zero first, then outwards: it is the one tick that must stay.
    kept: list[int] = []
    for tick in sorted(_TICKS, key=abs):
        inside = left <= scaled(tick) <= right
        if inside and all(abs(scaled(tick) - scaled(other)) > 0.085 * (right - left) for other in kept):
            kept.append(tick)
    axes.set_xlim(_LINEAR_PERCENT * math.sinh(left), _LINEAR_PERCENT * math.sinh(right))
    axes.set_xticks(sorted(kept), [f"{tick:+d}%".replace("-", MINUS) if tick else "0" for tick in sorted(kept)])
    axes.set_xticks([], minor=True)
    axes.grid(axis="x", color="#dddddd", lw=0.7)


def _label_rows(axes: Any, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)


def _latency(report: Report, figure_type: Any) -> Any | None:
    rows = [row for row in report.performance if any(_find(row, metric) for metric in _LATENCIES)]
    shown = [metric for metric in _LATENCIES if any(_find(row, metric) for row in rows)]
    if not rows:
        return None
    benches = list(dict.fromkeys(row.bench for row in rows))
    arms = list(report.scenario.arms)
    others = iter(_ARMS)
    colours = {arm: _BASELINE if arm == report.baseline else next(others, "#000000") for arm in arms}
    height = 1.4 + (0.2 + 0.2 * len(arms)) * len(benches)
    figure = figure_type(figsize=(2.2 + 3.2 * len(shown), height), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, shown, strict=True):
        for row in rows:
            series = _find(row, metric)
            if series is not None:
                offset = (arms.index(row.arm) - (len(arms) - 1) / 2) * 0.6 / max(len(arms), 2)
                _latency_row(axes, benches.index(row.bench) + offset, series, colours[row.arm])
        for edge in range(1, len(benches)):
            axes.axhline(edge - 0.5, color="#eeeeee", lw=0.8)
        _label_rows(axes, benches)
        _millisecond_axis(axes)
        axes.set_title(f"{metric.label} ({metric.unit})")
    _arm_legend(figure, colours)
    return figure


def _find(row: PerformanceRow, metric: Metric) -> Series | None:
    return next((series for series in row.series if series.metric == metric and series.by_round), None)


def _latency_row(axes: Any, place: float, series: Series, colour: str) -> None:
    values = [value for _, value in series.by_round]
    axes.plot([min(values), max(values)], [place, place], color=colour, lw=1.6, alpha=0.6, zorder=2)
    axes.scatter(values, [place] * len(values), s=16, facecolor="white", edgecolor=colour, linewidth=0.9, zorder=3)
    axes.scatter([series.mean], [place], s=30, marker="D", color=colour, linewidth=0, zorder=4)
    if series.comparison is not None and series.comparison.ratio is not None:
        axes.annotate(
            percent(series.comparison.ratio),
            (max(values), place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=colour,
        )


def _millisecond_axis(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    # A decade at least, so that noise does not fill the page, and room for the label of the slowest.
    low, high = min(low, math.sqrt(low * high / 10)), max(high, math.sqrt(low * high * 10))
    high *= (high / low) ** 0.15
    axes.set_xlim(low, high)
    decades = math.log10(high / low)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 2.5 else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x", color="#dddddd", lw=0.7)


def _arm_legend(figure: Any, colours: dict[str, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker="D", color=colour, lw=1.6, ms=5, label=f"{arm}, mean") for arm, colour in colours.items()
    ]
    grey = "#777777"
    handles.append(Line2D([], [], marker="o", markerfacecolor="white", color=grey, lw=0, ms=4, label="one round"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8.5)
