"""The models that scores are made with, each opened once: a scenario's, or what a command line puts in its place."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from harness.accuracy.normalise import normaliser
from harness.accuracy.packages import load_package
from harness.accuracy.recognise import Recogniser, open_recogniser
from harness.accuracy.similarity import VoiceSimilarity, open_encoder
from harness.errors import UsageError
from harness.scenario import Sim, Wer

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class Instead:
    """What a command line puts in place of the scenario's choice; None leaves it.

    Giving a recogniser or an encoder of another kind without its model takes none, not the other kind's.
    """

    recogniser: str | None = None
    wer_model: str | None = None
    normaliser: str | None = None
    encoder: str | None = None
    sim_model: str | None = None

    def wer(self, wer: Wer) -> Wer:
        model = wer.model if self.recogniser in (None, wer.recogniser) else None
        given = {
            "recogniser": self.recogniser or wer.recogniser,
            "model": self.wer_model or model,
            "normaliser": self.normaliser or wer.normaliser,
        }
        # Not validated: whoever opens them says what is allowed.
        return wer.model_copy(update=given)

    def sim(self, sim: Sim) -> Sim:
        model = sim.model if self.encoder in (None, sim.encoder) else None
        return sim.model_copy(update={"encoder": self.encoder or sim.encoder, "model": self.sim_model or model})


@dataclass(slots=True)
class Ear:
    """A recogniser that hears the same speech once: equal digests are equal samples."""

    recogniser: Recogniser
    _heard: dict[str, str] = field(default_factory=dict)

    def hear(self, wav: Path, digest: str | None) -> str:
        if digest is None:
            return self.recogniser.transcribe(wav)
        if digest not in self._heard:
            self._heard[digest] = self.recogniser.transcribe(wav)
        return self._heard[digest]


@dataclass(slots=True)
class Voices:
    """A similarity that compares the same speech with the same reference once."""

    similarity: VoiceSimilarity
    _scored: dict[tuple[Path, str], float] = field(default_factory=dict)

    def score(self, reference: Path, wav: Path | None, digest: str | None) -> float:
        if wav is None or digest is None:
            return self.similarity.score(reference, wav)
        key = reference, digest
        if key not in self._scored:
            self._scored[key] = self.similarity.score(reference, wav)
        return self._scored[key]


class Models:
    """The models of one scoring; each is opened when first asked for, and checks that name the same share it.

    Nothing is downloaded. What cannot be opened is a `MissingDependency` or a `UsageError` that says what to do.
    """

    def __init__(self, instead: Instead = Instead()) -> None:
        self.instead = instead
        self._ears: dict[tuple[Wer, str], Ear] = {}
        self._voices: dict[Sim, Voices] = {}

    def ear(self, wer: Wer, language: str) -> Ear:
        """The recogniser of a `wer` block, its normaliser and jiwer known to be there."""
        if (wer, language) not in self._ears:
            normaliser(wer.normaliser, language)
            load_package("jiwer", "WER")
            model = None if wer.model is None else expanded(wer.model, "wer.model")
            opened = open_recogniser(wer.recogniser, model, beam=wer.beam, device=wer.device, language=language)
            self._ears[wer, language] = Ear(opened)
        return self._ears[wer, language]

    def voices(self, sim: Sim) -> Voices:
        if sim not in self._voices:
            model = None if sim.model is None else expanded(sim.model, "sim.model")
            self._voices[sim] = Voices(VoiceSimilarity(open_encoder(sim.encoder, model, device=sim.device)))
        return self._voices[sim]


def expanded(text: str, key: str) -> str:
    """The text with `${NAME}` and `${NAME:-DEFAULT}` replaced from the environment.

    Raises:
        UsageError: a variable that is not set and has no default.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1]) or match[2]
        if found is None:
            raise UsageError(f"{key}: found {match[0]}, which is not set; allowed: a variable of the environment")
        return found

    return _VARIABLE.sub(value, text)
