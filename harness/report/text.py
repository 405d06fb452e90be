# ruff: noqa: RUF001, RUF002 - the report prints a real minus sign and a real dash
"""How the report writes numbers: as pull requests do, with a real minus sign and an honest number of digits."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from harness.report.measures import Hit, Spread
from harness.stats import Interval

MINUS = "\u2212"
NONE = "—"
GIB = 1024**3


def percent(ratio: float, *, signed: bool = True) -> str:
    """`−1.4%`, `+355.8%`; unsigned `92.6%`; from a thousandfold on `×1.27e+04`."""
    if ratio >= 999.0:
        return f"×{ratio + 1:.3g}"
    text = f"{ratio * 100:+.1f}%" if signed else f"{ratio * 100:.1f}%"
    return text.replace("-", MINUS)


def significant(value: float, digits: int = 4) -> str:
    """`7.916`, `15.70`, `0.6790`, `1204`: `digits` significant digits, whole numbers above them kept whole."""
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    # Rounding may carry into another digit: 9.9999 is 10.00.
    places = digits - 1 - math.floor(math.log10(abs(round(value, places)))) if places > 0 else places
    return f"{value:.{max(places, 0)}f}".replace("-", MINUS)


def between(interval: Interval | None) -> str:
    """`−2.6% .. +0.0%`."""
    if interval is None:
        return NONE
    return f"{percent(interval.low)} .. {percent(interval.high)}"


def mean_and_interval(geometric: float | None, interval: Interval | None) -> str:
    """`−1.2% (−3.0% .. +0.7%)`; without an interval the mean alone."""
    if geometric is None:
        return NONE
    return percent(geometric) if interval is None else f"{percent(geometric)} ({between(interval)})"


def difference(ratio: float) -> str:
    """A ratio of what should be equal: `equal`, `under ±0.1%`, `+0.3%`."""
    if abs(ratio) < 1e-9:
        return "equal"
    return "under ±0.1%" if abs(ratio) < 0.001 else percent(ratio)


def hit_rate(hit: Hit) -> str:
    """`92.6%`, `0.3%–64.7%` where rounds differ in print, `0 queries` where nothing was looked up."""
    if hit.cells == 0:
        return "not measured"
    if hit.rate is None:
        return "0 queries"
    low, high = percent(hit.rate.low, signed=False), percent(hit.rate.high, signed=False)
    return low if low == high else f"{low}–{high}"


def spread(values: Spread | None, scale: float = 1.0, digits: int = 2) -> str:
    """`15.21–16.08`: smallest and largest, in units of `scale`."""
    if values is None:
        return NONE
    low, high = f"{values.low / scale:.{digits}f}", f"{values.high / scale:.{digits}f}"
    return low if low == high else f"{low}–{high}"


def gib(values: Spread | None) -> str:
    """Bytes as GiB."""
    return spread(values, GIB)


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 round`, `3 rounds`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(items: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, words: Collection[str] = ()) -> str:
    """A pipe table whose first `left` columns and those headed `words` are aligned left, all others right."""
    rule = ["---" if column < left or name in words else "---:" for column, name in enumerate(head)]
    lines = [head, rule, *rows]
    return "\n".join(f"| {' | '.join(_escaped(text) for text in line)} |" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
