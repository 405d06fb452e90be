"""Multiple choice: how often the letter is right, which replies have none, and where two arms differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.accuracy.letter import LETTERS, Extraction, extract


@dataclass(frozen=True, slots=True)
class ChoiceItem:
    """One question. `gold` is its right letter; `reply` is None for a failed request."""

    id: str
    gold: str
    reply: str | None
    extraction: Extraction

    @property
    def letter(self) -> str | None:
        return self.extraction.letter

    @property
    def correct(self) -> bool:
        return self.letter == self.gold


@dataclass(frozen=True, slots=True)
class ChoiceSummary:
    """One arm's answers; `unparsed` (a reply without a letter) and `failed` are ids, and count as wrong."""

    items: int
    correct: int
    unparsed: tuple[str, ...]
    failed: tuple[str, ...]

    @property
    def accuracy(self) -> float:
        """Right answers over all questions (vLLM-Omni divides by successful requests)."""
        return self.correct / self.items


@dataclass(frozen=True, slots=True)
class Flip:
    """One question that two arms answered with different letters; None is no letter."""

    id: str
    gold: str
    base: str | None
    other: str | None

    @property
    def lost(self) -> bool:
        """Whether the baseline was right, so that the other arm is wrong."""
        return self.base == self.gold

    @property
    def won(self) -> bool:
        return self.other == self.gold


def score(item_id: str, gold: str, reply: str | None, letters: str = LETTERS) -> ChoiceItem:
    """Raises ValueError unless `gold` is one of `letters`."""
    if len(gold) != 1 or gold not in letters:
        raise ValueError(f"{item_id}: gold: found {gold!r}; allowed: one of {', '.join(letters)}")
    return ChoiceItem(item_id, gold, reply, extract(reply, letters))


def summarise(items: Sequence[ChoiceItem]) -> ChoiceSummary:
    """Raises ValueError for no question: no data is not an accuracy of 0."""
    if not items:
        raise ValueError("a summary needs at least one question")
    return ChoiceSummary(
        items=len(items),
        correct=sum(item.correct for item in items),
        unparsed=tuple(item.id for item in items if item.reply is not None and item.letter is None),
        failed=tuple(item.id for item in items if item.reply is None),
    )


def flips(base: Mapping[str, ChoiceItem], other: Mapping[str, ChoiceItem]) -> tuple[Flip, ...]:
    """Questions, by id and in the baseline's order, on which the letters differ.

    Raises ValueError when the two were not asked the same questions.
    """
    if base.keys() != other.keys():
        raise ValueError(f"questions asked of one side alone: {', '.join(sorted(base.keys() ^ other.keys()))}")
    return tuple(
        Flip(item.id, item.gold, item.letter, other[key].letter)
        for key, item in base.items()
        if item.letter != other[key].letter
    )
