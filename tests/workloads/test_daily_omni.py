"""Dataset daily_omni: questions in Daily-Omni's form, their media passed on as addresses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.client import build_payload
from harness.errors import UsageError
from harness.scenario import Bench
from harness.workloads import Prompt, Tokenizer, generate, served_ids

TOKENIZER = Tokenizer(Path(__file__).parents[2] / "harness" / "tiny_omni" / "assets")
ITEM = {
    "Type": "AV Event Alignment",
    "Question": "What happens while the bell rings?",
    "Choice": ["A. A door opens", "B. Somebody laughs", "C. A car leaves", "D. Nothing"],
    "Answer": "C",
    "video_id": "abc",
    "video_duration": "30s",
}


def bench(folder: Path, items: object, media: str | None = "https://example.org/v/", prompts: int = 1) -> Bench:
    path = folder / "qa.json"
    path.write_text(items if isinstance(items, str) else json.dumps(items))
    given = {"name": "D", "dataset": "daily_omni", "path": str(path), "prompts": prompts, "output": 4, "seed": 0}
    return Bench.model_validate({**given, "concurrency": 1, "media": media})


def made(one: Bench) -> tuple[Prompt, list[dict[str, Any]]]:
    (prompt,) = generate(one, TOKENIZER)
    (message,) = json.loads(build_payload(one, prompt, "m"))["messages"]
    assert message["role"] == "user"
    return prompt, message["content"]


def test_media_comes_first_then_the_question_with_its_lettered_options(tmp_path: Path) -> None:
    """The addresses follow the set's own layout; letters stand once before each option."""
    one = bench(tmp_path, [ITEM])
    prompt, content = made(one)
    assert content == [
        {"type": "video_url", "video_url": {"url": "https://example.org/v/abc/abc_video.mp4"}},
        {"type": "audio_url", "audio_url": {"url": "https://example.org/v/abc/abc_audio.wav"}},
        {
            "type": "text",
            "text": "What happens while the bell rings?\nA. A door opens\nB. Somebody laughs\nC. A car leaves\n"
            "D. Nothing\nAnswer with the letter of the right option alone.",
        },
    ]
    assert (prompt.id, prompt.gold, prompt.options[2]) == ("abc-0", "C", "A car leaves")
    assert served_ids(one, [prompt], TOKENIZER) is None


def test_an_items_own_addresses_stand_for_themselves(tmp_path: Path) -> None:
    """Also without a base address, and one medium alone."""
    item = {**ITEM, "audio_url": "data:audio/wav;base64,AAAA"}
    _, content = made(bench(tmp_path, [item], media=None))
    assert content[0] == {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}}
    assert [part["type"] for part in content] == ["audio_url", "text"]


@pytest.mark.parametrize(
    ("items", "media", "expected"),
    [
        ("{", "x:", r"qa\.json: cannot be read: .*; allowed: Daily-Omni's qa\.json"),
        ({}, "x:", r"found a dict; allowed: a JSON list of questions"),
        ([], "x:", r"found 0 items; allowed: 1 or more \(bench D\)"),
        ([{**ITEM, "Answer": "E"}], "x:", r"item 0: Answer: found 'E'; allowed: one of A, B, C, D"),
        ([{**ITEM, "Choice": ["A. x"]}], "x:", r"item 0: Choice: "),
        ([{"Question": "x"}], "x:", r"item 0: Choice: Field required"),
        ([ITEM], None, r"item 0: found no video_url or audio_url, and no media: in bench D"),
    ],
)
def test_a_wrong_set_is_one_message(tmp_path: Path, items: object, media: str | None, expected: str) -> None:
    """Which item, which key, what is allowed."""
    with pytest.raises(UsageError, match=expected):
        generate(bench(tmp_path, items, media), TOKENIZER)
