"""The ear spells equal recordings alike, in words of the vocabulary, and knows the synthesiser's voices by hearing."""

from __future__ import annotations

import base64
import io
import wave

import numpy as np
import numpy.typing as npt
import pytest
from scipy.signal import resample_poly

from harness.tiny_omni.ear import TOKENS_PER_SECOND, Ear
from harness.tiny_omni.recording import BadRecording, Recording, read_base64, read_data_url, read_wav
from harness.tiny_omni.speech import VOICES, Voice, encode_wav, synthesise
from harness.tiny_omni.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer()
SENTENCES = (
    "Nobody could find the key to the old library door.",
    "A cold wind blew across the empty street all evening.",
    "We need fresh butter and sugar to finish the birthday cake.",
    "My father repairs old clocks in a shop near the harbor.",
)


@pytest.fixture(scope="module")
def ear() -> Ear:
    return Ear(TOKENIZER)


def recording(pcm: npt.NDArray[np.int16]) -> Recording:
    return read_wav(encode_wav(pcm))


def wav(pcm: npt.NDArray[np.int16], *, rate: int = 16_000, channels: int = 1, width: int = 2) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as audio:
        audio.setnchannels(channels)
        audio.setsampwidth(width)
        audio.setframerate(rate)
        audio.writeframes(pcm.astype("<i2").tobytes())
    return buffer.getvalue()


def test_spelling_is_one_known_word_a_frame(ear: Ear) -> None:
    """Each 40 ms become one token, every time the same, and the spelling read back is those tokens."""
    pcm = synthesise(SENTENCES[0], "rms")
    spelled = ear.spell(recording(pcm))
    tokens = TOKENIZER.encode(spelled).tokens
    assert len(tokens) == len(pcm) * TOKENS_PER_SECOND // 16_000
    assert [f"Ġ{word}" for word in spelled.split()] == tokens
    assert Ear(TOKENIZER).spell(recording(pcm)) == spelled


def test_spelling_tells_recordings_apart(ear: Ear) -> None:
    """Speech uses many words of the codebook; other words or another voice share few places with it."""
    first, other, voice = (
        ear.spell(recording(synthesise(*said))).split()
        for said in ((SENTENCES[0], "rms"), (SENTENCES[1], "rms"), (SENTENCES[0], "awb"))
    )
    assert len(set(first)) > len(first) / 3
    for second in (other, voice):
        assert sum(one == two for one, two in zip(first, second, strict=False)) < len(first) / 4


def test_spelling_ignores_loudness(ear: Ear) -> None:
    """Half as loud is nearly the same spelling: what is rounded differs, and nothing else."""
    pcm = synthesise(SENTENCES[2], "slt")
    loud, soft = (ear.spell(recording(samples)).split() for samples in (pcm, (pcm // 2).astype(np.int16)))
    assert sum(one == two for one, two in zip(loud, soft, strict=True)) > 0.8 * len(loud)


@pytest.mark.parametrize("voice", VOICES)
def test_every_voice_is_known(ear: Ear, voice: Voice) -> None:
    """Each of the synthesiser's voices is recognised from sentences the ear has not learned it by."""
    assert [ear.name_voice(recording(synthesise(text, voice))) for text in SENTENCES] == [voice] * len(SENTENCES)


@pytest.mark.parametrize("voice", VOICES)
def test_a_voice_is_known_at_any_rate_and_in_stereo(ear: Ear, voice: Voice) -> None:
    """A recording at another rate, softer and on two channels is of the same voice."""
    pcm = synthesise(" ".join(SENTENCES[:2]), voice).astype(np.float64)
    for rate in (8_000, 24_000, 44_100):
        resampled = (0.3 * resample_poly(pcm, rate, 16_000)).astype(np.int16)
        assert ear.name_voice(read_wav(wav(np.repeat(resampled, 2), rate=rate, channels=2))) == voice


@pytest.mark.parametrize("samples", [np.zeros(32_000), np.random.default_rng(1).normal(0, 3000, 32_000)])
def test_nobody_speaks(ear: Ear, samples: npt.NDArray[np.float64]) -> None:
    """Silence and noise have a spelling, but no voice."""
    heard = recording(samples.astype(np.int16))
    assert len(ear.spell(heard).split()) == 50
    with pytest.raises(BadRecording, match="nobody speaks; allowed: speech"):
        ear.name_voice(heard)


def test_a_recording_is_what_was_written() -> None:
    """Samples come back between -1 and 1, channels averaged, at the server's rate."""
    pcm = np.arange(-16_000, 16_000, dtype=np.int16)
    np.testing.assert_allclose(read_wav(wav(pcm)).samples, pcm / 32768)
    stereo = np.stack([pcm, np.zeros_like(pcm)], axis=1).reshape(-1)
    np.testing.assert_allclose(read_wav(wav(stereo, channels=2)).samples, pcm / 65536)
    assert len(read_wav(wav(pcm, rate=8_000)).samples) == 64_000
    url = "data:audio/x-wav;base64," + base64.b64encode(wav(pcm)).decode()
    np.testing.assert_array_equal(read_data_url(url).samples, read_wav(wav(pcm)).samples)


SECOND = np.ones(16_000, np.int16)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "found 0 bytes that are no PCM WAV file"),
        (b"OggS" + bytes(100), "found 104 bytes that are no PCM WAV file"),
        (wav(SECOND)[:30], "found 30 bytes that are no PCM WAV file"),
        (wav(SECOND, width=1), "found 8-bit samples; allowed: 16-bit PCM"),
        (wav(SECOND, rate=4_000), "found 4000 Hz; allowed: 8000 to 192000"),
        (wav(SECOND[:7_000]), "found 0.44 s; allowed: 0.5 to 30 s"),
        (wav(np.repeat(SECOND, 31)), "found 31.00 s; allowed: 0.5 to 30 s"),
    ],
)
def test_bad_recordings(data: bytes, words: str) -> None:
    """What cannot be heard is refused with what was found and what is allowed."""
    with pytest.raises(BadRecording, match=words):
        read_wav(data)


@pytest.mark.parametrize("url", ["https://example.org/a.wav", "data:audio/wav,abc", "data:audio/wav;base64", "a.wav"])
def test_only_data_urls(url: str) -> None:
    """A recording that is not in the request is not fetched."""
    with pytest.raises(BadRecording, match=r"allowed: data:audio/wav;base64,\.\.\."):
        read_data_url(url)


def test_not_base64() -> None:
    """Text that is not base64 is quoted, its beginning only."""
    with pytest.raises(BadRecording, match=r"found '%{40}', which is not base64"):
        read_base64("%" * 1000)
