"""Output parity: whether two arms gave the same answers to the same prompts.

Servers that batch are not deterministic between runs, so a parity is read beside its control: the baseline
against itself in another round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Difference:
    """One prompt answered with two texts; `position` is the first differing character, from 0."""

    index: int
    position: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts over compared requests; `absent`: one side or both have nothing to compare."""

    equal: int = 0
    differ: int = 0
    absent: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(self.equal + other.equal, self.differ + other.differ, self.absent + other.absent)


@dataclass(frozen=True, slots=True)
class Parity:
    """How far the answers of two cells agree, paired by prompt index.

    `compared` pairs completed on both sides; `missing` did not, or have no partner. Of the compared texts,
    `texts.absent` are empty on both sides and count as neither equal nor different.
    """

    compared: int = 0
    missing: int = 0
    texts: Agreement = Agreement()
    differences: tuple[Difference, ...] = ()
    digests: Agreement = Agreement()
    transcripts: Agreement = Agreement()
    base_audio_seconds: float = field(default=0.0)
    """Sum over the compared requests that carry audio on both sides."""
    other_audio_seconds: float = field(default=0.0)

    @property
    def audio_ratio(self) -> float | None:
        """Audio seconds of the other arm over the baseline's, minus one; None without audio."""
        if self.base_audio_seconds <= 0.0:
            return None
        return self.other_audio_seconds / self.base_audio_seconds - 1.0

    @property
    def median_position(self) -> int | None:
        """Median first differing character (the lower one of two); None where no text differs."""
        positions = sorted(one.position for one in self.differences)
        return positions[(len(positions) - 1) // 2] if positions else None


def first_difference(base: str, other: str) -> int | None:
    """Index of the first differing character; the shorter length if one is a prefix; None when equal."""
    if base == other:
        return None
    for position, (left, right) in enumerate(zip(base, other, strict=False)):
        if left != right:
            return position
    return min(len(base), len(other))


def parity(base: Sequence[RequestRecord], other: Sequence[RequestRecord]) -> Parity:
    """Compare the answers of two cells of the same bench, request by request."""
    left = {request.index: request for request in base}
    right = {request.index: request for request in other}
    both = [
        (left[index], right[index])
        for index in sorted(left.keys() & right.keys())
        if left[index].status == "ok" and right[index].status == "ok"
    ]
    differences = [
        Difference(one.index, position)
        for one, two in both
        if (position := first_difference(one.text, two.text)) is not None
    ]
    spoken = [
        (one.audio_seconds, two.audio_seconds)
        for one, two in both
        if one.audio_seconds is not None and two.audio_seconds is not None
    ]
    return Parity(
        compared=len(both),
        missing=len(left.keys() | right.keys()) - len(both),
        texts=Agreement(
            equal=sum(one.text == two.text != "" for one, two in both),
            differ=len(differences),
            absent=sum(one.text == two.text == "" for one, two in both),
        ),
        differences=tuple(differences),
        digests=_agreement((one.audio_sha256, two.audio_sha256) for one, two in both),
        transcripts=_agreement((one.audio_transcript, two.audio_transcript) for one, two in both),
        base_audio_seconds=math.fsum(seconds for seconds, _ in spoken),
        other_audio_seconds=math.fsum(seconds for _, seconds in spoken),
    )


def over_rounds(parities: Iterable[Parity]) -> Parity:
    """Several rounds' parities of one bench and arm as one."""
    all_of = tuple(parities)
    return Parity(
        compared=sum(one.compared for one in all_of),
        missing=sum(one.missing for one in all_of),
        texts=sum((one.texts for one in all_of), Agreement()),
        differences=tuple(difference for one in all_of for difference in one.differences),
        digests=sum((one.digests for one in all_of), Agreement()),
        transcripts=sum((one.transcripts for one in all_of), Agreement()),
        base_audio_seconds=math.fsum(one.base_audio_seconds for one in all_of),
        other_audio_seconds=math.fsum(one.other_audio_seconds for one in all_of),
    )


def _agreement(pairs: Iterable[tuple[str | None, str | None]]) -> Agreement:
    equal = differ = absent = 0
    for one, two in pairs:
        if not one or not two:
            absent += 1
        elif one == two:
            equal += 1
        else:
            differ += 1
    return Agreement(equal, differ, absent)
