"""Every round of every bench, so that drift and outliers show without opening a record. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from harness.pairs import Pair
from harness.stats import Metric


@dataclass(frozen=True, slots=True)
class RoundCell:
    """The two values of one round; None where a side was not measured.

    `state`: whether the pair counts, was measured but does not, or still lacks a trial.
    """

    round: int
    base: float | None
    other: float | None
    state: Literal["valid", "dropped", "pending"]

    @property
    def ratio(self) -> float | None:
        """Other over base, minus one; None where either has no number to take it of."""
        if not self.base or self.other is None:
            return None
        return self.other / self.base - 1.0


@dataclass(frozen=True, slots=True)
class RoundsRow:
    """All rounds of one bench and arm, in order."""

    bench: str
    arm: str
    cells: tuple[RoundCell, ...]


def rounds_of(pairs: Iterable[Pair], metric: Metric) -> tuple[RoundsRow, ...]:
    """One row per bench and arm, in the order of `pairs`; a dropped pair keeps the values it was measured with."""
    rows: dict[tuple[str, str], list[RoundCell]] = {}
    for pair in pairs:
        base, other = (None if cell is None else getattr(cell, metric.key) for cell in (pair.base, pair.other))
        state: Literal["valid", "dropped", "pending"] = (
            "pending" if pair.pending else "valid" if pair.valid else "dropped"
        )
        rows.setdefault((pair.bench, pair.arm), []).append(RoundCell(pair.round, base, other, state))
    return tuple(RoundsRow(bench, arm, tuple(cells)) for (bench, arm), cells in rows.items())
