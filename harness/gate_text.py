# ruff: noqa: RUF002 - the tables print a real minus sign
"""What a gate found, for a terminal, for machines, and for the summary of a CI job."""

from __future__ import annotations

import math
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.gate import Check, GateResult, Outcome
from harness.report.text import NONE, between, percent, table
from harness.stats import LEVEL, Interval

_STYLES = {
    Outcome.PASS: "green",
    Outcome.REGRESSED: "bold red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.INVALID: "magenta",
    Outcome.REPORTED: "dim",
}
_HEAD = ("outcome", "bench", "arm", "metric", "change", f"{LEVEL:.0%} interval", "allowed", "rounds", "why")
_LEFT = ("outcome", "bench", "arm", "metric", "why")


def render_gate(result: GateResult, run: str) -> RenderableType:
    """A table with a line per check, and the outcome of all of them."""
    found = Table(
        title=Text(f"gate of {run}"), title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for name in _HEAD:
        found.add_column(Text(name), justify="left" if name in _LEFT else "right", no_wrap=name != "why")
    for check in result.checks:
        found.add_row(*(Text(cell, style=_STYLES[check.outcome]) for cell in _cells(check)))
    return Group(found, Text(sentence(result), style=_STYLES[result.outcome]))


def gate_markdown(result: GateResult, run: str) -> str:
    """The same for the summary page of a CI job."""
    rows = [_cells(check) for check in result.checks]
    return (
        f"### Gate of {run}: {result.outcome}\n\n{table(_HEAD, rows, left=4, words=('why',))}\n\n{sentence(result)}\n"
    )


def sentence(result: GateResult) -> str:
    """`regressed: 1 of 6 checks (DEC_c64 cache_on request_throughput)`."""
    gravest = [check for check in result.checks if check.outcome is result.outcome]
    if result.outcome in (Outcome.PASS, Outcome.REPORTED):
        return f"{result.outcome}: {len(result.checks)} checks"
    names = ", ".join(dict.fromkeys(check.name for check in gravest))
    return f"{result.outcome}: {len(gravest)} of {len(result.checks)} checks ({names})"


def gate_json(result: GateResult, run: str) -> dict[str, Any]:
    """JSON-able; changes and bounds are shares, an absent number or an open bound is null."""
    return {
        "run": run,
        "outcome": result.outcome.value,
        "exit_code": result.exit_code,
        "checks": [
            {
                "bench": check.bench or None,
                "arm": check.arm or None,
                "metric": check.metric,
                "outcome": check.outcome.value,
                "change": check.change,
                "interval": _bounds(check.interval),
                "allowed": _bounds(check.bounds),
                "rounds": check.rounds,
                "why": check.why,
            }
            for check in result.checks
        ],
    }


def allowed(bounds: Interval | None) -> str:
    """`≥ −3.0%`, `≤ +5.0%`, `−3.0% .. +3.0%`."""
    if bounds is None:
        return NONE
    if math.isinf(bounds.high):
        return f"≥ {percent(bounds.low)}"
    return f"≤ {percent(bounds.high)}" if math.isinf(bounds.low) else between(bounds)


def _cells(check: Check) -> tuple[str, ...]:
    return (
        check.outcome.value,
        check.bench or NONE,
        check.arm or NONE,
        check.metric,
        NONE if check.change is None else percent(check.change),
        between(check.interval),
        allowed(check.bounds),
        str(check.rounds),
        check.why or NONE,
    )


def _bounds(bounds: Interval | None) -> list[float | None] | None:
    if bounds is None:
        return None
    return [value if math.isfinite(value) else None for value in (bounds.low, bounds.high)]
