"""Two compared runs as text, Markdown tables included, and as JSON data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from harness.compare import ChangeRow, RunComparison, Unfinished
from harness.report.accuracy_text import VERDICT_SAYS
from harness.report.text import NONE, count, listed, mean_and_interval, percent, significant, table
from harness.stats import LEVEL, REQUEST_THROUGHPUT


def render_comparison(found: RunComparison) -> str:
    """Which run is unfinished, what differs, and how the ratio to the baseline and each arm's throughput changed."""
    parts = [*map(_unfinished, found.unfinished), f"{found.first} -> {found.second}", _differences(found)]
    ratios = [row for row in found.ratios if row.metric == REQUEST_THROUGHPUT.key]
    if ratios:
        parts += [
            "Request throughput against the baseline arm of the same round, and its change between the runs:",
            _table(found, ratios, lambda value: percent(value)),
        ]
    parts += [
        "Request throughput (req/s) of each arm by itself; what differed on the day does not cancel here:",
        _table(found, found.absolute, significant),
    ]
    if found.scores:
        parts += ["Accuracy, over the answers of all rounds, and what each check came to:", _scores(found)]
    return "\n\n".join(parts)


def to_json(found: RunComparison) -> dict[str, Any]:
    """JSON-able; ratios and changes are shares, an absent number is null."""
    return asdict(found)


def _unfinished(one: Unfinished) -> str:
    """As the run's report says it, with the run's name."""
    return (
        f"UNFINISHED RUN {one.run}: {one.planned - len(one.missing)} of {count(one.planned, 'trial')} have a record. "
        f"Everything below rests on those alone. Not run: {listed(list(one.missing))}."
    )


def _differences(found: RunComparison) -> str:
    if not found.differences:
        return "Nothing else that was recorded differs."
    return table(
        ["differs", found.first, found.second, "must match"],
        [
            [each.what, each.first, each.second, "yes: compared by force" if each.blocks else "no"]
            for each in found.differences
        ],
        left=4,
    )


def _table(found: RunComparison, rows: Iterable[ChangeRow], shown: Any) -> str:
    head = ["bench", "arm", found.first, found.second, f"change ({LEVEL:.0%} interval)", "rounds"]
    return table(head, [_cells(row, shown) for row in rows], left=2)


def _scores(found: RunComparison) -> str:
    head = ["check", "arm", "score", found.first, found.second, "answers", "verdicts"]
    return table(
        head,
        [
            [
                row.check,
                row.arm or NONE,
                row.score,
                *(_score(row.score, value) for value in (row.first, row.second)),
                ", ".join(map(str, row.answers)),
                ", ".join(NONE if verdict is None else VERDICT_SAYS[verdict] for verdict in row.verdicts),
            ]
            for row in found.scores
        ],
        left=3,
        words=("verdicts",),
    )


def _score(name: str, value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.3f}" if name == "SIM" else percent(value, signed=False)


def _cells(row: ChangeRow, shown: Any) -> Sequence[str]:
    first, second = (NONE if side.value is None else shown(side.value) for side in (row.first, row.second))
    change = NONE
    if row.change is not None:
        change = percent(row.change) if row.interval is None else mean_and_interval(row.change, row.interval)
    return [row.bench, row.arm, first, second, change, f"{row.first.rounds}, {row.second.rounds}"]
