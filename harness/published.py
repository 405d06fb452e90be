"""Published tables: what others measured, as CSV files under results/published/. Never mixed with what was run here."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError

COLUMNS = (
    "bench",
    "stage0_hit",
    "cache_off_req_per_s",
    "main_on_ratio",
    "stack_on_ratio",
    "stack_ratio_min",
    "stack_ratio_max",
    "main_ttfp_ratio",
    "stack_ttfp_ratio",
)


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One bench of a published table. Ratios are quotients minus one against the cache off; hit rates are shares.

    Parameters:
        hit: lowest and highest hit rate of stage 0 over the rounds.
        cache_off: request throughput with the cache off, 1/s.
        older: ratio of request throughput with the older cache.
        improved: the same with the improved one.
        improved_range: smallest and largest of its per-round ratios.
        older_ttfp: ratio of the median time to the first audio; None for a bench that does not speak.
        improved_ttfp: the same with the improved cache.
    """

    bench: str
    hit: tuple[float, float]
    cache_off: float
    older: float
    improved: float
    improved_range: tuple[float, float]
    older_ttfp: float | None
    improved_ttfp: float | None


def read_published(path: Path) -> tuple[PublishedRow, ...]:
    """The rows of a published table, in the file's order.

    Raises:
        UsageError: no such file, other columns, a cell that is no number, or a bench twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    reader = csv.reader(text.splitlines(), strict=True)
    rows = []
    try:
        head = next(reader, [])
        if tuple(head) != COLUMNS:
            raise UsageError(f"{path}:1: found {','.join(head) or 'nothing'}; allowed: {','.join(COLUMNS)}")
        for cells in reader:
            if len(cells) != len(COLUMNS):
                raise UsageError(f"{path}:{reader.line_num}: found {len(cells)} cells; allowed: {len(COLUMNS)}")
            rows.append(_row(_Cells(path, reader.line_num, dict(zip(COLUMNS, cells, strict=True)))))
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: found what is not CSV ({error})") from None
    names = [row.bench for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{path}: found bench {name} twice; allowed: once")
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class _Cells:
    """One line while it is read."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        return self.cells[column].strip()

    def number(self, column: str, text: str | None = None) -> float:
        found = self.text(column) if text is None else text
        try:
            value = float(found)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(column, repr(found), "a number")
        return value

    def optional(self, column: str) -> float | None:
        return self.number(column) if self.text(column) else None

    def hit(self, column: str) -> tuple[float, float]:
        """`92.6%`, or `0.3%..64.7%` where rounds differ."""
        ends = self.text(column).split("..")
        if len(ends) > 2 or not all(end.endswith("%") for end in ends):
            raise self.error(column, repr(self.text(column)), "a percentage such as 92.6%, or two with .. between")
        low, *high = (self.number(column, end.removesuffix("%")) / 100.0 for end in ends)
        return low, high[0] if high else low

    def error(self, column: str, found: str, allowed: str) -> UsageError:
        return UsageError(f"{self.path}:{self.line}: {column}: found {found}; allowed: {allowed}")


def _row(cells: _Cells) -> PublishedRow:
    return PublishedRow(
        bench=cells.text("bench"),
        hit=cells.hit("stage0_hit"),
        cache_off=cells.number("cache_off_req_per_s"),
        older=cells.number("main_on_ratio"),
        improved=cells.number("stack_on_ratio"),
        improved_range=(cells.number("stack_ratio_min"), cells.number("stack_ratio_max")),
        older_ttfp=cells.optional("main_ttfp_ratio"),
        improved_ttfp=cells.optional("stack_ttfp_ratio"),
    )
