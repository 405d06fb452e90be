"""The records of accuracy: what was asked, how each answer scored, and what a check's scores come to.

accuracy/<check>.items.jsonl (`Item`), accuracy/<check>/<slug>.jsonl (`ItemScore`), accuracy/<check>/summary.json
(`CheckSummary`), all below the run. Paths in them are relative to the run.
"""

from __future__ import annotations

from typing import Literal

from harness.accuracy.decision import Decision, Verdict, gravest
from harness.records import SCHEMA, Record

Language = Literal["en", "zh"]


class Item(Record):
    """One thing asked: what should come back, and what it is compared with."""

    id: str
    index: int
    """Of the prompt; a request's answer has the same."""
    language: Language = "en"
    expected: str | None = None
    reference: str | None = None
    """WAV of the voice to compare with."""
    options: tuple[str, ...] = ()
    gold: str | None = None


class ItemScore(Record):
    """One answer of one trial. What a check does not measure is null."""

    id: str
    index: int
    status: Literal["ok", "failed"]
    error: str | None = None
    text: str = ""
    """As it was returned."""
    audio: str | None = None
    """Its WAV; null where no audio came."""
    audio_seconds: float | None = None
    heard: str | None = None
    """What the recogniser heard; null where there was nothing to hear."""
    reference: str | None = None
    """The words that should be said, normalised."""
    hypothesis: str | None = None
    """The words heard, normalised."""
    substitutions: int | None = None
    deletions: int | None = None
    insertions: int | None = None
    edits: int | None = None
    words: int | None = None
    wer: float | None = None
    sim: float | None = None
    letter: str | None = None
    how: str | None = None
    """What made the reply mean its letter, or none."""
    gold: str | None = None
    correct: bool | None = None
    flags: tuple[str, ...] = ()
    """Why a score is what it is: failed request, no audio, empty transcript, no letter."""


class WerFigures(Record):
    """Words of one arm's answers over all its rounds; `mean` is the figure that pull requests quote."""

    mean: float
    median: float
    corpus: float | None
    share_high: float
    edits: int
    words: int
    silent: int


class ArmScores(Record):
    """One arm's answers to one check, all scored rounds together."""

    arm: str
    rounds: tuple[int, ...]
    answers: int
    failed: int
    """Failed requests and answers without the audio that was asked for: scored as wrong."""
    wer: WerFigures | None = None
    sim_mean: float | None = None
    sim_min: float | None = None
    correct: int | None = None
    accuracy: float | None = None
    """Right answers over all questions."""
    unparsed: tuple[str, ...] = ()
    """Ids of the replies without a letter."""


class Flipped(Record):
    """A question that an arm answered with another letter than the baseline in the same round."""

    id: str
    round: int
    arm: str
    gold: str
    base: str | None
    other: str | None


class ParityFigures(Record):
    """An arm's answers beside the baseline's, rounds pooled; a control is the baseline beside itself."""

    arm: str
    control: bool
    rounds: str
    compared: int
    missing: int
    equal: int
    differ: int
    empty: int
    first_difference: int | None
    """Median first differing character."""
    audio_equal: int
    audio_differ: int
    audio_ratio: float | None
    """Audio seconds over the baseline's, minus one."""


class CheckSummary(Record):
    """One check of a run: how its answers scored, with what, and whether that is accepted."""

    schema_version: int = SCHEMA
    check: str
    measure: Literal["speech", "choice", "parity"]
    items: int
    recogniser: str | None = None
    """Name, model, digest, package and options, in one line."""
    normaliser: str | None = None
    encoder: str | None = None
    arms: tuple[ArmScores, ...]
    flips: tuple[Flipped, ...] = ()
    parity: tuple[ParityFigures, ...] = ()
    judgements: tuple[Decision, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        """The gravest of its judgements; None where the scenario accepts anything."""
        return gravest(self.judgements) if self.judgements else None
