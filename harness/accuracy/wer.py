"""Word error rate: how many words must change to turn what was asked for into what was heard.

Edits are those of jiwer's alignment (a minimal one). The rate of one utterance is `edits / words`, uncapped: a
babbling answer scores above 1. Edge cases are those of jiwer 4:

* an empty reference counts as one word: 0 when nothing was heard, else the number of words heard;
* an empty hypothesis is all deletions, so 1;
* no hypothesis at all (the request failed, no audio came) scores 1 and is counted as failed, whatever the reference.

Nothing is left out of a mean: a silent server must not look better than one that mumbles.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.accuracy.normalise import Normaliser
from harness.accuracy.packages import load_package

HIGH = 0.5
"""The rate above which an utterance counts into `share_high` (Seed-TTS's own threshold)."""


@dataclass(frozen=True, slots=True)
class ItemWer:
    """One utterance. `reference` and `hypothesis` are normalised; `hypothesis` is None for a failed request."""

    reference: str
    hypothesis: str | None
    substitutions: int
    deletions: int
    insertions: int
    hits: int

    @property
    def words(self) -> int:
        """Words of the reference."""
        return self.substitutions + self.deletions + self.hits

    @property
    def edits(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def failed(self) -> bool:
        return self.hypothesis is None

    @property
    def wer(self) -> float:
        return 1.0 if self.failed else self.edits / max(1, self.words)


@dataclass(frozen=True, slots=True)
class WerSummary:
    """One arm's utterances.

    Parameters:
        items: utterances, failed ones included.
        failed: those without a hypothesis, each scored 1.
        silent: those whose hypothesis is empty after normalisation.
        mean: mean of the utterances' rates: the figure that pull requests quote.
        median: their median.
        corpus: all edits over all words; a failed utterance deletes its words. NaN without a word.
        share_high: share of utterances whose rate is above 0.5.
        edits, words: of the whole corpus.
    """

    items: int
    failed: int
    silent: int
    mean: float
    median: float
    corpus: float
    share_high: float
    edits: int
    words: int


def item_wer(reference: str, hypothesis: str | None, normalise: Normaliser) -> ItemWer:
    """Score one utterance.

    Parameters:
        reference: what was asked for, as written.
        hypothesis: what was heard, as transcribed; None when there is nothing to listen to.
        normalise: applied to both.
    """
    wanted = normalise(reference)
    if hypothesis is None:
        return ItemWer(wanted, None, substitutions=0, deletions=len(wanted.split()), insertions=0, hits=0)
    heard = normalise(hypothesis)
    output = load_package("jiwer", "WER").process_words(wanted, heard)
    return ItemWer(wanted, heard, output.substitutions, output.deletions, output.insertions, output.hits)


def summarise(items: Sequence[ItemWer]) -> WerSummary:
    """Raises ValueError for no utterance: no data is not a rate of 0."""
    if not items:
        raise ValueError("a summary needs at least one utterance")
    rates = [item.wer for item in items]
    edits, words = sum(item.edits for item in items), sum(item.words for item in items)
    return WerSummary(
        items=len(items),
        failed=sum(item.failed for item in items),
        silent=sum(item.hypothesis == "" for item in items),
        mean=math.fsum(rates) / len(rates),
        median=statistics.median(rates),
        corpus=edits / words if words else math.nan,
        share_high=sum(rate > HIGH for rate in rates) / len(rates),
        edits=edits,
        words=words,
    )
