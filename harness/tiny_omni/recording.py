"""A recording that a request carries: base64 WAV to samples."""

from __future__ import annotations

import base64
import binascii
import io
import wave
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import resample_poly

from harness.tiny_omni.errors import TinyOmniError
from harness.tiny_omni.speech import SAMPLE_RATE

LEAST_SECONDS = 0.5
MOST_SECONDS = 30.0
_LEAST_RATE = 8_000
_MOST_RATE = 192_000
_SAMPLE_BYTES = 2


class BadRecording(TinyOmniError):
    """A recording that cannot be heard: the message reads `found ...; allowed: ...`."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Float64 mono samples [N] between -1 and 1 at `SAMPLE_RATE`."""

    samples: npt.NDArray[np.float64]


def read_data_url(url: str) -> Recording:
    """The recording of `data:audio/wav;base64,...`; the media type may be any, the content must be WAV.

    Raises:
        BadRecording: another kind of URL, or see `read_base64`.
    """
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise BadRecording(f"found {url[:40]!r}; allowed: data:audio/wav;base64,...")
    return read_base64(data)


def read_base64(data: str) -> Recording:
    """The recording of a WAV file in base64.

    Raises:
        BadRecording: not base64, not WAV, another form than 16-bit PCM, or of a length or rate not allowed.
    """
    try:
        return read_wav(base64.b64decode(data, validate=True))
    except binascii.Error:
        raise BadRecording(f"found {data[:40]!r}, which is not base64; allowed: a WAV file in base64") from None


def read_wav(data: bytes) -> Recording:
    """The recording of a WAV file; channels are averaged, the rate is brought to `SAMPLE_RATE`.

    Raises:
        BadRecording: see `read_base64`.
    """
    try:
        with wave.open(io.BytesIO(data), "rb") as audio:
            channels, width, rate = audio.getnchannels(), audio.getsampwidth(), audio.getframerate()
            frames = audio.readframes(audio.getnframes())
    except (wave.Error, EOFError) as error:
        raise BadRecording(f"found {len(data)} bytes that are no PCM WAV file ({error}); allowed: 16-bit PCM") from None
    if width != _SAMPLE_BYTES:
        raise BadRecording(f"found {8 * width}-bit samples; allowed: 16-bit PCM")
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise BadRecording(f"found {rate} Hz; allowed: {_LEAST_RATE} to {_MOST_RATE}")
    whole = len(frames) // (width * channels)
    seconds = whole / rate
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise BadRecording(f"found {seconds:.2f} s; allowed: {LEAST_SECONDS:g} to {MOST_SECONDS:g} s")
    pcm = np.frombuffer(frames, dtype="<i2", count=whole * channels).reshape(whole, channels)
    samples = pcm.mean(axis=1) / 32768
    return Recording(samples if rate == SAMPLE_RATE else resample_poly(samples, SAMPLE_RATE, rate))
