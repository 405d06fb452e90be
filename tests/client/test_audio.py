"""Speech is read from the pieces a server streams, sample for sample."""

from __future__ import annotations

import base64
import hashlib
import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import wav

from harness.client.audio import AudioError, Format, Speech, decode_pieces

SAMPLES = np.array([0, 1, -1, 32767, -32768, 1234], dtype=np.int16)


def encoded(*pieces: bytes) -> list[str]:
    return [base64.b64encode(piece).decode() for piece in pieces]


def speech(*pieces: bytes) -> Speech:
    return Speech.joined(decode_pieces(encoded(*pieces)))


def header(tag: int, bits: int, data: bytes, *, claimed: int | None = None, extension: bytes = b"") -> bytes:
    """A WAV written by hand: forms that the standard library does not write."""
    fmt = struct.pack("<HHIIHH", tag, 1, 16_000, 16_000 * bits // 8, bits // 8, bits) + extension
    size = len(data) if claimed is None else claimed
    return (
        b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + b"WAVE"
        + b"fmt " + struct.pack("<I", len(fmt)) + fmt
        + b"LIST" + struct.pack("<I", 3) + b"abc\0"
        + b"data" + struct.pack("<I", size) + data
    )  # fmt: skip


def test_wav_pieces_are_joined_without_their_headers() -> None:
    """vLLM-Omni's form: each piece a whole WAV; duration is frames over rate."""
    heard = speech(wav(SAMPLES[:2], 8_000), wav(SAMPLES[2:], 8_000))
    np.testing.assert_array_equal(heard.pcm, SAMPLES)
    assert (heard.rate, heard.seconds) == (8_000, 6 / 8_000)
    assert heard.sha256 == hashlib.sha256(SAMPLES.astype("<i2").tobytes()).hexdigest()


def test_two_channels_keep_their_frames() -> None:
    """Stereo comes as (frames, channels), and a frame of two samples is one frame of time."""
    heard = speech(wav(SAMPLES, 8_000, channels=2))
    np.testing.assert_array_equal(heard.pcm, SAMPLES.reshape(3, 2))
    assert heard.seconds == 3 / 8_000


@given(st.lists(st.integers(0, 2 * len(SAMPLES)), max_size=4))
def test_bare_samples_may_be_cut_anywhere(cuts: list[int]) -> None:
    """Without any header: 16-bit little-endian, mono, 24 kHz, even when a cut halves a sample."""
    data = SAMPLES.tobytes()
    bounds = [0, *sorted(cuts), len(data)]
    heard = speech(*(data[start:end] for start, end in itertools.pairwise(bounds)))
    np.testing.assert_array_equal(heard.pcm, SAMPLES)
    assert heard.rate == 24_000


def test_one_header_serves_the_pieces_after_it() -> None:
    """A WAV streamed in pieces: the header claims what is yet to come, later pieces are bare samples."""
    first = header(1, 16, SAMPLES[:1].tobytes(), claimed=0xFFFFFFFF)
    heard = speech(first, SAMPLES[1:].tobytes())
    np.testing.assert_array_equal(heard.pcm, SAMPLES)
    assert heard.rate == 16_000


def test_float_samples_become_int16() -> None:
    """32-bit float in [-1, 1] scales to the int16 range; what is outside is clipped, what is no number is silence."""
    data = np.array([0.0, 0.5, -1.0, 2.0, np.nan], dtype="<f4").tobytes()
    np.testing.assert_array_equal(speech(header(3, 32, data)).pcm, [0, 16384, -32767, 32767, 0])


def test_extensible_header_names_its_format_in_the_extension() -> None:
    """WAVE_FORMAT_EXTENSIBLE carries the real format code in its sub-format."""
    extension = struct.pack("<HHI", 22, 16, 4) + struct.pack("<H", 1) + bytes(14)
    np.testing.assert_array_equal(speech(header(0xFFFE, 16, SAMPLES.tobytes(), extension=extension)).pcm, SAMPLES)


def test_empty_pieces_carry_no_samples() -> None:
    """An empty piece and a bare header are pieces without samples."""
    assert [piece.samples for piece in decode_pieces(encoded(b"", wav(SAMPLES[:0])))] == [b"", b""]


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([], "no audio samples"),
        (encoded(b""), "no audio samples"),
        (["not base64!"], "piece 0 is not base64"),
        (["é"], "piece 0 is not base64"),
        (encoded(b"\0\0\0"), "3 bytes of samples are not whole frames of 2 bytes"),
        (encoded(wav(SAMPLES, 8_000), wav(SAMPLES, 16_000)), "pieces of different formats"),
        (encoded(wav(SAMPLES), b"RIFF\0\0\0\0OGGS"), "piece 1: a RIFF header that is not WAVE"),
        (encoded(header(1, 24, b"abc")), "found WAV format 1, 24 bits, 1 channels"),
        (encoded(wav(SAMPLES)[:40]), "piece 0: a WAV without data"),
        (encoded(b"RIFF\0\0\0\0WAVEdata\2\0\0\0ab"), "data comes before its format"),
        (encoded(b"RIFF\0\0\0\0WAVEfmt \2\0\0\0ab"), "format chunk that is cut short"),
    ],
)
def test_what_is_not_speech_is_named(pieces: list[str], reason: str) -> None:
    """Bytes that are not speech we read give one error that says what was found."""
    with pytest.raises(AudioError, match=reason):
        Speech.joined(decode_pieces(pieces))


def test_default_format_is_that_of_the_speech_endpoint() -> None:
    """The fallback is documented: s16le, mono, 24 kHz."""
    assert Format() == Format(rate=24_000, channels=1, kind="s16")
