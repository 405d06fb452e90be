"""Speech: PCM samples from the pieces a server streams.

vLLM-Omni streams base64 pieces that are each a whole WAV file. A server that streams bare samples, or one WAV whose
header comes in the first piece only, is understood too: a piece without a RIFF header continues in the format of the
piece before it, and with none before it is signed 16-bit little-endian, mono, 24 kHz. The speech endpoint's body is
one WAV stream without base64 or events.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import numpy as np
import numpy.typing as npt

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


class AudioError(ValueError):
    """Bytes that are not speech in a form we read; the message says what was found."""


@dataclass(frozen=True, slots=True)
class Format:
    """How samples are laid out. `kind` is `s16` or `f32`, little-endian, channels interleaved."""

    rate: int = 24_000
    channels: int = 1
    kind: str = "s16"

    @property
    def frame_bytes(self) -> int:
        return self.channels * (2 if self.kind == "s16" else 4)


@dataclass(frozen=True, slots=True)
class Piece:
    """One decoded piece: the bytes of its samples, without header."""

    format: Format
    samples: bytes


@dataclass(frozen=True, slots=True)
class Speech:
    """What one request said.

    Parameters:
        pcm: int16, shape (frames,) for mono, (frames, channels) otherwise.
        rate: frames per second.
    """

    pcm: npt.NDArray[np.int16]
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.pcm) / self.rate

    @property
    def sha256(self) -> str:
        """Digest of the samples as little-endian int16, interleaved."""
        return hashlib.sha256(self.pcm.astype("<i2").tobytes()).hexdigest()

    @classmethod
    def joined(cls, pieces: Iterable[Piece]) -> Self:
        """All pieces in a row. A frame may be cut between two pieces; the formats must agree.

        Raises:
            AudioError: no samples, mixed formats, or half a frame at the end.
        """
        spoken = [piece for piece in pieces if piece.samples]
        if not spoken:
            raise AudioError("no audio samples")
        formats = {piece.format for piece in spoken}
        if len(formats) > 1:
            raise AudioError(f"pieces of different formats: {sorted(map(str, formats))}")
        form = formats.pop()
        data = b"".join(piece.samples for piece in spoken)
        if len(data) % form.frame_bytes:
            raise AudioError(f"{len(data)} bytes of samples are not whole frames of {form.frame_bytes} bytes")
        if form.kind == "s16":
            pcm = np.frombuffer(data, dtype="<i2").astype(np.int16)
        else:
            wave = np.nan_to_num(np.frombuffer(data, dtype="<f4"), nan=0.0).clip(-1.0, 1.0)
            pcm = np.rint(wave * 32767.0).astype(np.int16)
        return cls(pcm if form.channels == 1 else pcm.reshape(-1, form.channels), form.rate)


def decode_pieces(encoded: Iterable[str]) -> list[Piece]:
    """Decode base64 pieces in stream order; an empty one gives a piece without samples.

    Raises:
        AudioError: not base64, or a WAV header we do not read.
    """
    form = Format()
    pieces: list[Piece] = []
    for number, text in enumerate(encoded):
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as exc:
            raise AudioError(f"piece {number} is not base64: {exc}") from None
        if data.startswith(b"RIFF"):
            try:
                form, where = _read_wav(data)
            except AudioError as exc:
                raise AudioError(f"piece {number}: {exc}") from None
            data = data[where]
        pieces.append(Piece(form, data))
    return pieces


def read_body(arrivals: Sequence[tuple[int, bytes]]) -> tuple[Speech, tuple[int, ...]]:
    """The speech of a response whose body is one WAV stream, and the arrivals (ns) that brought samples.

    Parameters:
        arrivals: the body read by read, each with its instant in ns.

    Raises:
        AudioError: no WAV, no samples, or a format we do not read.
    """
    body = b"".join(data for _, data in arrivals)
    if not body.startswith(b"RIFF"):
        raise AudioError(f"{len(body)} bytes without a WAV header: {body[:40]!r}" if body else "no audio came")
    form, where = _read_wav(body)
    ends = accumulate(len(data) for _, data in arrivals)
    spoken = tuple(at_ns for (at_ns, _), end in zip(arrivals, ends, strict=True) if end > where.start)
    return Speech.joined([Piece(form, body[where])]), spoken


def _read_wav(data: bytes) -> tuple[Format, slice]:
    """Format of one WAV and where its samples lie; a streaming header claims more of them than there are."""
    if len(data) < 12 or data[8:12] != b"WAVE":
        raise AudioError("a RIFF header that is not WAVE")
    form: Format | None = None
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        at += 8
        if name == b"fmt ":
            form = _read_format(data[at : at + size])
        elif name == b"data":
            if form is None:
                raise AudioError("a WAV whose data comes before its format")
            return form, slice(at, at + size)
        at += size + size % 2
    raise AudioError("a WAV without data")


def _read_format(chunk: bytes) -> Format:
    if len(chunk) < 16:
        raise AudioError("a WAV format chunk that is cut short")
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        (tag,) = struct.unpack_from("<H", chunk, 24)
    kind = {(_PCM, 16): "s16", (_FLOAT, 32): "f32"}.get((tag, bits))
    if kind is None or not channels or not rate:
        raise AudioError(
            f"found WAV format {tag}, {bits} bits, {channels} channels, {rate} Hz; allowed: 16-bit PCM or 32-bit float"
        )
    return Format(rate, channels, kind)
