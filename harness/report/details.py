"""Sections of the report behind its tables of means: every round, and what the output cache did meanwhile."""

from __future__ import annotations

from harness.report.cache_work import BUFFERED, COUNTS, STEPS, TIMES, CacheWorkRow, Work
from harness.report.model import Report
from harness.report.rounds import RoundCell
from harness.report.text import NONE, percent, significant, table


def rounds(report: Report) -> str:
    """Baseline and arm side by side, a column a round; empty where nothing was planned against the baseline."""
    if not report.rounds:
        return ""
    several = len(report.others) > 1
    numbers = sorted({cell.round for row in report.rounds for cell in row.cells})
    rows = []
    for row in report.rounds:
        by_round = {cell.round: _round(cell) for cell in row.cells}
        rows.append([row.bench, *([row.arm] if several else []), *(by_round.get(number, NONE) for number in numbers)])
    who = "the arm" if several else f"`{report.others[0]}`"
    head = ["bench", *(["arm"] if several else []), *(f"round {number}" for number in numbers)]
    return "\n\n".join(
        (
            "## Rounds",
            table(head, rows, left=2 if several else 1),
            f"Request throughput of `{report.baseline}` → {who} in req/s, and their ratio. A row that moves from left "
            "to right shows drift; the order and times of the trials are under Provenance.",
        )
    )


def _round(cell: RoundCell) -> str:
    if cell.state == "pending":
        return "not run"
    base, other = (NONE if value is None else significant(value) for value in (cell.base, cell.other))
    if cell.state == "dropped":
        return f"{base} → {other} (dropped)"
    return f"{base} → {other} ({NONE if cell.ratio is None else percent(cell.ratio)})"


def cache_work(report: Report) -> str:
    """Only for servers that publish the cache's own series, and only the series that are there."""
    rows = report.cache_work
    if not rows:
        return ""
    names = [name for name in (STEPS, BUFFERED, *COUNTS, *TIMES) if any(name in row.work for row in rows)]
    return "\n\n".join(
        (
            "## The output cache's own work",
            table(
                ["bench", "arm", *(_title(name) for name in names)],
                [[row.bench, row.arm, *(_cell(row, name) for name in names)] for row in rows],
                left=2,
            ),
            "Means over the valid rounds of what the cache's own counters (`prefix_cache:*`) grew by around a bench; "
            "times in brackets as a share of the bench's duration. Copy-out is time in the engine's step; writes and "
            "gathers run on the cache's own thread beside it; a merge is time of the thread that asked for the rows, "
            "waiting for their gather included. So shares overlap and do not add up to a slowdown.",
        )
    )


def _title(name: str) -> str:
    if name in TIMES:
        return f"{TIMES[name]} (ms)"
    return {STEPS: "steps", BUFFERED: "of them buffered", **COUNTS}[name]


def _cell(row: CacheWorkRow, name: str) -> str:
    one = row.work.get(name)
    if one is None:
        return NONE
    partial = "" if one.rounds == row.rounds else f" [{one.rounds} of {row.rounds} rounds]"
    return _amount(one, name) + partial


def _amount(one: Work, name: str) -> str:
    if one.mean == 0 and name != BUFFERED:
        return "0"
    if name in TIMES:
        text = significant(one.mean * 1000, 3)
        return text if one.share is None else f"{text} ({percent(one.share, signed=False)})"
    if name == BUFFERED and one.share is not None:
        return percent(one.share, signed=False)
    return f"{one.mean:.0f}"
