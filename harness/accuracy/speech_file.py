"""Speech as a file: PCM as it was received, in a WAV."""

from __future__ import annotations

import io
import wave

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
