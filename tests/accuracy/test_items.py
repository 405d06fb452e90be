"""Items: what a check's prompts ask for, as it is written down when a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.accuracy.items import items_of, items_of_loads
from harness.errors import UsageError
from harness.loads import Loads
from harness.scenario import Bench, Check
from harness.workloads import Tokenizer, generate
from harness.workloads.prompt import Prompt

ROOT = Path(__file__).parents[2]
TOKENIZER = Tokenizer(ROOT / "harness" / "tiny_omni" / "assets")
BASE = {"name": "C", "concurrency": 1, "output": 8, "seed": 0, "ignore_eos": False, "modalities": ("text", "audio")}
SPEECH = {
    **BASE,
    "dataset": "seed_tts",
    "path": str(ROOT / "datasets" / "speech_set"),
    "locale": "en",
    "first": 1,
    "task": "clone",
    "prompts": 4,
    "measure": "speech",
    "wer": {"recogniser": "kept_run:spoken_words"},
    "sim": {},
}
TALK = {**BASE, "dataset": "conversation", "path": "asked.jsonl", "prompts": 1}


def test_utterances_keep_their_ids_and_words_and_voices_are_copied_once() -> None:
    """Four lines of three voices refer to three recordings, by the path that each has in the run."""
    check = Check.model_validate(SPEECH)
    items, references = items_of(check, generate(check, TOKENIZER))
    assert [(item.id, item.index) for item in items] == [("slt-01", 0), ("rms-01", 1), ("awb-01", 2), ("slt-02", 3)]
    assert items[0].expected == "It was raining when we arrived at the hotel near the airport."
    assert items[0].reference == items[3].reference == "accuracy/C.references/000-slt.wav"
    assert {name: path.name for name, path in references.items()} == {
        "accuracy/C.references/000-slt.wav": "slt.wav",
        "accuracy/C.references/001-rms.wav": "rms.wav",
        "accuracy/C.references/002-awb.wav": "awb.wav",
    }


def test_benches_have_no_items() -> None:
    """Only checks are scored."""
    bench = Bench.model_validate({key: value for key, value in SPEECH.items() if key not in ("measure", "wer", "sim")})
    loads = Loads((bench, Check.model_validate({**SPEECH, "name": "S"})), TOKENIZER)
    assert list(items_of_loads(loads.all)) == ["S"]


@pytest.mark.parametrize(
    ("given", "prompt", "expected"),
    [
        (
            {"measure": "speech", "wer": {"model": "tiny.pt"}},
            Prompt("hi", 1, 8, id="a"),
            "check C: item a: found nothing expected; allowed: `expected`, the words to be said",
        ),
        (
            {"measure": "speech", "wer": {"model": "tiny.pt", "normaliser": "whisper-english"}},
            Prompt("say it", 1, 8, id="a", expected="你好"),
            "check C: item a: found language 'zh'; allowed: what the normaliser whisper-english has rules for, en "
            "(seed-tts has them for en, zh)",
        ),
        (
            {"measure": "speech", "wer": {"model": "tiny.pt", "normaliser": "seed-tts"}},
            Prompt("say it", 1, 8, id="a", expected="東京へ行く"),
            "check C: item a: found letters like 'へく'; allowed: English or Chinese, whose words can be compared",
        ),
        ({"measure": "choice"}, Prompt("hi", 1, 8, id="a"), "check C: item a: found no gold; allowed: `gold`"),
        ({"measure": "parity"}, Prompt("hi", 1, 8, id="a"), "check C: found the id 'a' at items 0 and 1"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_anything_starts(
    given: dict[str, object], prompt: Prompt, expected: str
) -> None:
    """The item and what it lacks."""
    with pytest.raises(UsageError) as error:
        items_of(Check.model_validate({**TALK, **given}), [prompt, prompt])
    assert expected in str(error.value)
