"""The chat endpoint's form for cloning a voice, and recordings in a chat."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from served import TOKENIZER, ScriptedEngine, chat, output, serving, whole

from harness.tiny_omni.engine import Engine
from harness.tiny_omni.speech import encode_wav, synthesise
from harness.tiny_omni.talker import script_words
from harness.tiny_omni.tokenizer import render_chat

RECORDED = "the sun is up"
DATA = base64.b64encode(encode_wav(synthesise(RECORDED, "awb"))).decode()
URL = f"data:audio/wav;base64,{DATA}"
SHORT = "data:audio/wav;base64," + base64.b64encode(encode_wav(np.ones(100, np.int16))).decode()
SILENT = "data:audio/wav;base64," + base64.b64encode(encode_wav(np.zeros(16_000, np.int16))).decode()
REFERENCE = {"ref_audio": URL, "ref_text": RECORDED}


async def prompt_of(body: dict[str, Any]) -> tuple[str, int]:
    """The prompt that a body becomes, as text, and the tokens that may be generated."""
    engine = ScriptedEngine()
    async with serving(engine) as client, client.post("/v1/chat/completions", json=body | {"stream": True}) as response:
        request = await engine.submitted.get()
        request.on_output(output(request, 5, reason="length"))
        assert response.status == 200
    return TOKENIZER.decode(list(request.prompt_token_ids), skip_special_tokens=False), request.max_tokens


async def test_the_reference_opens_the_prompt() -> None:
    """The voice, the recording at 25 tokens a second and its transcript stand ahead of the request's own turns."""
    turns = [
        {"role": "system", "content": [{"type": "text", "text": "be kind"}]},
        {"role": "user", "content": "good day"},
    ]
    prompt, _ = await prompt_of(chat(**REFERENCE) | {"messages": turns})
    opening, voice, rest = prompt.partition("reference voice awb:")
    spelled, transcript, turns_after = rest.partition(f" transcript: {RECORDED}<|im_end|>\n")
    assert opening == "<|im_start|>system\n"
    assert voice
    assert transcript
    assert turns_after == render_chat(
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": "good day"}]
    )
    assert len(TOKENIZER.encode(spelled).ids) == len(synthesise(RECORDED, "awb")) * 25 // 16_000


async def test_the_last_user_turn_is_said_whole() -> None:
    """Behind a reference nothing is an instruction: all words of the last user turn are said, and no others."""
    turns = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "never"},
        {"role": "user", "content": "He said: nothing, I say: too much"},
    ]
    prompt, _ = await prompt_of(chat(**REFERENCE) | {"messages": turns})
    words = ["he", "said", "nothing", "i", "say", "too", "much"]
    ids = TOKENIZER.encode(prompt).ids
    assert script_words(ids, TOKENIZER, 30) == words
    assert script_words(ids, TOKENIZER, 3) == words[:3]


def test_a_reference_alone_is_an_ordinary_prompt() -> None:
    """Without a word in the last user turn the words of all turns are said, as in any prompt."""
    turns = [
        {"role": "system", "content": "reference voice slt: cold river transcript: good day"},
        {"role": "user", "content": "42"},
    ]
    ids = TOKENIZER.encode(render_chat(turns)).ids
    words = "reference voice slt cold river transcript good day"
    assert " ".join(script_words(ids, TOKENIZER, 30)) == words


async def test_limits_in_turn() -> None:
    """max_completion_tokens counts before max_tokens, and max_new_tokens where neither is there."""
    body = chat(**REFERENCE, max_new_tokens=9)
    assert (await prompt_of(body))[1] == 6
    assert (await prompt_of(body | {"max_completion_tokens": 7}))[1] == 7
    assert (await prompt_of({name: value for name, value in body.items() if name != "max_tokens"}))[1] == 9


async def test_a_recording_in_a_chat_is_spelled_in_place() -> None:
    """Both forms of a recording become the same words where they stand, one every 40 ms, and tokenize counts them."""
    question = {"type": "text", "text": "what is said?"}
    parts: list[dict[str, Any]] = [
        {"type": "audio_url", "audio_url": {"url": URL}},
        {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
    ]
    prompts = [(await prompt_of(chat([part, question])))[0] for part in parts]
    assert prompts[0] == prompts[1]
    spelled, _, rest = prompts[0].removeprefix("<|im_start|>user\n").partition("\n")
    assert rest == "what is said?<|im_end|>\n<|im_start|>assistant\n"
    assert len(spelled.split()) == len(synthesise(RECORDED, "awb")) * 25 // 16_000
    async with serving(ScriptedEngine()) as client:
        counted = await whole(client, "/tokenize", {"messages": chat([parts[0], question])["messages"]})
    assert counted["count"] == len(TOKENIZER.encode(prompts[0]).ids)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (chat(ref_audio="a.wav", ref_text="x"), "ref_audio: found 'a.wav'; allowed: data:audio/wav;base64,..."),
        (chat(ref_audio="data:audio/wav;base64,%%", ref_text="x"), "ref_audio: found '%%', which is not base64"),
        (chat(ref_audio="data:audio/wav;base64,AAAA", ref_text="x"), "ref_audio: found 3 bytes that are no PCM WAV"),
        (chat(ref_audio=SHORT, ref_text="x"), "ref_audio: found 0.01 s; allowed: 0.5 to 30 s"),
        (chat(ref_audio=SILENT, ref_text="x"), "ref_audio: found a recording in which nobody speaks"),
        (chat(ref_audio=URL), "ref_audio, ref_text: found one of them; allowed: both or none"),
        (chat(task_type="Base"), "task_type: found 'Base'; allowed: with ref_audio only"),
        (chat(**REFERENCE, task_type="VoiceDesign"), "task_type: Input should be 'Base'"),
        (chat([{"type": "audio_url", "audio_url": {"url": "x"}}]), "messages.0.content.0: found 'x'; allowed: data:"),
        (
            chat([{"type": "input_audio", "input_audio": {"data": DATA, "format": "mp3"}}]),
            "input_audio.format: Input should be 'wav'",
        ),
    ],
)
async def test_bad_recordings_are_refused(idle_engine: Engine, body: Any, words: str) -> None:
    """A recording that cannot be heard is one message with its field, HTTP 400, and nothing reaches the engine."""
    async with serving(idle_engine) as client:
        answer = await whole(client, "/v1/chat/completions", body, 400)
    assert words in answer["error"]["message"]
    assert len(answer["error"]["message"]) < 300
    assert idle_engine.stats().num_waiting == 0


async def test_no_voice_without_audio() -> None:
    """A server without audio cannot learn the voices, and says so."""
    async with serving(ScriptedEngine(), audio=False) as client:
        refused = await whole(client, "/v1/chat/completions", chat(**REFERENCE), 400)
    assert "ref_audio: found a recording; allowed: none, this server was started with --no-audio" in str(refused)
