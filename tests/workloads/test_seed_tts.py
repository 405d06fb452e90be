"""Dataset seed_tts: its requests are those of vLLM-Omni's bench, in a golden file that its own code wrote."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.client.payload import PATHS, build_payload
from harness.errors import UsageError
from harness.scenario import Bench, load_scenario
from harness.workloads import Tokenizer, generate, ideal_hit_rates, served_ids

GOLDEN_DIR = Path(__file__).parents[1] / "golden"
SET = GOLDEN_DIR / "seed_tts"
GOLDEN: dict[str, Any] = json.loads((GOLDEN_DIR / "seed_tts.json").read_text(encoding="utf-8"))
SCENARIO = """\
schema: 1
name: speech
model: tiny-omni
server: {kind: tiny-omni}
arms: {off: {baseline: true}}
rounds: 1
workloads:
  - dataset: seed_tts
    path: data/set
    modalities: [text, audio]
    ignore_eos: false
    table: |
      name concurrency prompts output
      S    2           3       64
"""


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(Path(harness.__file__).parent / "tiny_omni" / "assets")


def bench(**settings: Any) -> Bench:
    base = {"name": "S", "dataset": "seed_tts", "concurrency": 1, "prompts": 4, "seed": 0, "output": GOLDEN["output"]}
    shape = {"path": str(SET), "locale": "en", "first": 1, "task": "clone"}
    speaks = {"modalities": ("text", "audio"), "ignore_eos": False, "extra_body": GOLDEN["extra_body"]}
    return Bench.model_validate({**base, **shape, **speaks, **settings})


def golden_bench(name: str) -> Bench:
    task, endpoint, locale = name.split("_")
    said = GOLDEN["configurations"][name]
    speech: dict[str, Any] = {"modalities": ("audio",), "extra_body": {}} if endpoint == "speech" else {}
    return bench(task=task, endpoint=endpoint, locale=locale, prompts=len(said["bodies"]), **speech)


@pytest.mark.parametrize("name", sorted(GOLDEN["configurations"]))
def test_every_request_is_the_one_vllm_omni_sends(name: str) -> None:
    """The same messages, voice and settings, line for line; apart from three keys, each with its reason."""
    one, theirs = golden_bench(name), GOLDEN["configurations"][name]
    assert PATHS[one.endpoint] == theirs["path"]

    ours = [json.loads(build_payload(one, prompt, "m")) for prompt in generate(one, tokenizer())]

    for mine, their in zip(ours, theirs["bodies"], strict=True):
        if one.endpoint == "chat":
            # The newer name of the same bound; and counts per event, which only its own ITL needs.
            assert mine.pop("max_completion_tokens") == their.pop("max_tokens") == GOLDEN["output"]
            assert their.pop("stream_options") == {**mine.pop("stream_options"), "continuous_usage_stats": True}
        else:
            # The same samples behind a header.
            assert (mine.pop("response_format"), their.pop("response_format")) == ("wav", "pcm")
        assert mine == their


@pytest.mark.parametrize("name", ["clone_chat_en", "clone_chat_zh"])
def test_prompt_tokens_are_counted_as_vllm_omni_counts_them(name: str) -> None:
    """System message and text with a newline between, for a server that reports no usage."""
    prompts = generate(golden_bench(name), tokenizer())
    assert [prompt.prompt_len for prompt in prompts] == GOLDEN["configurations"][name]["prompt_len"]


def test_a_prompts_own_voice_beats_the_extra_body() -> None:
    """As in vLLM-Omni, where a row's fields are merged last."""
    one = bench(extra_body={"language": "Auto", "ref_text": "none", "speed": 2})
    body = json.loads(build_payload(one, generate(one, tokenizer())[0], "m"))
    assert (body["language"], body["ref_text"], body["speed"]) == ("English", "The garden was quiet that evening.", 2)


def test_a_bench_starts_at_its_first_line() -> None:
    """`first: 3` of two prompts is what `sed -n 3,4p` would leave of the file."""
    texts = [prompt.text for prompt in generate(bench(first=3, prompts=2), tokenizer())]
    assert texts == ["Please read the second chapter again.", "It's only a question of time, isn't it?"]


def test_the_voice_is_no_part_of_the_chat_so_the_ideal_is_known() -> None:
    """System message and text alone are the prompt: all share the system message's full blocks."""
    one = bench()
    ids = served_ids(one, generate(one, tokenizer()), tokenizer())
    assert ids is not None
    shared = next(place for place, column in enumerate(zip(*ids, strict=False)) if len(set(column)) > 1) // 16 * 16
    assert shared > 200
    assert ideal_hit_rates([("S", ids)], 16)["S"] == 3 * shared / sum(map(len, ids))


def test_a_recording_in_the_chat_leaves_the_ideal_unknown() -> None:
    """Task transcribe sends recording, then text; how many tokens the recording has is the server's affair."""
    one = bench(task="transcribe", modalities=("text",), extra_body={})
    prompts = generate(one, tokenizer())
    (message,) = json.loads(build_payload(one, prompts[0], "m"))["messages"]
    assert [part["type"] for part in message["content"]] == ["audio_url", "text"]
    clone = GOLDEN["configurations"]["clone_chat_en"]["bodies"][0]
    assert message["content"][0]["audio_url"]["url"] == clone["ref_audio"]
    assert served_ids(one, prompts, tokenizer()) is None


def test_a_bench_without_an_ideal_neither_has_nor_changes_one() -> None:
    """The rates of the benches around it are what they are without it."""
    ids = [list(range(64))]
    assert ideal_hit_rates([("a", ids), ("speech", None), ("b", ids)], 16) == {"a": 0.0, "speech": None, "b": 0.75}


def test_a_replay_hits_all_but_the_block_of_the_last_token() -> None:
    """Two benches with one seed send the same prompts, and the second finds what the first left behind."""
    shape = {"dataset": "random", "shared_prefix": 0, "random_len": 100, "range_ratio": 0.0, "seed": 7}
    base = {"concurrency": 1, "prompts": 6, "output": 4}
    first, again = (Bench.model_validate({"name": name, **base, **shape}) for name in ("P", "P_replay"))
    ids = {one.name: served_ids(one, generate(one, tokenizer()), tokenizer()) for one in (first, again)}
    assert ids["P"] == ids["P_replay"]
    assert ids["P"] is not None
    rates = ideal_hit_rates(list(ids.items()), 16)
    hit = sum((len(one) - 1) // 16 * 16 for one in ids["P"])
    assert rates["P_replay"] == pytest.approx(hit / sum(map(len, ids["P"])))
    assert rates["P"] is not None
    assert rates["P"] < 0.2


def test_a_set_is_looked_for_beside_its_scenario(tmp_path: Path) -> None:
    """A relative path starts at the file's folder, and the defaults are English, line 1, a cloned voice."""
    (tmp_path / "data").mkdir()
    shutil.copytree(SET, tmp_path / "data" / "set")
    (tmp_path / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    (one,) = load_scenario(tmp_path / "s.yaml").benches
    assert (one.path, one.locale, one.first, one.task) == (str(tmp_path / "data" / "set"), "en", 1, "clone")
    assert len(generate(one, tokenizer())) == 3


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("    path: data/set\n", "", "path: found nothing; allowed: a value: dataset seed_tts needs it"),
        ("[text, audio]", "[text]", "modalities: found [text]; allowed: audio among them: task clone speaks"),
        ("    ignore_eos: false\n", "", "ignore_eos: found true; allowed: false: speech ends where its text does"),
        ("ignore_eos: false", "ignore_eos: false\n    endpoint: speech", "modalities: found text from endpoint speech"),
        ("path: data/set", "path: data/set\n    task: sing", "task: found 'sing' (text); allowed: 'clone', 'speak' or"),
        ("path: data/set", "path: data/set\n    task: transcribe\n    endpoint: speech", "found text from endpoint"),
        ("seed_tts", "random", "table header: found no column 'shared_prefix'"),
    ],
)
def test_a_wrong_block_gives_one_message(tmp_path: Path, old: str, new: str, expected: str) -> None:
    """Key, what was found, what is allowed."""
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_scenario(path)
    assert expected in str(caught.value)


def test_keys_of_the_set_belong_to_it(tmp_path: Path) -> None:
    """A random bench takes no line of a file."""
    table = "name shared_prefix random_len output range_ratio concurrency prompts seed\n      R 0 8 4 0.0 1 2 3\n"
    text = SCENARIO.split("  - dataset")[0] + f"  - dataset: random\n    first: 3\n    table: |\n      {table}"
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"first: found 3 .*; allowed: nothing: it belongs to dataset seed_tts"):
        load_scenario(tmp_path / "s.yaml")


def test_a_missing_set_is_one_message_with_its_place_and_where_to_get_it(tmp_path: Path) -> None:
    """Nothing is downloaded behind anybody's back."""
    with pytest.raises(UsageError) as caught:
        generate(bench(path=str(tmp_path / "nowhere")), tokenizer())
    assert str(caught.value) == (
        f"bench S: found no {tmp_path}/nowhere/en/meta.lst; allowed: a copy of the Seed-TTS set, which is at "
        "https://github.com/BytedanceSpeech/seed-tts-eval"
    )


@pytest.mark.parametrize(
    ("lines", "settings", "expected"),
    [
        (None, {"first": 3, "prompts": 3}, "found 4 lines; allowed: 5 or more (bench S takes 3 from line 3 on)"),
        (None, {"first": 9}, "found fewer than 9 lines; allowed: 12 or more"),
        (["a|b|prompt-wavs/one.wav|c", "a|b|c"], {"prompts": 2}, "meta.lst:2: found 'a|b|c'; allowed: id|transcript"),
        (["a|b|prompt-wavs/one.wav| "], {"prompts": 1}, "meta.lst:1: found 'a|b|prompt-wavs/one.wav|'; allowed: id|"),
        (["a|b|prompt-wavs/no.wav|c"], {"prompts": 1}, "meta.lst:1: found no recording "),
    ],
)
def test_a_set_that_does_not_fit_is_refused(
    tmp_path: Path, lines: list[str] | None, settings: dict[str, Any], expected: str
) -> None:
    """vLLM-Omni drops such lines and sends fewer requests; here a bench sends what its row says or nothing."""
    shutil.copytree(SET, tmp_path / "set")
    if lines is not None:
        (tmp_path / "set" / "en" / "meta.lst").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        generate(bench(path=str(tmp_path / "set"), **settings), tokenizer())
    assert expected in str(caught.value)


def test_who_sends_no_recording_needs_none(tmp_path: Path) -> None:
    """Task speak takes the sentences alone."""
    shutil.copytree(SET, tmp_path / "set")
    shutil.rmtree(tmp_path / "set" / "en" / "prompt-wavs")
    prompts = generate(bench(path=str(tmp_path / "set"), task="speak"), tokenizer())
    assert {prompt.voice for prompt in prompts} == {None}


def test_a_recording_that_vanishes_is_one_message(tmp_path: Path) -> None:
    """Recordings are read when the bodies are made."""
    shutil.copytree(SET, tmp_path / "set")
    one = bench(path=str(tmp_path / "set"))
    prompts = generate(one, tokenizer())
    shutil.rmtree(tmp_path / "set")
    with pytest.raises(UsageError, match=r"prompt-wavs/one\.wav: cannot be read: No such file"):
        build_payload(one, prompts[0], "m")
