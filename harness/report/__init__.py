"""The report of a run: pure functions of its records, the same bytes on any machine, without a GPU or a server."""

from __future__ import annotations

from pathlib import Path

from harness.errors import MissingDependency
from harness.report.figures import draw_figures
from harness.report.markdown import render_markdown
from harness.report.model import Report, build_report
from harness.report.terminal import render_terminal
from harness.store import RunStore

__all__ = ["Report", "build_report", "draw_figures", "regenerate", "render_markdown", "render_terminal", "write"]


def regenerate(store: RunStore) -> Path:
    """Write `report.md` and `figures/*.png` into the run's folder from its records; return the report's path."""
    return write(store, build_report(store))


def write(store: RunStore, report: Report) -> Path:
    """Write a report that was built from `store`; return its path.

    Without matplotlib the report is written without figures and says which extra brings them.
    """
    figures: tuple[str, ...] | None
    try:
        figures = tuple(path.name for path in draw_figures(report, store.path / "figures"))
    except MissingDependency:
        figures = None
    return store.write_report("report.md", render_markdown(report, figures))
