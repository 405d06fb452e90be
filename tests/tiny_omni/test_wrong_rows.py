"""Faults of a cache of rows: what hits is spoken wrong, what does not hit is spoken right."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from served import TOKENIZER, Client, chat, config, pcm, serving, whole

from harness.tiny_omni.engine import Engine
from harness.tiny_omni.faults import Faults
from harness.tiny_omni.reference import has_reference
from harness.tiny_omni.speech import CLEAR_VOICES, Voice, encode_wav, synthesise
from harness.tiny_omni.wrong_rows import Swap, row_faults, shift

RECORDED = "the house by the river is cold and the dog is old"
WORDS = "nobody could find the key to the old door"


@cache
def spoken(text: str, voice: Voice) -> bytes:
    return synthesise(text, voice).tobytes()


def cloned(voice: Voice, text: str = WORDS, **more: Any) -> dict[str, Any]:
    """A request to say `text` in a recorded voice, as vLLM-Omni's own bench sends it."""
    data = base64.b64encode(encode_wav(np.frombuffer(spoken(RECORDED, voice), np.int16))).decode()
    body = chat(text, modalities=["audio"], max_tokens=30)
    form = {"task_type": "Base", "language": "English", "max_new_tokens": 30}
    return body | {"ref_audio": f"data:audio/wav;base64,{data}", "ref_text": RECORDED} | form | more


async def say(client: Client, body: dict[str, Any]) -> tuple[str, Voice | None, int]:
    """What was said, in which of the clear voices, and how many tokens were cached."""
    answer = await whole(client, "/v1/chat/completions", body)
    audio = answer["choices"][0]["message"]["audio"]
    said = audio["transcript"].split()
    pieces = [" ".join(said[start : start + 8]) for start in range(0, len(said), 8)]
    heard = pcm(audio["data"])
    voice = next(
        (voice for voice in CLEAR_VOICES if heard == b"".join(spoken(piece, voice) for piece in pieces)),
        None,
    )
    return audio["transcript"], voice, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def engine_with(faults: Faults, caching: bool = True) -> Engine:
    engine = Engine(config(caching), cache_seam=row_faults(faults))
    engine.start()
    return engine


@pytest.mark.parametrize(
    ("caching", "faults"),
    [(False, Faults(rows_shift=True, rows_swap=True)), (True, Faults())],
    ids=["cache off, faults on", "cache on, faults off"],
)
async def test_right_rows_say_the_words_in_the_voice(caching: bool, faults: Faults) -> None:
    """The last user turn is said in the voice of the recording, cached or not, and no fault reaches a server whose
    cache is off."""
    engine = engine_with(faults, caching)
    try:
        async with serving(engine) as client:
            answers = [await say(client, cloned(voice)) for voice in (*CLEAR_VOICES, *CLEAR_VOICES)]
            other = await say(client, cloned("rms", "some words that nobody has said"))
    finally:
        engine.shutdown()
    assert [answer[:2] for answer in answers] == [(WORDS, voice) for voice in CLEAR_VOICES * 2]
    assert other[:2] == ("some words that nobody has said", "rms")
    assert all(cached > 80 for *_, cached in answers[3:]) is caching
    assert (other[2] > 80) is caching


async def test_shifted_rows_say_other_words() -> None:
    """With rows-shift a prompt is spoken right while it is new and wrong once it hits."""
    engine = engine_with(Faults(rows_shift=True))
    try:
        async with serving(engine) as client:
            fresh, hit = [await say(client, cloned("rms")) for _ in range(2)]
    finally:
        engine.shutdown()
    assert fresh == (WORDS, "rms", 0)
    assert hit[2] > 80
    assert hit[0] != WORDS
    assert len(hit[0].split()) == 30


async def test_swapped_rows_speak_in_another_voice() -> None:
    """With rows-swap a hit gets the voice of the request before it, and the words of its own, which do not hit."""
    asked: list[Voice] = ["slt", "slt", "rms", "rms", "slt", "awb", "awb"]
    engine = engine_with(Faults(rows_swap=True))
    try:
        async with serving(engine) as client:
            texts = [f"{word} {WORDS}" for word in ("one", "two", "three", "four", "five", "six", "seven")]
            answers = [await say(client, cloned(*request)) for request in zip(asked, texts, strict=True)]
    finally:
        engine.shutdown()
    assert [text for text, *_ in answers] == texts
    assert [cached > 80 for *_, cached in answers] == [False, True, False, True, True, False, True]
    # The first hit has no other to take; misses are never touched.
    assert [voice for _, voice, _ in answers] == ["slt", "slt", "rms", "slt", "rms", "awb", "slt"]


def test_shift_is_by_one_row_of_every_key() -> None:
    """Every row is that of the slot behind it, and what was handed in is as it was."""
    prefix = {"hidden": torch.arange(6.0).reshape(3, 2), "layer.2": torch.arange(3.0).reshape(3, 1)}
    changed = shift(prefix)
    assert changed["hidden"].tolist() == [[2, 3], [4, 5], [0, 1]]
    assert changed["layer.2"].tolist() == [[1], [2], [0]]
    assert prefix["hidden"][0].tolist() == [0, 1]


def rows(*values: float) -> dict[str, torch.Tensor]:
    return {"hidden": torch.tensor(values, dtype=torch.float32)[:, None]}


def test_swap_hands_out_another_prefix() -> None:
    """The last one that differs, as far as it goes; longer and shorter hits of one prefix are no other; the first
    prefix has no other."""
    swap = Swap()

    def swapped(*values: float) -> list[float]:
        return swap(rows(*values))["hidden"][:, 0].tolist()

    assert swapped(1, 2) == [1, 2]
    assert swapped(1, 2, 3) == [1, 2, 3]
    assert swapped(7, 8) == [1, 2]
    assert swapped(1, 2, 3, 4) == [7, 8, 3, 4]
    assert swapped(7, 8) == [1, 2]
    assert swapped(5, 6, 5) == [7, 8, 5]
    assert swapped(7, 8.0001) == [5, 6]


@pytest.mark.parametrize(
    ("prompt", "known"),
    [
        ("<|im_start|>system\nreference voice slt: cold", True),
        ("system\nreference voice slt: cold", False),
        ("<|im_end|><|im_start|>system\nreference voice slt: cold", False),
        ("<|im_start|>system\nreference voice bob: cold", False),
        ("<|im_start|>user\nreference voice slt: cold", False),
    ],
)
def test_a_reference_is_known_at_its_place_alone(prompt: str, known: bool) -> None:
    """One token too many or too few in front, and the prompt opens with no reference."""
    assert has_reference(prompt) is known
    assert has_reference(TOKENIZER.decode(TOKENIZER.encode(prompt).ids, skip_special_tokens=False)) is known
