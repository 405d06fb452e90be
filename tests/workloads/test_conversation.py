"""Dataset conversation: whole chats out of a file, sent as they are written."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.client import build_payload
from harness.errors import UsageError
from harness.scenario import Bench
from harness.workloads import Tokenizer, generate, ideal_hit_rates, missing_set, served_ids

ROOT = Path(__file__).parents[2]
SETS = ROOT / "datasets" / "conversations"
TOKENIZER = Tokenizer(ROOT / "harness" / "tiny_omni" / "assets")


def bench(path: Path, prompts: int) -> Bench:
    shape = {"dataset": "conversation", "concurrency": 1, "output": 8, "seed": 0, "ignore_eos": False}
    return Bench.model_validate({"name": "C", "path": str(path), "prompts": prompts, **shape})


def messages(path: Path, prompts: int) -> list[list[dict[str, Any]]]:
    one = bench(path, prompts)
    return [json.loads(build_payload(one, prompt, "m"))["messages"] for prompt in generate(one, TOKENIZER)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(folder: Path, *entries: object) -> Path:
    path = folder / "set.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_the_committed_sets_are_what_the_script_makes() -> None:
    """A set that was edited by hand is no longer known."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / "make_conversations.py", "--check"], timeout=60)
    assert done.returncode == 0


def test_turns_are_sent_as_they_are_written() -> None:
    """Roles, order and text of every turn, scripted answers included."""
    expected = [
        [{"role": turn["role"], "content": [{"type": "text", "text": turn["content"]}]} for turn in line["messages"]]
        for line in lines(SETS / "history.jsonl")
    ]
    assert messages(SETS / "history.jsonl", 24) == expected
    assert [len(chat) for chat in expected[:4]] == [2, 4, 6, 8]


def test_every_question_over_the_facts_shares_them() -> None:
    """Prefix of each prompt is the fact list; the gold letter names the colour that the list has."""
    prompts = generate(bench(SETS / "facts.jsonl", 64), TOKENIZER)
    assert len({prompt.chat[0].text for prompt in prompts}) == 1
    for prompt in prompts:
        assert prompt.gold is not None
        subject = prompt.text.partition("?")[0].removeprefix("What colour is ")
        colour = prompt.options["ABCD".index(prompt.gold)]
        assert f"{subject[0].upper()}{subject[1:]} is {colour}." in prompt.chat[0].text
    ids = served_ids(bench(SETS / "facts.jsonl", 64), prompts, TOKENIZER)
    rate = ideal_hit_rates([("facts", ids)], 16)["facts"]
    assert rate is not None
    assert rate > 0.9


def test_a_repeated_request_hits_all_but_its_last_block() -> None:
    """Twelve equal prompts: eleven hit every full block before the last token."""
    one = bench(SETS / "repeat.jsonl", 12)
    ids = served_ids(one, generate(one, TOKENIZER), TOKENIZER)
    assert ids is not None
    assert len({tuple(each) for each in ids}) == 1
    length = len(ids[0])
    expected = 11 * ((length - 1) // 16 * 16) / (12 * length)
    assert ideal_hit_rates([("repeat", ids)], 16)["repeat"] == pytest.approx(expected)


def test_a_file_beside_the_set_travels_as_a_data_url_in_its_own_turn() -> None:
    """The recording stays in the first user turn; how many tokens it makes is the server's affair."""
    chats = messages(SETS / "recording.jsonl", 3)
    sound = (SETS / "../speech_set/en/prompt-wavs/slt.wav").read_bytes()
    url = f"data:audio/wav;base64,{base64.b64encode(sound).decode()}"
    for chat in chats:
        assert chat[0]["content"][0] == {"type": "audio_url", "audio_url": {"url": url}}
    assert [len(chat) for chat in chats] == [1, 3, 5]
    one = bench(SETS / "recording.jsonl", 3)
    assert served_ids(one, generate(one, TOKENIZER), TOKENIZER) is None


def test_an_address_is_passed_on(tmp_path: Path) -> None:
    """Whatever scheme it has: the server is the one to read it."""
    part = {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}}
    path = written(tmp_path, {"id": "a", "messages": [{"role": "user", "content": [part]}]})
    assert messages(path, 1) == [[{"role": "user", "content": [part]}]]


def test_a_set_that_is_not_here_is_named(tmp_path: Path) -> None:
    """At check as a note, at run as an error."""
    one = bench(tmp_path / "none.jsonl", 1)
    assert missing_set(one) == tmp_path / "none.jsonl"
    with pytest.raises(UsageError, match=r"bench C: found no .*none\.jsonl; allowed: a file of conversations"):
        generate(one, TOKENIZER)


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([{"id": "a", "messages": [USER]}], r"found 1 lines; allowed: 2 or more \(bench C\)"),
        ([{"id": "a", "messages": [USER]}] * 2, r":2: id: found 'a' as on line 1"),
        (["x", "y"], r":1: the line: .* allowed: one conversation as JSON"),
        ([{"messages": [USER]}] * 2, r":1: id: Field required"),
        ([{"id": "a", "messages": []}] * 2, r":1: messages: "),
        ([{"id": "a", "messages": [USER, {"role": "assistant", "content": "x"}]}] * 2, r"found assistant last"),
        ([{"id": "a", "messages": [USER], "gold": "E"}] * 2, r"gold: found 'E'; allowed: one of A, B, C, D"),
        (
            [{"id": "a", "messages": [USER], "options": ["x", "y"], "gold": "C"}] * 2,
            r"gold: found 'C'; allowed: one of A, B$",
        ),
        ([{"id": "a", "messages": [USER], "options": ["x"]}] * 2, r"options: found 1; allowed: 2 to 4"),
        (
            [{"id": "a", "messages": [{"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": "x"}}]}]}]
            * 2,
            r"audio_url: found no file .*/x; allowed: a file or an address",
        ),
    ],
)
def test_a_wrong_line_is_one_message(tmp_path: Path, entries: list[Any], expected: str) -> None:
    """File, line, key, found and allowed."""
    with pytest.raises(UsageError, match=expected):
        generate(bench(written(tmp_path, *entries), 2), TOKENIZER)
