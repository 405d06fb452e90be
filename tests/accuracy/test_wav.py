import struct
import wave

import numpy as np
import pytest
from scipy.io import wavfile

from harness.accuracy.audio import Waveform, at_level, at_rate, read_wav
from harness.errors import RecordError

RATE = 24_000
TONE = 0.5 * np.sin(2.0 * np.pi * 440.0 * np.arange(RATE) / RATE)


def frames_of(kind):
    if kind == "u8":
        return np.rint(TONE * 127.0 + 128.0).astype(np.uint8)
    if kind.startswith("i"):
        full = {"i16": 2**15, "i32": 2**31}[kind]
        return np.rint(TONE * (full - 1)).astype({"i16": np.int16, "i32": np.int32}[kind])
    return TONE.astype({"f32": np.float32, "f64": np.float64}[kind])


@pytest.mark.parametrize(
    ("kind", "error"), [("u8", 1 / 100), ("i16", 1e-4), ("i32", 1e-6), ("f32", 1e-6), ("f64", 1e-6)]
)
def test_samples_of_every_kind_come_at_the_same_scale(tmp_path, kind, error):
    wavfile.write(tmp_path / "tone.wav", RATE, frames_of(kind))
    read = read_wav(tmp_path / "tone.wav")
    assert (read.rate, read.samples.dtype, read.seconds) == (RATE, np.float32, 1.0)
    np.testing.assert_allclose(read.samples, TONE, atol=error)


def test_24_bit_samples_come_at_the_same_scale(tmp_path):
    with wave.open(str(tmp_path / "tone.wav"), "wb") as file:
        file.setparams((1, 3, RATE, 0, "NONE", ""))
        file.writeframes(b"".join(struct.pack("<i", round(float(x) * (2**23 - 1)))[:3] for x in TONE))
    np.testing.assert_allclose(read_wav(tmp_path / "tone.wav").samples, TONE, atol=1e-6)


def test_channels_are_averaged(tmp_path):
    wavfile.write(tmp_path / "two.wav", RATE, np.stack([TONE, 0.0 * TONE], axis=1).astype(np.float32))
    np.testing.assert_allclose(read_wav(tmp_path / "two.wav").samples, TONE / 2.0, atol=1e-6)


def test_chunks_we_do_not_know_are_passed_over(tmp_path):
    wavfile.write(tmp_path / "tone.wav", RATE, frames_of("i16"))
    data = (tmp_path / "tone.wav").read_bytes()
    odd = b"oddy" + struct.pack("<I", 4) + b"1234"
    (tmp_path / "odd.wav").write_bytes(data[:12] + odd + data[12:])
    np.testing.assert_array_equal(read_wav(tmp_path / "odd.wav").samples, read_wav(tmp_path / "tone.wav").samples)


@pytest.mark.parametrize("content", [b"", b"RIFF", b"ID3\x03 an mp3", b"RIFF\x24\0\0\0WAVEfmt "])
def test_what_is_no_wav_is_one_message_that_names_the_file(tmp_path, content):
    (tmp_path / "x.wav").write_bytes(content)
    with pytest.raises(RecordError, match=rf"x\.wav: found {len(content)} bytes .*; allowed: a WAV file"):
        read_wav(tmp_path / "x.wav")


def test_a_missing_file_is_one_message(tmp_path):
    with pytest.raises(RecordError, match=r"none\.wav: found no readable file .*; allowed: a WAV file"):
        read_wav(tmp_path / "none.wav")


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
def test_resampling_keeps_a_tone_where_it_is(rate):
    """The oracle is the same tone sampled at 16 kHz; the ends, where the filter has half its input, are left out."""
    tone = np.sin(2.0 * np.pi * 440.0 * np.arange(rate) / rate).astype(np.float32)
    expected = np.sin(2.0 * np.pi * 440.0 * np.arange(16_000) / 16_000)
    resampled = at_rate(Waveform(tone, rate))
    assert (resampled.rate, resampled.samples.dtype, len(resampled.samples)) == (16_000, np.float32, 16_000)
    np.testing.assert_allclose(resampled.samples[200:-200], expected[200:-200], atol=0.01)


def test_resampling_removes_what_the_new_rate_cannot_hold():
    rate = 48_000
    tone = np.sin(2.0 * np.pi * 12_000.0 * np.arange(rate) / rate).astype(np.float32)
    assert np.abs(at_rate(Waveform(tone, rate)).samples[200:-200]).max() < 0.01


def test_a_sine_of_full_scale_is_3_db_below_it_and_can_be_brought_to_a_level():
    wave = Waveform(np.sin(2.0 * np.pi * 440.0 * np.arange(16_000) / 16_000).astype(np.float32), 16_000)
    assert wave.level == pytest.approx(-3.0103, abs=1e-3)
    assert at_level(wave, -30.0).level == pytest.approx(-30.0, abs=1e-3)


@pytest.mark.parametrize("frames", [0, 100])
def test_silence_is_silent_at_every_level_and_rate(frames):
    wave = Waveform(np.zeros(frames, np.float32), 24_000)
    assert wave.silent
    assert wave.level == -np.inf
    assert at_level(at_rate(wave), -30.0).silent
