"""Speech as a file: PCM as it was received, in a WAV."""

from __future__ import annotations

import hashlib
import io
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt


def wav_bytes(pcm: npt.NDArray[np.int16], rate: int) -> bytes:
    """One WAV, 16-bit little-endian.

    Parameters:
        pcm: int16, shape (frames,) or (frames, channels).
        rate: frames per second.
    """
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1 if pcm.ndim == 1 else pcm.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm.astype("<i2").tobytes())
    return content.getvalue()


def pcm_sha256(path: Path) -> str | None:
    """Digest of a WAV's samples, as a request's record holds it; None where there is no such file, or no WAV."""
    try:
        with wave.open(str(path), "rb") as file:
            return hashlib.sha256(file.readframes(file.getnframes())).hexdigest()
    except (OSError, EOFError, wave.Error):
        return None
