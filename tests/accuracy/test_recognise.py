import sys

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from harness.accuracy.label import sha256_of
from harness.accuracy.recognise import Recogniser, Whisper, open_recogniser
from harness.errors import HarnessFailure, MissingDependency, RecordError, UsageError


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A Whisper of openai-whisper's own code with random weights, English alone, that stops after 8 tokens."""
    from whisper.model import ModelDimensions
    from whisper.model import Whisper as Network

    torch.manual_seed(0)
    dims = {"n_mels": 80, "n_audio_ctx": 1500, "n_audio_state": 16, "n_audio_head": 2, "n_audio_layer": 1}
    dims |= {"n_vocab": 51864, "n_text_ctx": 16, "n_text_state": 16, "n_text_head": 2, "n_text_layer": 1}
    path = tmp_path_factory.mktemp("whisper") / "random.pt"
    torch.save({"dims": dims, "model_state_dict": Network(ModelDimensions(**dims)).state_dict()}, path)
    return path


@pytest.fixture
def noise(tmp_path):
    path = tmp_path / "noise.wav"
    wavfile.write(path, 24_000, (np.random.default_rng(0).normal(size=24_000) * 3000).astype(np.int16))
    return path


def test_whisper_hears_the_same_text_every_time(checkpoint, noise):
    heard = [open_recogniser("whisper", str(checkpoint)).transcribe(noise) for _ in range(2)]
    assert heard[0] == heard[1]
    assert isinstance(heard[0], str)


def test_the_beam_is_passed_on(checkpoint, noise, monkeypatch):
    """One beam is whisper's greedy search, which it wants to be told by None."""
    import whisper

    asked = []
    monkeypatch.setattr(
        whisper.Whisper, "transcribe", lambda _self, _samples, **options: asked.append(options) or {"text": " a "}
    )
    assert [Whisper(str(checkpoint), beam=beam).transcribe(noise) for beam in (5, 1)] == ["a", "a"]
    assert [options["beam_size"] for options in asked] == [5, None]
    assert all(
        (options["temperature"], options["condition_on_previous_text"], options["fp16"], options["language"])
        == (0.0, False, False, "en")
        for options in asked
    )


def test_silence_says_nothing_and_loads_nothing(tmp_path):
    """The file of weights is no checkpoint, so that loading it would fail."""
    (tmp_path / "x.pt").write_bytes(b"not weights")
    for frames in (0, 16_000):
        wavfile.write(tmp_path / "silence.wav", 16_000, np.zeros(frames, np.int16))
        assert Whisper(str(tmp_path / "x.pt")).transcribe(tmp_path / "silence.wav") == ""


def test_the_label_names_the_very_weights(checkpoint):
    label = open_recogniser("whisper", str(checkpoint), beam=3).label
    assert (label.kind, label.model, label.sha256) == ("whisper", str(checkpoint), sha256_of(checkpoint))
    assert label.package is not None
    assert label.package.startswith("openai-whisper ")
    assert label.options == "beam=3 language=en device=cpu"


def test_weights_that_are_none_are_one_message(tmp_path, noise):
    (tmp_path / "x.pt").write_bytes(b"not weights")
    with pytest.raises(
        UsageError, match=r"wer\.model: found .*x\.pt, which does not load on cpu .*; allowed: a checkp"
    ):
        Whisper(str(tmp_path / "x.pt")).transcribe(noise)


def test_a_name_that_is_not_cached_is_refused_and_never_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(
        UsageError, match=r"found 'tiny\.en', but .*tiny\.en\.pt does not exist and nothing is downloaded"
    ):
        open_recogniser("whisper", "tiny.en")
    assert list(tmp_path.iterdir()) == []


def test_a_cached_file_that_is_not_what_its_name_says_is_refused(tmp_path, monkeypatch):
    """openai-whisper itself would download it again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "whisper").mkdir()
    (tmp_path / "whisper" / "tiny.en.pt").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"found .*tiny\.en\.pt with sha256 .*; allowed: d3dd57d3"):
        open_recogniser("whisper", "tiny.en")


@pytest.mark.parametrize(
    ("recogniser", "model", "message"),
    [
        ("whisper", "no-such", r"found 'no-such', which is neither a file nor a name of openai-whisper"),
        ("whisper", None, r"wer\.model: found none; allowed: the path"),
        ("kaldi", None, r"wer\.recogniser: found 'kaldi'; allowed: whisper, or module:function"),
        ("no_such_module:hear", None, r"wer\.recogniser: found 'no_such_module:hear', whose module does not import"),
        ("math:hear", None, r"wer\.recogniser: found 'math:hear', but math has no function 'hear'"),
    ],
)
def test_a_recogniser_that_is_not_there_is_one_message(recogniser, model, message):
    with pytest.raises(UsageError, match=message):
        open_recogniser(recogniser, model)


def test_a_beam_below_one_is_refused(checkpoint):
    with pytest.raises(UsageError, match=r"wer\.beam: found 0; allowed: 1 or more"):
        open_recogniser("whisper", str(checkpoint), beam=0)


def test_an_english_model_is_not_asked_for_another_language(checkpoint, noise):
    with pytest.raises(UsageError, match="which knows English alone; wanted: 'zh'"):
        open_recogniser("whisper", str(checkpoint), language="zh").transcribe(noise)


def test_a_missing_package_is_one_message_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "whisper", None)
    with pytest.raises(MissingDependency, match=r"recogniser whisper: .*; install it: pip .*prefix-bench"):
        open_recogniser("whisper", "tiny.en")


PLUGIN = """
def hear(wav):
    return f"  {wav.name} "

def deaf(wav):
    raise OSError("no ears")

def mute(wav):
    return None
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "own_ears.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "own_ears.py"
    sys.modules.pop("own_ears", None)


def test_a_function_of_ones_own_hears_a_path(plugin, noise):
    recogniser: Recogniser = open_recogniser("own_ears:hear", "ignored")
    assert recogniser.transcribe(noise) == "noise.wav"
    assert (recogniser.label.kind, recogniser.label.sha256) == ("own_ears:hear", sha256_of(plugin))


@pytest.mark.parametrize(
    ("name", "message"), [("deaf", r"own_ears:deaf failed on .*no ears"), ("mute", r"found NoneType; allowed: str")]
)
def test_a_function_that_fails_is_a_failure_of_the_harness_and_not_a_score(plugin, noise, name, message):
    assert plugin.exists()
    with pytest.raises(HarnessFailure, match=message):
        open_recogniser(f"own_ears:{name}").transcribe(noise)


def test_a_file_that_is_no_wav_is_refused(checkpoint, tmp_path):
    (tmp_path / "x.wav").write_bytes(b"ID3")
    with pytest.raises(RecordError, match="allowed: a WAV file"):
        open_recogniser("whisper", str(checkpoint)).transcribe(tmp_path / "x.wav")
