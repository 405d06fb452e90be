import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.io import wavfile

from harness.accuracy import ge2e
from harness.accuracy.audio import Waveform
from harness.accuracy.label import ModelLabel, sha256_of
from harness.accuracy.similarity import VoiceSimilarity, cosine, open_encoder
from harness.errors import MissingDependency, UsageError

VECTORS = arrays(np.float32, 5, elements=st.floats(-10, 10, width=32))


@given(VECTORS, VECTORS)
def test_the_cosine_is_within_one_symmetric_and_blind_to_length(one, two):
    value = cosine(one, two)
    assert -1.0 <= value <= 1.0
    assert value == pytest.approx(cosine(two, one))
    assert value == pytest.approx(cosine(one * 4.0, two))


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ((1, 0), (0, 1), 0.0),
        ((1, 2), (2, 4), 1.0),
        ((1, 2), (-1, -2), -1.0),
        ((3, 4), (4, 3), 0.96),
        ((0, 0), (1, 1), 0.0),
    ],
)
def test_cosines_worked_out_by_hand(one, two, expected):
    assert cosine(np.array(one, float), np.array(two, float)) == pytest.approx(expected)


def test_a_tone_is_in_the_mel_band_around_it():
    """Band centres from the definition: 42 edges even in mel between 0 and 8 kHz, linear to 1 kHz (15 mel)."""
    top = 15.0 + 27.0 * np.log(8.0) / np.log(6.4)
    for band in (3, 10, 20, 30, 38):
        mel = top * (band + 1) / 41
        hertz = mel * 200.0 / 3.0 if mel < 15.0 else 1000.0 * 6.4 ** ((mel - 15.0) / 27.0)
        tone = np.sin(2.0 * np.pi * hertz * np.arange(16_000) / 16_000).astype(np.float32)
        power = ge2e.mel_bands(tone)
        assert power.shape == (101, 40)
        assert power.dtype == np.float32
        assert set(power[5:-5].argmax(axis=1)) == {band}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A checkpoint of Resemblyzer's shapes with random weights."""
    torch.manual_seed(0)
    lstm, linear = torch.nn.LSTM(40, 256, 3, batch_first=True), torch.nn.Linear(256, 256)
    state = {f"lstm.{key}": value for key, value in lstm.state_dict().items()}
    state |= {f"linear.{key}": value for key, value in linear.state_dict().items()}
    state |= {"similarity_weight": torch.ones(1), "similarity_bias": torch.ones(1)}
    path = tmp_path_factory.mktemp("resemblyzer") / "pretrained.pt"
    torch.save({"model_state": state}, path)
    return path


def speech(seconds, seed=0):
    generator = np.random.default_rng(seed)
    return Waveform((generator.normal(size=int(seconds * 16_000)) * 0.1).astype(np.float32), 16_000)


def saved(path, wave):
    wavfile.write(path, wave.rate, wave.samples)
    return path


@pytest.mark.parametrize("seconds", [0.05, 1.6, 2.3, 7.0])
def test_an_embedding_is_of_unit_length_whatever_the_duration(weights, seconds):
    embedding = open_encoder("resemblyzer", str(weights)).embed(speech(seconds))
    assert (embedding.shape, embedding.dtype) == ((256,), np.float32)
    assert np.linalg.norm(embedding) == pytest.approx(1.0, abs=1e-5)


def test_loudness_does_not_change_the_voice(weights):
    encoder = open_encoder("resemblyzer", str(weights))
    loud = speech(2.0)
    quiet = Waveform(loud.samples * 0.05, loud.rate)
    assert cosine(encoder.embed(loud), encoder.embed(quiet)) == pytest.approx(1.0, abs=1e-5)


def test_a_recording_is_like_itself_and_silence_is_like_nothing(weights, tmp_path):
    similarity = VoiceSimilarity(open_encoder("resemblyzer", str(weights)))
    one = saved(tmp_path / "one.wav", speech(2.0))
    silence = saved(tmp_path / "silence.wav", Waveform(np.zeros(16_000, np.float32), 16_000))
    empty = saved(tmp_path / "empty.wav", Waveform(np.zeros(0, np.float32), 16_000))
    assert similarity.score(one, one) == pytest.approx(1.0, abs=1e-5)
    assert [similarity.score(one, other) for other in (silence, empty, None)] == [0.0, 0.0, 0.0]


class Counting:
    """An encoder that counts what it hears."""

    label = ModelLabel("counting", "none", None, None)

    def __init__(self):
        self.heard = 0

    def embed(self, wave):
        self.heard += 1
        return np.array([1.0, wave.seconds], np.float32)


def test_a_reference_is_embedded_once(tmp_path):
    encoder = Counting()
    similarity = VoiceSimilarity(encoder)
    one, two = (saved(tmp_path / f"{seconds}.wav", speech(seconds)) for seconds in (1, 2))
    scores = [similarity.score(one, other) for other in (one, two, two)]
    assert encoder.heard == 4
    assert scores == pytest.approx([1.0, 3 / np.sqrt(10), 3 / np.sqrt(10)])


def test_a_silent_reference_is_refused(weights, tmp_path):
    silence = saved(tmp_path / "silence.wav", Waveform(np.zeros(100, np.float32), 16_000))
    with pytest.raises(UsageError, match=r"silence\.wav: found silence; allowed: a recording of the voice"):
        VoiceSimilarity(open_encoder("resemblyzer", str(weights))).score(silence, silence)


def test_the_label_names_the_very_weights(weights):
    label = open_encoder("resemblyzer", str(weights)).label
    assert (label.kind, label.model, label.sha256) == ("resemblyzer", str(weights), sha256_of(weights))
    assert str(label).startswith(f"resemblyzer, {weights}, sha256:")


@pytest.mark.parametrize(
    ("encoder", "model", "message"),
    [
        ("ecapa", None, r"sim\.encoder: found 'ecapa'; allowed: resemblyzer, wavlm"),
        ("wavlm", None, r"sim\.model: found none; allowed: for wavlm, the folder"),
        (
            "wavlm",
            "microsoft/wavlm-base-plus",
            r"sim\.model: found 'microsoft/wavlm-base-plus', .* nothing is downloaded",
        ),
        ("resemblyzer", "no-such.pt", r"sim\.model: found no file 'no-such\.pt'"),
    ],
)
def test_an_encoder_that_is_not_there_is_one_message(encoder, model, message):
    with pytest.raises(UsageError, match=message):
        open_encoder(encoder, model)


def test_resemblyzer_without_weights_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(MissingDependency, match="pip install --no-deps Resemblyzer"):
        open_encoder("resemblyzer")


def test_wavlm_without_transformers_says_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependency, match=r"encoder wavlm: .*; install it: pip install transformers"):
        open_encoder("wavlm", str(tmp_path))


def test_weights_of_another_kind_are_one_message(tmp_path):
    torch.save({"model_state": {"lstm.weight_ih_l0": torch.zeros(1)}}, tmp_path / "x.pt")
    with pytest.raises(
        UsageError, match=r"sim\.model: found .*x\.pt, which does not load on cpu .*; allowed: the pretra"
    ):
        open_encoder("resemblyzer", str(tmp_path / "x.pt")).embed(speech(1.0))
