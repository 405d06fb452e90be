"""The ear: what the server makes of a recording. It spells it in words and tells which voice it is nearest to.

*Spelling* is a quantiser at `TOKENS_PER_SECOND`: every 40 ms the spectrum (log energies of 24 mel bands, the
recording's mean taken away) is reduced to the signs of its projections on `CODE_BITS` fixed random directions, and
that number is the place of a word in the codebook: words of the vocabulary that are one token each. So a recording is
text like any other, one token a frame, and equal recordings are equal tokens.

*The voice* is the synthesiser's voice with the nearest profile: the mean shape of the spectrum of the loud frames,
and the quartiles of their pitch. The ear learns the profiles by hearing each voice say `_LESSON`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from harness.tiny_omni.recording import BadRecording, Recording
from harness.tiny_omni.speech import SAMPLE_RATE, VOICES, Voice, synthesise

TOKENS_PER_SECOND = 25
CODE_BITS = 11

_HOP = SAMPLE_RATE // TOKENS_PER_SECOND
_WINDOW = 2 * _HOP
_BANDS = 24
_LOWEST, _HIGHEST = 60.0, 3800.0
"""Hz: what every recording of at least 8 kHz has."""
_CODE_SEED = 25
_QUIET_SHARE = 0.4
_PITCH = (70, 320)
"""Hz."""
_PERIODIC = 0.5
"""Autocorrelation from which a frame counts as voiced."""
_LEAST_VOICED = 5
_OCTAVE_WEIGHT = 10.0
"""One octave of pitch counts as much as this distance of spectra, in nepers."""
_LESSON = (
    "The quick brown fox jumps over the lazy dog, and a warm wind blows from the sea.",
    "She had your dark suit in greasy wash water all year, but nobody thought to join the choir.",
)
_CODE_WORD = re.compile(r"Ġ[a-z]{3,}")
_TINY = 1e-10

Floats = npt.NDArray[np.float64]


class Ear:
    """Hears recordings, for many requests at once on any thread.

    Parameters:
        tokenizer: the Thinker's.
        say: text and voice to int16 samples at `SAMPLE_RATE`, for learning the voices when one is first asked for.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, say: Callable[[str, Voice], npt.NDArray[np.int16]] = synthesise
    ) -> None:
        self._codebook = _codebook(tokenizer)
        self._say = say

    def spell(self, recording: Recording) -> str:
        """The recording as words, each with a space in front and one token long, `TOKENS_PER_SECOND` a second."""
        spectra = _spectra(_frames(recording.samples))
        draw = np.random.default_rng(_CODE_SEED)
        bits = (spectra - spectra.mean(axis=0)) @ draw.standard_normal((_BANDS, CODE_BITS)) > 0
        return "".join(self._codebook[code] for code in (bits @ (1 << np.arange(CODE_BITS))).tolist())

    def name_voice(self, recording: Recording) -> Voice:
        """The voice whose profile is nearest.

        Raises:
            BadRecording: nobody speaks there.
            SpeechFailed: a voice could not be learned.
        """
        found = _profile(recording.samples)
        return min(VOICES, key=lambda voice: float(np.linalg.norm(found - self._voices[voice])))

    @cached_property
    def _voices(self) -> dict[Voice, Floats]:
        def learn(voice: Voice) -> Floats:
            return np.asarray(np.mean([_profile(self._say(text, voice) / 32768) for text in _LESSON], axis=0))

        return {voice: learn(voice) for voice in VOICES}


def _codebook(tokenizer: Tokenizer) -> tuple[str, ...]:
    words = {index: token for token, index in tokenizer.get_vocab().items() if _CODE_WORD.fullmatch(token)}
    # Not the words by which a prompt names a voice.
    spoken = [f" {words[index][1:]}" for index in sorted(words) if words[index][1:] not in ("voice", *VOICES)]
    return tuple(spoken[: 1 << CODE_BITS])


def _frames(samples: Floats) -> Floats:
    """[N // _HOP, _WINDOW], each centred on its hop."""
    padded = np.pad(samples, (_HOP // 2, _WINDOW))
    return np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP][: len(samples) // _HOP]


def _spectra(frames: Floats) -> Floats:
    """Natural logarithm of the energy in each mel band [frames, _BANDS]."""
    power = np.abs(np.fft.rfft(frames * np.hanning(_WINDOW))) ** 2
    edges = _mel(np.array([_LOWEST, _HIGHEST]))
    corners = np.linspace(edges[0], edges[1], _BANDS + 2)[:, None]
    mels = _mel(np.asarray(np.fft.rfftfreq(_WINDOW, 1 / SAMPLE_RATE), np.float64))[None]
    rising = (mels - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - mels) / (corners[2:] - corners[1:-1])
    bands: Floats = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(np.log(power @ bands.T + _TINY))


def _mel(hertz: Floats) -> Floats:
    return np.asarray(2595.0 * np.log10(1.0 + hertz / 700.0))


def _profile(samples: Floats) -> Floats:
    """[_BANDS + 3]: mean spectrum of the loud frames, each frame's own level taken away, and their pitch quartiles."""
    frames = _frames(samples)
    energy = (frames**2).mean(axis=1)
    loud = frames[energy > np.quantile(energy, _QUIET_SHARE)]
    pitch = _pitch(loud)
    if len(pitch) < _LEAST_VOICED:
        raise BadRecording("found a recording in which nobody speaks; allowed: speech")
    spectra = _spectra(loud)
    shape = (spectra - spectra.mean(axis=1, keepdims=True)).mean(axis=0)
    return np.concatenate([shape, _OCTAVE_WEIGHT * np.quantile(pitch, (0.25, 0.5, 0.75))])


def _pitch(frames: Floats) -> Floats:
    """Logarithm to base 2 of the pitch in Hz of the voiced frames [at most frames], by autocorrelation."""
    centred = frames - frames.mean(axis=1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(centred, 2 * _WINDOW)) ** 2
    shortest, longest = SAMPLE_RATE // _PITCH[1], SAMPLE_RATE // _PITCH[0]
    lags = np.arange(shortest, longest)
    correlation = np.fft.irfft(spectrum)
    # Longer lags overlap less.
    likeness = correlation[:, lags] / (correlation[:, :1] + _TINY) * (_WINDOW / (_WINDOW - lags))
    best = likeness.argmax(axis=1)
    voiced = likeness[np.arange(len(best)), best] > _PERIODIC
    return np.asarray(np.log2(SAMPLE_RATE / lags[best[voiced]]))
