"""An edit distance of our own, the oracle of the word error rate: the textbook recurrence and nothing else."""

from __future__ import annotations

from collections.abc import Sequence


def distance(one: Sequence[str], two: Sequence[str]) -> int:
    row = list(range(len(two) + 1))
    for number, left in enumerate(one, start=1):
        above = row
        row = [number]
        for column, right in enumerate(two, start=1):
            row.append(min(above[column] + 1, row[column - 1] + 1, above[column - 1] + (left != right)))
    return row[-1]
