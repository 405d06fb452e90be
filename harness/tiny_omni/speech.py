"""Speech from words, with the `flite` synthesiser: the same words and voice give the same samples, bit by bit."""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.errors import MissingDependency
from harness.tiny_omni.errors import TinyOmniError

Voice = Literal["slt", "rms", "awb", "kal16"]
VOICES: tuple[Voice, ...] = ("slt", "rms", "awb", "kal16")
CLEAR_VOICES: tuple[Voice, ...] = ("slt", "rms", "awb")
"""Those a speech recogniser understands best; `kal16` is an older kind of synthesis."""
SAMPLE_RATE = 16_000
"""Hz, of every voice above."""
SYNTHESIS_TIMEOUT = 30.0
"""Seconds one call may take; a piece of speech takes some hundredths of one."""


class SpeechFailed(TinyOmniError):
    pass


@dataclass(frozen=True, slots=True)
class Speech:
    """One spoken piece: its words, with a space in front where another piece came before, and int16 mono samples at
    `SAMPLE_RATE`. The transcripts of a request's pieces, joined, are what was said."""

    transcript: str
    pcm: npt.NDArray[np.int16]


def require_flite() -> None:
    """Make sure that `flite` runs here and has every voice of `VOICES`.

    Raises:
        MissingDependency: it does not; the message says how to install it.
    """
    program = shutil.which("flite")
    advice = "install it (apt install flite, or brew install flite) or start the server with --no-audio"
    if program is None:
        raise MissingDependency(f"audio needs the program flite, which is not on PATH; {advice}")
    listed = subprocess.run([program, "-lv"], capture_output=True, text=True, timeout=SYNTHESIS_TIMEOUT, check=False)
    found = listed.stdout.partition(":")[2].split()
    missing = [voice for voice in VOICES if voice not in found]
    if missing:
        raise MissingDependency(
            f"{program}: found voices {' '.join(found) or 'none'}; needed: {' '.join(VOICES)}; {advice}"
        )


def synthesise(text: str, voice: Voice) -> npt.NDArray[np.int16]:
    """Say `text`: int16 mono samples [N] at `SAMPLE_RATE`.

    Raises:
        SpeechFailed: the synthesiser failed, took longer than `SYNTHESIS_TIMEOUT` or wrote another form of audio.
    """
    with tempfile.TemporaryDirectory(prefix="tiny-omni-") as folder:
        path = Path(folder) / "speech.wav"
        command = ["flite", "-voice", voice, "-t", text, "-o", str(path)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=SYNTHESIS_TIMEOUT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SpeechFailed(f"flite could not say {text!r}: {error}") from error
        if done.returncode != 0 or not path.is_file():
            raise SpeechFailed(f"flite could not say {text!r}: exit {done.returncode}: {done.stderr.strip()}")
        with wave.open(str(path), "rb") as audio:
            form = (audio.getnchannels(), audio.getsampwidth(), audio.getframerate())
            if form != (1, 2, SAMPLE_RATE):
                raise SpeechFailed(f"flite voice {voice}: found (channels, bytes, Hz) {form}; needed: (1, 2, 16000)")
            return np.frombuffer(audio.readframes(audio.getnframes()), dtype="<i2").astype(np.int16)


def encode_wav(pcm: npt.NDArray[np.int16]) -> bytes:
    """A complete RIFF file of int16 mono samples at `SAMPLE_RATE`."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(2)
        audio.setframerate(SAMPLE_RATE)
        audio.writeframes(pcm.astype("<i2").tobytes())
    return buffer.getvalue()
