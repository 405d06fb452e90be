"""The accuracy check: what is sent for the sake of the answers, how they are scored, what difference is accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from harness._scenario_bench import Bench, Block
from harness._scenario_types import Count, Frozen, Positive, refusal

Measure = Literal["speech", "choice", "parity"]
Normaliser = Literal["whisper-english", "seed-tts"]
SpeakerEncoder = Literal["resemblyzer", "wavlm"]
_Rate = Annotated[float, Field(ge=0.0)]
_Similarity = Annotated[float, Field(ge=-1.0, le=1.0)]


class Wer(Frozen):
    """How words are heard and compared.

    `model` is the path of a Whisper checkpoint or a name that is cached; a path with a slash in it starts at the
    file's folder. `${NAME}` in it is a variable of bench's own environment, `${NAME:-PATH}` with a default; it is
    looked up when scores are made.
    """

    recogniser: str = "whisper"
    """`whisper`, or `module:function` from the path of a WAV to text."""
    model: str | None = None
    beam: Positive = 5
    device: str = "cpu"
    normaliser: Normaliser = "whisper-english"

    @model_validator(mode="after")
    def _check_recogniser(self) -> Self:
        if self.recogniser != "whisper" and not re.fullmatch(r"[\w.]+:[\w.]+", self.recogniser):
            raise refusal(repr(self.recogniser), "whisper, or module:function", "recogniser")
        if self.recogniser == "whisper" and not self.model:
            raise refusal("none", "the path of a Whisper checkpoint, or a name that is cached", "model")
        return self


class Sim(Frozen):
    """How voices are compared. `model` is written as in `Wer`; null: the weights of Resemblyzer's own package."""

    encoder: SpeakerEncoder = "resemblyzer"
    model: str | None = None
    device: str = "cpu"


class Accept(Frozen):
    """What is accepted; what is not named is reported and not judged. Rates and similarities are shares."""

    max_wer: _Rate | None = None
    """Of every arm: the mean over its utterances."""
    max_wer_increase: _Rate | None = None
    """Of an arm over the baseline, utterance by utterance."""
    min_sim: _Similarity | None = None
    max_sim_decrease: _Rate | None = None
    max_flips: Count | None = None
    """Questions answered with another letter than the baseline's."""
    max_differing: Count | None = None
    """Requests answered with another text than the baseline's."""


_JUDGES: dict[str, tuple[str, ...]] = {
    "max_wer": ("speech", "parity"),
    "max_wer_increase": ("speech", "parity"),
    "min_sim": ("speech",),
    "max_sim_decrease": ("speech",),
    "max_flips": ("choice",),
    "max_differing": ("parity",),
}
_SUITED: dict[Measure, tuple[str, ...]] = {
    "speech": ("seed_tts", "conversation"),
    "choice": ("conversation", "daily_omni"),
}


class Check(Bench):
    """One accuracy check: a load whose answers are scored. It runs after the benches and is never in their tables."""

    reported: bool = False
    measure: Measure
    wer: Wer | None = None
    sim: Sim | None = None
    accept: Accept = Accept()

    def _refusals(self) -> Iterator[PydanticCustomError]:
        yield from super()._refusals()
        if self.client != "bench":
            yield refusal(f"{self.client!r}", "bench: the answers' audio is kept", "client")
        suited = _SUITED.get(self.measure)
        if suited is not None and self.dataset not in suited:
            yield refusal(f"{self.dataset!r}", f"{' or '.join(suited)} with measure {self.measure}", "dataset")
        yield from self._measure_refusals()
        for key, measures in _JUDGES.items():
            if getattr(self.accept, key) is None:
                continue
            if self.measure not in measures:
                yield refusal(f"{key} with measure {self.measure}", f"measure {' or '.join(measures)}", "accept", key)
            elif "wer" in key and self.wer is None:
                yield refusal(f"{key} without wer", "both, or neither", "accept", key)
            elif "sim" in key and self.sim is None:
                yield refusal(f"{key} without sim", "both, or neither", "accept", key)

    def _measure_refusals(self) -> Iterator[PydanticCustomError]:
        wanted = "text" if self.measure == "choice" else "audio"
        if (self.measure != "parity" or self.wer is not None) and wanted not in self.modalities:
            yield refusal(f"[{', '.join(self.modalities)}]", f"{wanted} among them: it is what is scored", "modalities")
        if self.task == "transcribe" and self.measure == "speech":
            yield refusal("'transcribe'", "clone or speak with measure speech", "task")
        if self.measure == "speech" and self.wer is None and self.sim is None:
            yield refusal("measure speech without wer and sim", "one of them, or both", "measure")
        if self.measure == "choice" and self.wer is not None:
            yield refusal("wer with measure choice", "measure speech or parity", "wer")
        if self.sim is not None and (self.measure, self.task) != ("speech", "clone"):
            yield refusal("sim", "measure speech with task clone: a voice needs a reference", "sim")
        if self.wer is not None and self.locale == "zh" and self.wer.normaliser == "whisper-english":
            yield refusal("'whisper-english'", "seed-tts with locale zh", "wer", "normaliser")


class AccuracyBlock(Block):
    """One block of `accuracy` in a file: a block of workloads, and how its answers are scored."""

    reported: bool = False
    measure: Measure
    wer: Wer | None = None
    sim: Sim | None = None
    accept: Accept = Accept()

    def settings(self) -> dict[str, Any]:
        shared = super().settings()
        return shared | {"measure": self.measure, "wer": self.wer, "sim": self.sim, "accept": self.accept}

    @model_validator(mode="after")
    def _check_reported(self) -> Self:
        if self.reported:
            raise refusal("true", "false: accuracy checks are no benches", "reported")
        return self
