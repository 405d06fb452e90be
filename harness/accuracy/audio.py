"""Recorded speech as arrays: one channel, float32, at the rate a model wants."""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.errors import RecordError

SPEECH_RATE = 16_000
"""Frames per second that speech models take: Whisper, WavLM and Resemblyzer alike."""


@dataclass(frozen=True, slots=True)
class Waveform:
    """One channel of sound.

    Parameters:
        samples: float32, shape (frames,), full scale at -1 and 1.
        rate: frames per second.
    """

    samples: npt.NDArray[np.float32]
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    @property
    def silent(self) -> bool:
        """Whether there is nothing to hear: no frame, or only zeros."""
        return not self.samples.any()

    @property
    def level(self) -> float:
        """Root mean square in dB below full scale; -inf for silence."""
        if self.silent:
            return -math.inf
        return 10.0 * math.log10(float(np.mean(np.square(self.samples, dtype=np.float64))))


def read_wav(path: Path) -> Waveform:
    """Read a WAV: integers of 8 to 32 bits or floats, any rate; channels are averaged.

    Raises:
        RecordError: no such file, or not a WAV we can read.
    """
    from scipy.io import wavfile

    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: found no readable file ({error.strerror}); allowed: a WAV file") from None
    # scipy raises ValueError, struct.error, UnboundLocalError and more.
    try:
        with warnings.catch_warnings():
            # Cue points, tags and other chunks we have no use for.
            warnings.simplefilter("ignore", wavfile.WavFileWarning)
            rate, frames = wavfile.read(io.BytesIO(data))
    except Exception as error:
        raise RecordError(
            f"{path}: found {len(data)} bytes beginning with {data[:12]!r} ({error}); allowed: a WAV file, PCM or float"
        ) from None
    if rate <= 0:
        raise RecordError(f"{path}: found a rate of {rate} Hz; allowed: above 0")
    samples = _to_float(frames)
    return Waveform(samples if samples.ndim == 1 else samples.mean(axis=1, dtype=np.float32), int(rate))


def at_rate(wave: Waveform, rate: int = SPEECH_RATE) -> Waveform:
    """Resample with a polyphase filter (scipy's `resample_poly`), which has no ringing at the ends."""
    if wave.rate == rate or not len(wave.samples):
        return Waveform(wave.samples, rate)
    from scipy.signal import resample_poly

    common = math.gcd(wave.rate, rate)
    samples = resample_poly(wave.samples, rate // common, wave.rate // common)
    return Waveform(np.ascontiguousarray(samples, dtype=np.float32), rate)


def at_level(wave: Waveform, level: float) -> Waveform:
    """Scaled to a root mean square of `level` dB below full scale; silence stays silence. Peaks may pass full scale."""
    if wave.silent:
        return wave
    return Waveform((wave.samples * 10.0 ** ((level - wave.level) / 20.0)).astype(np.float32), wave.rate)


def _to_float(frames: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Full scale to 1. scipy hands 24 bits over in the upper bytes of int32."""
    if frames.dtype == np.uint8:
        return (frames.astype(np.float32) - 128.0) / 128.0
    if np.issubdtype(frames.dtype, np.integer):
        full = 2.0 ** (8 * frames.dtype.itemsize - 1)
        return (frames.astype(np.float64) / full).astype(np.float32)
    return np.nan_to_num(frames.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
