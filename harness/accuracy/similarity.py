"""Whether two recordings are of one voice: the cosine between their speaker embeddings.

A similarity means nothing without its encoder: `resemblyzer` puts two speakers of one language near 0.5 to 0.6 and
the same speaker near 0.9, `wavlm` mean-pooled puts everybody above 0.7. Compare only results with one label.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from harness.accuracy.audio import SPEECH_RATE, Waveform, at_level, at_rate, read_wav
from harness.accuracy.label import ModelLabel, package_version, sha256_of, weights_in
from harness.accuracy.packages import brief, load_package
from harness.errors import MissingDependency, UsageError

Embedding = npt.NDArray[np.float32]

EncoderName = Literal["resemblyzer", "wavlm"]

MAX_SECONDS = 30.0
"""What WavLM hears of a recording, from its start (vLLM-Omni's Seed-TTS evaluation)."""
MIN_SAMPLES = 4_000
"""Shorter recordings are padded with zeros for WavLM, whose convolutions need them (same source)."""
MIN_SPEAKER_SAMPLES = 8_000
"""The same for a speaker head, whose convolutions over time need 15 frames of 20 ms."""


class Encoder(Protocol):
    """Hears who speaks. `label` may read the weights, and `embed` loads them at its first call."""

    @property
    def label(self) -> ModelLabel: ...

    def embed(self, wave: Waveform) -> Embedding:
        """Float32, shape (size,), of unit length. `wave` must not be silent; its rate may be any."""
        ...


class Resemblyzer:
    """Resemblyzer's encoder; speech is brought to -30 dB first.

    Parameters:
        model: its weights (`pretrained.pt`); None for those of the installed package.
        device: a torch device.

    Raises:
        MissingDependency: no weights were given and the package is not installed.
        UsageError: no such file.
    """

    def __init__(self, model: str | None = None, *, device: str = "cpu") -> None:
        self.path = _find_resemblyzer() if model is None else _file(model)
        self._from_package = model is None
        self._device = device
        self._network: Callable[[Embedding], Embedding] | None = None
        self._label: ModelLabel | None = None

    @property
    def label(self) -> ModelLabel:
        if self._label is None:
            self._label = ModelLabel(
                kind="resemblyzer",
                model=self.path.name if self._from_package else str(self.path),
                sha256=sha256_of(self.path),
                package=package_version("Resemblyzer" if self._from_package else "torch"),
                options=f"device={self._device}",
            )
        return self._label

    def embed(self, wave: Waveform) -> Embedding:
        from harness.accuracy import ge2e

        if self._network is None:
            self._network = ge2e.SpeakerNetwork(self.path, self._device)
        return self._network(at_level(at_rate(wave, ge2e.RATE), ge2e.LEVEL).samples)


class WavLM:
    """WavLM through transformers, from files on this machine.

    A model with a speaker head (`WavLMForXVector`, as `wavlm-base-plus-sv`) gives its x-vector; any other the mean of
    its last hidden states over time, which is what vLLM-Omni reports as SIM (with `wavlm-base-plus`).

    Parameters:
        model: folder of a transformers model, with its feature extractor.
        device: a torch device.

    Raises:
        MissingDependency: transformers is not installed.
        UsageError: no such folder, or not a model of this kind.
    """

    def __init__(self, model: str, *, device: str = "cpu") -> None:
        self.path = Path(model).expanduser()
        if not (self.path / "config.json").is_file():
            raise UsageError(
                f"sim.model: found {model!r}, a folder without config.json or none at all, and nothing is downloaded; "
                "allowed: the folder of a WavLM model (microsoft/wavlm-base-plus is the one vLLM-Omni reports)"
            )
        load_package("transformers", "encoder wavlm")
        self._device = device
        self._loaded: tuple[Any, Any, bool] | None = None
        self._label: ModelLabel | None = None

    @property
    def label(self) -> ModelLabel:
        """Loads the model, since only that tells how its states are pooled."""
        if self._label is None:
            _, _, speaker_head = self._load()
            weights = weights_in(self.path)
            pooling = "x-vector" if speaker_head else "mean-pooled"
            self._label = ModelLabel(
                kind="wavlm",
                model=str(self.path),
                sha256=sha256_of(weights) if weights else None,
                package=package_version("transformers"),
                options=f"{pooling} first {MAX_SECONDS:g} s device={self._device}",
            )
        return self._label

    def embed(self, wave: Waveform) -> Embedding:
        import torch

        extract, model, speaker_head = self._load()
        samples = at_rate(wave, SPEECH_RATE).samples[: int(MAX_SECONDS * SPEECH_RATE)]
        shortest = MIN_SPEAKER_SAMPLES if speaker_head else MIN_SAMPLES
        samples = np.pad(samples, (0, max(0, shortest - len(samples))))
        # One recording, so nothing is to be masked.
        inputs = extract(samples, sampling_rate=SPEECH_RATE, return_tensors="pt", return_attention_mask=False)
        with torch.inference_mode():
            output = model(**inputs.to(self._device))
            raw = output.embeddings if speaker_head else output.last_hidden_state.mean(dim=1)
        return unit(raw[0].float().cpu().numpy())

    def _load(self) -> tuple[Any, Any, bool]:
        if self._loaded is None:
            transformers = load_package("transformers", "encoder wavlm")
            try:
                config = transformers.AutoConfig.from_pretrained(self.path, local_files_only=True)
                if config.model_type != "wavlm":
                    raise UsageError(f"sim.model: found {self.path}, a {config.model_type}; allowed: wavlm")
                speaker_head = "WavLMForXVector" in (config.architectures or ())
                kind = transformers.AutoModelForAudioXVector if speaker_head else transformers.AutoModel
                extract = transformers.AutoFeatureExtractor.from_pretrained(self.path, local_files_only=True)
                model = kind.from_pretrained(self.path, local_files_only=True).to(self._device).eval()
            except (OSError, ValueError, RuntimeError) as error:
                raise UsageError(
                    f"sim.model: found {self.path}, which does not load on {self._device} "
                    f"({brief(error)}); allowed: the folder of a WavLM model"
                ) from error
            self._loaded = extract, model, speaker_head
        return self._loaded


class VoiceSimilarity:
    """Scores recordings against references, each of which is embedded once."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._references: dict[Path, Embedding] = {}

    def score(self, reference: Path, generated: Path | None) -> float:
        """Cosine between the two voices, in [-1, 1]; 0 when `generated` is None or silent.

        Raises:
            RecordError: a file that cannot be read.
            UsageError: a silent reference.
        """
        if reference not in self._references:
            wave = read_wav(reference)
            if wave.silent:
                raise UsageError(f"{reference}: found silence; allowed: a recording of the voice to compare with")
            self._references[reference] = self.encoder.embed(wave)
        spoken = None if generated is None else read_wav(generated)
        if spoken is None or spoken.silent:
            return 0.0
        return cosine(self._references[reference], self.encoder.embed(spoken))


def open_encoder(encoder: str, model: str | None = None, *, device: str = "cpu") -> Encoder:
    """The encoder a scenario's `sim` block names; raises as `Resemblyzer` and `WavLM` do."""
    if encoder == "resemblyzer":
        return Resemblyzer(model, device=device)
    if encoder != "wavlm":
        raise UsageError(f"sim.encoder: found {encoder!r}; allowed: {', '.join(get_args(EncoderName))}")
    if model is None:
        raise UsageError("sim.model: found none; allowed: for wavlm, the folder of a transformers model")
    return WavLM(model, device=device)


def cosine(one: npt.NDArray[np.floating[Any]], two: npt.NDArray[np.floating[Any]]) -> float:
    """Cosine of the angle between two vectors of one shape; 0 when either has no length."""
    left, right = one.astype(np.float64), two.astype(np.float64)
    length = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(np.clip(left @ right / length, -1.0, 1.0)) if length > 0.0 else 0.0


def unit(vector: npt.NDArray[np.floating[Any]]) -> Embedding:
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length if length > 0.0 else vector).astype(np.float32)


def _find_resemblyzer() -> Path:
    spec = importlib.util.find_spec("resemblyzer")
    folders = (spec.submodule_search_locations if spec else None) or ()
    for folder in folders:
        if (weights := Path(folder) / "pretrained.pt").is_file():
            return weights
    raise MissingDependency(
        "encoder resemblyzer: found no weights; install them: pip install --no-deps Resemblyzer==0.1.4 (its own "
        "requirements are not needed), or give sim.model, the path of its pretrained.pt"
    )


def _file(model: str) -> Path:
    path = Path(model).expanduser()
    if not path.is_file():
        raise UsageError(f"sim.model: found no file {model!r}; allowed: Resemblyzer's pretrained.pt")
    return path
