"""Whether a run needs more rounds than were planned, and why: pure functions of its pairs (docs/design.md, section 7).

Two rules of the scenario file add rounds, and no person's patience does. Rounds in which a pair did not count are
replaced, up to `validity.replace_rounds`. Then `until` adds rounds in pairs, which keeps an `abba` plan balanced, up
to its `max_rounds`. Neither looks at the direction of a change, only at whether and how precisely it is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.pairs import Pair
from harness.records import Extension
from harness.scenario import Scenario
from harness.stats import REQUEST_THROUGHPUT, Comparison, Interval, Metric, compare

_PAIR = 2


@dataclass(frozen=True, slots=True)
class MoreRounds:
    """How many rounds to append, by which rule, and the sentence that says why."""

    count: int
    reason: Literal["replacement", "until"]
    why: str


def more_rounds(
    scenario: Scenario, rounds: int, extensions: Sequence[Extension], pairs: Sequence[Pair]
) -> MoreRounds | None:
    """What to append to a plan of which every trial has ended; None where it is enough.

    Parameters:
        rounds: of the plan as it is.
        extensions: how it grew so far.
        pairs: all of the run.
    """
    rows = comparisons(scenario, pairs)
    return _replacement(scenario, extensions, rows) or _until(scenario, rounds, rows)


def comparisons(
    scenario: Scenario, pairs: Sequence[Pair], metric: Metric = REQUEST_THROUGHPUT
) -> tuple[Comparison, ...]:
    """One metric of every reported bench and arm."""
    by_row: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        by_row.setdefault((pair.bench, pair.arm), []).append(pair)
    threshold = scenario.validity.practical_threshold
    return tuple(compare(mine, metric, threshold=threshold) for mine in by_row.values())


def half_width(interval: Interval) -> float:
    """Half the width of an interval relative to its centre, as a share: of -1% to +1% it is 1%, of +99% to +101% too.

    Both are even in logarithms, as the interval is.
    """
    return math.sqrt((1.0 + interval.high) / (1.0 + interval.low)) - 1.0


def _replacement(scenario: Scenario, extensions: Sequence[Extension], rows: Sequence[Comparison]) -> MoreRounds | None:
    replaced = sum(len(one.rounds) for one in extensions if one.reason == "replacement")
    # What never counted once fails by itself: another round would fail as well.
    short = [row for row in rows if row.dropped and 0 < len(row.rounds) < scenario.rounds]
    missing = max((scenario.rounds - len(row.rounds) for row in short), default=0)
    count = min(missing, scenario.validity.replace_rounds - replaced)
    if count <= 0:
        return None
    lost = sorted({pair.round for row in short for pair in row.dropped})
    names = ", ".join(dict.fromkeys(f"{row.bench} {row.arm}" for row in short))
    which = f"round{'' if len(lost) == 1 else 's'} {', '.join(map(str, lost))}"
    return MoreRounds(count, "replacement", f"in {which} a pair did not count ({names})")


def _until(scenario: Scenario, rounds: int, rows: Sequence[Comparison]) -> MoreRounds | None:
    rule = scenario.until
    if rule is None or rounds + _PAIR > rule.max_rounds:
        return None
    wide = {
        f"{row.bench} {row.arm}": math.inf if row.interval is None else half_width(row.interval)
        for row in rows
        if row.rounds
    }
    name, worst = max(wide.items(), key=lambda item: item[1], default=("", 0.0))
    if worst <= rule.half_width:
        return None
    found = "no interval yet" if math.isinf(worst) else f"an interval of ±{worst:.2%}"
    return MoreRounds(_PAIR, "until", f"{name} has {found}; wanted: ±{rule.half_width:.2%}")


def until_met(scenario: Scenario, rows: Sequence[Comparison]) -> bool | None:
    """Whether every bench's interval is as narrow as `until` asks; None without that rule."""
    if scenario.until is None:
        return None
    return all(row.interval is not None and half_width(row.interval) <= scenario.until.half_width for row in rows)
