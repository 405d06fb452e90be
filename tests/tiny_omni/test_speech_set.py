"""The project's own speech set: what its files promise, and what the reference server makes of them."""

from __future__ import annotations

import base64
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.errors import UsageError
from harness.tiny_omni.chat import chat_text
from harness.tiny_omni.ear import Ear
from harness.tiny_omni.protocol import Message, Reference
from harness.tiny_omni.recording import read_wav
from harness.tiny_omni.speech import CLEAR_VOICES
from harness.tiny_omni.talker import choose_voice, script_words
from harness.tiny_omni.tokenizer import load_tokenizer
from harness.workloads.ideal import ideal_hit_rates
from harness.workloads.seed_tts import SYSTEM

ROOT = Path(__file__).resolve().parent.parent.parent
EN = ROOT / "datasets" / "speech_set" / "en"
LINES = [line.split("|") for line in (EN / "meta.lst").read_text(encoding="utf-8").splitlines()]
TOKENIZER = load_tokenizer()


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("make_speech_set", ROOT / "scripts" / "make_speech_set.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_list_is_what_the_script_makes(script: ModuleType) -> None:
    """meta.lst is made of texts.yaml: 48 utterances, their names and texts all different, voices taking turns."""
    made = list(script.lines_of(script.read_texts(EN.parent / "texts.yaml")))
    assert ["|".join(line) for line in LINES] == made
    assert len({name for name, *_ in LINES}) == len({target for *_, target in LINES}) == len(LINES) == 48
    assert [Path(recording).stem for _, _, recording, _ in LINES] == list(CLEAR_VOICES) * 16


@pytest.mark.parametrize("voice", CLEAR_VOICES)
def test_recordings(voice: str) -> None:
    """Each lasts 6 to 10 seconds and the ear knows its voice."""
    recording = read_wav((EN / "prompt-wavs" / f"{voice}.wav").read_bytes())
    assert 6 <= len(recording.samples) / 16_000 <= 10
    assert Ear(TOKENIZER).name_voice(recording) == voice


def test_every_word_is_said_in_the_right_voice_and_most_of_a_prompt_is_shared() -> None:
    """Served as prompts, the utterances are said word by word, and a cache without bounds hits over 70 %."""
    ear = Ear(TOKENIZER)
    prompts = []
    for name, transcript, recording, target in LINES:
        url = "data:audio/wav;base64," + base64.b64encode((EN / recording).read_bytes()).decode()
        turns = [Message(role="system", content=SYSTEM), Message(role="user", content=target)]
        ids = TOKENIZER.encode(chat_text(turns, ear, reference=Reference(url, transcript))).ids
        assert script_words(ids, TOKENIZER, 20) == target.lower().rstrip(".").split()
        assert choose_voice(ids, TOKENIZER) == name.partition("-")[0]
        prompts.append(ids)
    rate = ideal_hit_rates([("speech", prompts)], 16)["speech"]
    assert rate is not None
    assert rate > 0.7


def test_the_set_is_made_anew(script: ModuleType, tmp_path: Path) -> None:
    """The script writes the list and the recordings, the same every time; --check tells what differs."""
    (tmp_path / "texts.yaml").write_text("rms: {recorded: Good day., targets: [Come in., Sit down.]}", encoding="utf-8")
    assert script.main([str(tmp_path)]) == 0
    assert (tmp_path / "en" / "meta.lst").read_text(encoding="utf-8") == (
        "rms-01|Good day.|prompt-wavs/rms.wav|Come in.\nrms-02|Good day.|prompt-wavs/rms.wav|Sit down.\n"
    )
    assert script.main([str(tmp_path), "--check"]) == 0
    (tmp_path / "en" / "prompt-wavs" / "rms.wav").write_bytes(b"")
    assert script.main([str(tmp_path), "--check"]) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "cannot be read"),
        ("[]", "allowed: a mapping of voices"),
        ("bob: {recorded: a, targets: [b]}", "found voice 'bob'; allowed: slt, rms, awb, kal16"),
        ("rms: {recorded: a}", "rms: found {'recorded': 'a'}; allowed: recorded: a text, targets: a list"),
        ("rms: {recorded: a, targets: [b|c]}", "found 'b|c'; allowed: one line of text without |"),
        (
            "rms: {recorded: a, targets: [b]}\nslt: {recorded: a, targets: [b, c]}",
            "found targets rms 1, slt 2; allowed: as many",
        ),
    ],
)
def test_wrong_texts(script: ModuleType, tmp_path: Path, text: str, words: str) -> None:
    """Texts in another form get one message with the file."""
    (tmp_path / "texts.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        script.read_texts(tmp_path / "texts.yaml")
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)
