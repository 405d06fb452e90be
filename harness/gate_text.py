# ruff: noqa: RUF002 - the tables print a real minus sign
"""What a gate found, for a terminal, for machines, and for the summary of a CI job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.gate import Check, GateResult, Outcome
from harness.report.terminal import columns
from harness.report.text import NONE, between, count, percent, table
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
_WHY = 20
"""Columns in which a reason still reads well; a longer one is wrapped."""


def render_gate(result: GateResult, run: str) -> RenderableType:
    """Every check, and the outcome of all of them: a table, or where that does not fit a block of lines per check."""
    return Group(_Checks(result, run), Text(sentence(result), style=_STYLES[result.outcome]))


@dataclass(frozen=True, slots=True)
class _Checks:
    """The checks in the form that fits the terminal they are printed on; nothing is cut."""

    result: GateResult
    run: str

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        found = _table(self.result, self.run)
        longest = max((len(check.why) for check in self.result.checks), default=0)
        if columns(found) - max(0, longest - _WHY) <= options.max_width:
            yield found
            return
        yield Text(f"gate of {self.run}, intervals at {LEVEL:.0%}", style="italic")
        for check in self.result.checks:
            yield from _block(check)


def _table(result: GateResult, run: str) -> Table:
    found = Table(
        title=Text(f"gate of {run}"), title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for name in _HEAD:
        side: Literal["left", "right"] = "left" if name in _LEFT else "right"
        # A word longer than its column is folded, where rich would cut it.
        found.add_column(Text(name), justify=side, no_wrap=name != "why", overflow="fold")
    for check in result.checks:
        found.add_row(*(Text(cell, style=_STYLES[check.outcome]) for cell in _cells(check)))
    return found


def _block(check: Check) -> Iterator[Text]:
    """`regressed: DEC_c64, cache_on, request_throughput`, the numbers, and the reason."""
    numbers = [
        *([f"change {percent(check.change)}"] if check.change is not None else []),
        *([f"interval {between(check.interval)}"] if check.interval is not None else []),
        *([f"allowed {allowed(check.bounds)}"] if check.bounds is not None else []),
        count(check.rounds, "round"),
    ]
    place = ", ".join(part for part in (check.bench, check.arm, check.metric) if part)
    yield Text.assemble((f"{check.outcome.value}: ", _STYLES[check.outcome]), place)
    yield Text(f"  {', '.join(numbers)}")
    if check.why:
        yield Text(f"  {check.why}")


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
