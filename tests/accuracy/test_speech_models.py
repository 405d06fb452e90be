"""With real weights: what Whisper hears of a real synthesiser, and which voices are one voice."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from harness.accuracy.audio import Waveform
from harness.accuracy.normalise import normaliser
from harness.accuracy.recognise import open_recogniser
from harness.accuracy.similarity import VoiceSimilarity, open_encoder
from harness.accuracy.wer import item_wer, summarise

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODELS = Path(__file__).parents[2] / "models"
SENTENCES = (
    "The weather will be warm and sunny on Friday afternoon.",
    "Please bring the blue book back to the library before noon.",
    "My brother works at a small hospital near the river.",
    "They walked along the beach and watched the ships come in.",
)


def weights(variable, name):
    path = Path(os.environ.get(variable) or MODELS / name)
    if not path.is_file():
        pytest.fail(f"found no {path}; get it with: python scripts/get_speech_models.py (or set {variable})")
    return str(path)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """WAVs by (voice, number of the sentence), said by flite."""
    folder = tmp_path_factory.mktemp("spoken")
    paths = {}
    for voice in ("slt", "rms"):
        for number, sentence in enumerate(SENTENCES):
            path = folder / f"{voice}{number}.wav"
            subprocess.run(["flite", "-voice", voice, "-t", sentence, "-o", str(path)], check=True, timeout=60)
            paths[voice, number] = path
    return paths


def test_whisper_hears_what_was_said_and_not_what_was_not(spoken):
    recogniser = open_recogniser("whisper", weights("OMNI_PREFIX_BENCH_WHISPER", "whisper-tiny.en.pt"))
    heard = [recogniser.transcribe(spoken["slt", number]) for number in range(len(SENTENCES))]
    clean = normaliser("whisper-english")
    right = summarise([item_wer(*pair, clean) for pair in zip(SENTENCES, heard, strict=True)])
    wrong = summarise([item_wer(*pair, clean) for pair in zip(SENTENCES[1:] + SENTENCES[:1], heard, strict=True)])
    assert right.mean < 0.1
    assert wrong.mean > 0.6


def test_one_voice_is_more_like_itself_than_another(spoken):
    similarity = VoiceSimilarity(
        open_encoder("resemblyzer", weights("OMNI_PREFIX_BENCH_RESEMBLYZER", "resemblyzer.pt"))
    )
    reference = spoken["slt", 0]
    same = [similarity.score(reference, spoken["slt", number]) for number in range(1, len(SENTENCES))]
    other = [similarity.score(reference, spoken["rms", number]) for number in range(1, len(SENTENCES))]
    assert min(same) > 0.8
    assert max(other) < min(same)


def test_embeddings_are_those_of_the_resemblyzer_package():
    """The expected ones were made by the package itself, `made_by` says which, from the same vowel-like sound."""
    golden = json.loads(Path(__file__).with_name("resemblyzer_embeddings.json").read_text())
    encoder = open_encoder("resemblyzer", weights("OMNI_PREFIX_BENCH_RESEMBLYZER", "resemblyzer.pt"))
    for frames, expected in golden["embeddings"].items():
        time = np.arange(int(frames)) / 16_000
        pitch = 110 + 20 * np.sin(2 * np.pi * 3 * time)
        sound = sum(np.sin(2 * np.pi * k * pitch * time) / k for k in range(1, 20))
        embedding = encoder.embed(Waveform(np.asarray(sound, np.float32), 16_000))
        np.testing.assert_allclose(embedding, expected, atol=1e-5)
