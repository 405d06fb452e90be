"""The HTTP side over a real engine: the forms that clients rely on, and the errors they get."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer
from served import (
    CHAT_TOKENS,
    SAY,
    TOKENIZER,
    WORDS,
    ScriptedEngine,
    chat,
    events,
    key,
    output,
    pcm,
    series,
    serving,
    whole,
)

from harness.tiny_omni.api import Api
from harness.tiny_omni.engine import Engine
from harness.tiny_omni.faults import Faults
from harness.tiny_omni.speech import synthesise


async def test_chat_stream(engine: Engine) -> None:
    """A text stream is: role, text chunks marked as text, finish, usage; and it equals the answer in one message."""
    async with serving(engine) as client:
        body = chat(stream=True, stream_options={"include_usage": True})
        first, *texts, finish, usage = await events(client, "/v1/chat/completions", body)
        answer = await whole(client, "/v1/chat/completions", chat())
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {message["modality"] for message in texts} == {"text"}
    text = "".join(message["choices"][0]["delta"]["content"] for message in texts)
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert usage["choices"] == []
    assert {key: usage["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        "prompt_tokens": CHAT_TOKENS,
        "completion_tokens": 6,
        "total_tokens": CHAT_TOKENS + 6,
    }
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert len({message["id"] for message in (first, *texts, finish, usage)}) == 1
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 6
    assert len(TOKENIZER.encode(text, add_special_tokens=False).ids) >= 1


async def test_no_usage_unless_asked(caching_engine: Engine) -> None:
    """Without stream_options no message of the stream carries usage."""
    async with serving(caching_engine) as client:
        messages = await events(client, "/v1/chat/completions", chat(stream=True))
    assert not any("usage" in message for message in messages)


async def test_text_and_audio(engine: Engine) -> None:
    """Speech comes as WAV pieces marked as audio that say the asked words in the asked voice, beside all the text."""
    async with serving(engine) as client:
        body = chat(SAY, modalities=["text", "audio"], max_tokens=20, stream=True)
        messages = await events(client, "/v1/chat/completions", body)
        alone = await events(client, "/v1/chat/completions", chat(SAY, max_tokens=20, stream=True))
    spoken = [message for message in messages if message.get("modality") == "audio"]
    transcripts = [message["choices"][0]["delta"]["audio"]["transcript"] for message in spoken]
    assert "".join(transcripts) == WORDS
    assert len(transcripts) == 2
    for message, transcript in zip(spoken, transcripts, strict=True):
        assert message["choices"][0]["delta"]["audio"]["sample_rate"] == 16_000
        assert pcm(message["choices"][0]["delta"]["content"]) == synthesise(transcript.strip(), "rms").tobytes()
    texts = [message["choices"] for message in messages if message.get("modality") == "text"]
    assert texts == [message["choices"] for message in alone if message.get("modality") == "text"]
    assert messages[-1]["choices"][0]["finish_reason"] == "length"


async def test_audio_alone_in_one_message(engine: Engine) -> None:
    """Asked for audio alone, the answer has one choice: the whole speech as one WAV file with its transcript."""
    async with serving(engine) as client:
        answer = await whole(client, "/v1/chat/completions", chat(SAY, modalities=["audio"], max_tokens=9))
    (choice,) = answer["choices"]
    said = WORDS.split()[:9]
    assert choice["message"]["audio"]["transcript"] == " ".join(said)
    expected = synthesise(" ".join(said[:8]), "rms").tobytes() + synthesise(said[8], "rms").tobytes()
    assert pcm(choice["message"]["audio"]["data"]) == expected
    assert answer["usage"]["completion_tokens"] == 9


async def test_cached_prompt_sounds_the_same(caching_engine: Engine) -> None:
    """A prompt served from the cache says what it said when it was fresh, and usage tells how much was cached."""
    body = chat("the old dog and the cold river. " * 8 + SAY, modalities=["text", "audio"], max_tokens=20)
    async with serving(caching_engine) as client:
        fresh, cached = [await whole(client, "/v1/chat/completions", body) for _ in range(2)]
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    prompt = cached["usage"]["prompt_tokens"]
    assert cached["usage"]["prompt_tokens_details"]["cached_tokens"] == (prompt - 1) // 16 * 16 > 0
    for one, other in zip(fresh["choices"], cached["choices"], strict=True):
        assert one["message"].get("content") == other["message"].get("content")
    first, second = (answer["choices"][1]["message"]["audio"] for answer in (fresh, cached))
    assert (first["transcript"], first["data"]) == (second["transcript"], second["data"])
    assert first["transcript"] == WORDS


async def test_completions(engine: Engine) -> None:
    """Plain completions take text or token ids; the last text carries the finish reason, as vLLM sends it."""
    ids = TOKENIZER.encode("the house", add_special_tokens=False).ids
    body = {"prompt": "the house", "max_tokens": 4, "ignore_eos": True, "temperature": 0.0}
    async with serving(engine) as client:
        *texts, usage = await events(
            client, "/v1/completions", body | {"stream": True, "stream_options": {"include_usage": True}}
        )
        answer = await whole(client, "/v1/completions", body | {"prompt": ids})
        default = await whole(client, "/v1/completions", {"prompt": "the house", "ignore_eos": True})
    assert [message["choices"][0]["finish_reason"] for message in texts] == [None, None, None, "length"]
    assert "".join(message["choices"][0]["text"] for message in texts) == answer["choices"][0]["text"]
    assert usage["usage"]["prompt_tokens"] == len(ids) == answer["usage"]["prompt_tokens"]
    assert default["usage"]["completion_tokens"] == 16


async def test_audio_starts_while_text_is_decoded() -> None:
    """Speech is on its way as soon as the prompt's rows are there, before the engine has finished the text;
    nothing at all is sent before the engine's first output."""
    engine = ScriptedEngine()
    table = torch.randn(4096, 32, generator=torch.Generator().manual_seed(3))
    async with serving(engine, embedding=table) as client:
        body = chat("say: hello", modalities=["text", "audio"], stream=True)
        async with client.post("/v1/chat/completions", json=body) as response:
            request = await engine.submitted.get()
            assert request.needs_rows
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(response.content.readline(), 0.1)
            rows = table[torch.tensor(request.prompt_token_ids)]
            request.on_output(output(request, 5, rows={"hidden": rows, "layer.2": rows}))
            seen = ""
            while '"modality": "audio"' not in seen:
                seen += (await response.content.readline()).decode()
            assert '"finish_reason": "length"' not in seen
            request.on_output(output(request, 6, reason="length"))
            assert "[DONE]" in await response.text()
    assert engine.aborted == []


async def test_client_that_leaves_aborts_its_request() -> None:
    """When the connection goes, the engine is told to stop, and the request counts as aborted."""
    engine = ScriptedEngine()
    async with serving(engine) as client:
        async with client.post("/v1/chat/completions", json=chat(stream=True)) as response:
            request = await engine.submitted.get()
            request.on_output(output(request, 5))
            await response.content.readline()
            response.close()
        await asyncio.wait_for(engine.stops.wait(), 10)
        assert engine.aborted == [request.request_id]
        found = await series(client)
    assert found[key("vllm:request_success_total", finished_reason="abort")] == 1


async def test_end_of_text_is_not_shown_and_counted() -> None:
    """The token that stops a request has no text; other special tokens are shown; half characters never are."""
    engine = ScriptedEngine()
    smile = TOKENIZER.encode("😀", add_special_tokens=False).ids
    async with serving(engine) as client:
        task = asyncio.create_task(events(client, "/v1/completions", {"prompt": "a", "stream": True}))
        request = await engine.submitted.get()
        for token in (1, *smile):
            request.on_output(output(request, token))
        request.on_output(output(request, 0, reason="stop"))
        messages = await task
    shown = [(message["choices"][0]["text"], message["choices"][0]["finish_reason"]) for message in messages]
    assert shown == [("<|im_start|>", None), ("😀", None), ("", "stop")]


async def test_engine_that_gives_up() -> None:
    """An error of the engine is an error event in a stream, HTTP 500 without one, and an unhealthy server."""
    engine = ScriptedEngine()
    async with serving(engine) as client:
        streamed = asyncio.create_task(events(client, "/v1/chat/completions", chat(stream=True)))
        request = await engine.submitted.get()
        request.on_output(output(request, reason="error", error="the engine failed: boom"))
        assert (await streamed)[-1]["error"]["message"] == "the engine failed: boom"
        plain = asyncio.create_task(whole(client, "/v1/chat/completions", chat(), status=500))
        request = await engine.submitted.get()
        request.on_output(output(request, reason="error", error="the engine failed: boom"))
        assert (await plain)["error"]["type"] == "InternalServerError"
        engine.failure = RuntimeError("boom")
        assert (await client.get("/health")).status == 503
        assert "boom" in (await whole(client, "/v1/chat/completions", chat(), status=503))["error"]["message"]


async def test_nothing_to_say(caching_engine: Engine) -> None:
    """A prompt without a word cannot be spoken: an error event in a stream, HTTP 400 without one."""
    async with serving(caching_engine) as client:
        body = chat("12 + 30", modalities=["audio"])
        refused = await whole(client, "/v1/chat/completions", body, status=400)
        messages = await events(client, "/v1/chat/completions", body | {"stream": True})
    assert "no word to say" in refused["error"]["message"]
    assert messages[-1] == refused


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (chat(model="other"), 404, "The model `other` does not exist."),
        (chat(temperature=0.7), 400, "temperature: found 0.7; allowed: 0"),
        (chat(max_tokens=0), 400, "max_tokens"),
        (chat(max_tokens="5"), 400, "max_tokens: Input should be a valid integer"),
        (chat(max_completion_tokens=10_000), 400, "max_model_len = 512"),
        (chat(modalities=["video"]), 400, "modalities.0: Input should be 'text' or 'audio'"),
        (chat(stop=["x"]), 400, "stop: found ['x']; allowed: absent or '' or []"),
        (chat(n=2), 400, "n: found 2; allowed: absent or 1"),
        (chat(stream_options={"include_usage": True}), 400, "stream_options: allowed with stream: true only"),
        (chat([{"type": "image_url", "text": "x"}]), 400, "messages.0.content"),
        ({"messages": []}, 400, "messages: List should have at least 1 item"),
        ({"model": "tiny-omni"}, 400, "messages: Field required"),
        ([], 400, "Input should be an object"),
    ],
)
async def test_bad_chat_requests(idle_engine: Engine, body: Any, status: int, words: str) -> None:
    """What is wrong with a request is told in one OpenAI error object, and nothing reaches the engine's batch."""
    async with serving(idle_engine) as client:
        answer = await whole(client, "/v1/chat/completions", body, status)
    assert words in answer["error"]["message"]
    assert answer["error"]["code"] == status
    assert idle_engine.stats().num_waiting == 0


async def test_bad_completion_requests(idle_engine: Engine) -> None:
    """Malformed JSON, token ids outside the vocabulary and an empty prompt are refused with their reason."""
    async with serving(idle_engine) as client:
        async with client.post("/v1/completions", data=b'{"prompt": "a",') as response:
            assert response.status == 400
            assert "Invalid JSON" in (await response.json())["error"]["message"]
        outside = await whole(client, "/v1/completions", {"prompt": [1, 4096]}, 400)
        assert "found token id 4096; allowed: 0 to 4095" in outside["error"]["message"]
        empty = await whole(client, "/v1/completions", {"prompt": ""}, 400)
        assert "allowed: at least 1" in empty["error"]["message"]
        async with client.get("/v1/nowhere") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, 404)


async def test_no_audio() -> None:
    """A server without audio refuses it before anything runs, and serves text."""
    engine = ScriptedEngine()
    async with serving(engine, audio=False) as client:
        refused = await whole(client, "/v1/chat/completions", chat(modalities=["audio"]), 400)
    assert "--no-audio" in refused["error"]["message"]
    assert engine.submitted.empty()


async def test_not_ready() -> None:
    """Until it is opened the server answers 503 everywhere."""
    async with TestClient(TestServer(Api("tiny-omni", Faults()).app)) as client:
        for path in ("/health", "/v1/models", "/metrics"):
            assert (await client.get(path)).status == 503
        assert (await client.post("/v1/completions", json={"prompt": "a"})).status == 503


async def test_models_health_and_tokenize(caching_engine: Engine) -> None:
    """A ready server is healthy, names its model, and counts tokens as it will serve them, template included."""
    async with serving(caching_engine) as client:
        assert (await client.get("/health")).status == 200
        models = await (await client.get("/v1/models")).json()
        text = await whole(client, "/tokenize", {"model": "tiny-omni", "prompt": "the house"})
        turns = await whole(client, "/tokenize", {"messages": chat()["messages"]})
        await whole(client, "/tokenize", {"prompt": "a", "messages": chat()["messages"]}, 400)
    assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [("tiny-omni", 512)]
    assert TOKENIZER.decode(text["tokens"]) == "the house"
    assert text["count"] == len(text["tokens"])
    assert turns["count"] == CHAT_TOKENS
