"""The HTTP side of the reference server, served to a test, and ways to talk to it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from harness.tiny_omni.api import Api, Service
from harness.tiny_omni.config import EngineConfig, ModelConfig
from harness.tiny_omni.ear import Ear
from harness.tiny_omni.engine import Engine, EngineOutput, EngineRequest, EngineStats
from harness.tiny_omni.faults import Faults
from harness.tiny_omni.talker import Talker
from harness.tiny_omni.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer()
EAR = Ear(TOKENIZER)
"""Shared, since it learns the voices once."""
SAY = "voice rms say: the house by the river is cold and the dog is old"
WORDS = SAY.partition("say: ")[2]
CHAT_TOKENS = len(TOKENIZER.encode("<|im_start|>user\nthe house is cold<|im_end|>\n<|im_start|>assistant\n").ids)
"""Of the prompt that `chat()` asks with."""
Client = TestClient[Any, Any]
LABELS = {"model_name": "tiny-omni", "stage": "0", "replica": "0", "engine": "0"}


def config(caching: bool) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(hidden_size=128, num_layers=3, intermediate_size=128),
        enable_prefix_caching=caching,
        num_blocks=256,
        max_model_len=512,
    )


@dataclass(slots=True)
class ScriptedEngine:
    """An engine of which a test decides every output."""

    config: EngineConfig = field(default_factory=lambda: config(False))
    failure: BaseException | None = None
    submitted: asyncio.Queue[EngineRequest] = field(default_factory=asyncio.Queue)
    aborted: list[str] = field(default_factory=list)
    stops: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, request: EngineRequest) -> None:
        self.submitted.put_nowait(request)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self.stops.set()

    def reset_prefix_cache(self) -> bool:
        return False

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, None)


def output(request: EngineRequest, *tokens: int, reason: Any = None, **more: Any) -> EngineOutput:
    return EngineOutput(request.request_id, tokens, reason, 0, more.pop("rows", None), **more)


@asynccontextmanager
async def serving(
    engine: Any, faults: Faults | None = None, *, embedding: torch.Tensor | None = None, audio: bool = True
) -> AsyncIterator[Client]:
    api = Api("tiny-omni", faults or Faults())
    table = engine.model.embedding if embedding is None and isinstance(engine, Engine) else embedding
    talker = Talker(TOKENIZER, table if table is not None else torch.eye(4096, 8)) if audio else None
    api.open(Service(engine, TOKENIZER, talker, EAR))
    server = TestServer(api.app)
    await server.start_server()
    async with TestClient(server) as client:
        yield client
    if talker is not None:
        talker.close()


def chat(content: Any = "the house is cold", **more: Any) -> dict[str, Any]:
    body = {"model": "tiny-omni", "messages": [{"role": "user", "content": content}], "max_tokens": 6}
    return body | {"ignore_eos": True} | more


async def events(client: Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The messages of one stream; it must end with [DONE]."""
    async with client.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        messages = (await response.text()).split("\n\n")
    assert messages[-2:] == ["data: [DONE]", ""]
    return [json.loads(message.removeprefix("data: ")) for message in messages[:-2]]


async def whole(client: Client, path: str, body: dict[str, Any], status: int = 200) -> Any:
    async with client.post(path, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def series(client: Client) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    async with client.get("/metrics") as response:
        assert response.status == 200
        page = await response.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def key(name: str, **more: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset({**LABELS, **more}.items())


def pcm(data: str) -> bytes:
    with wave.open(io.BytesIO(base64.b64decode(data))) as audio:
        assert (audio.getnchannels(), audio.getsampwidth(), audio.getframerate()) == (1, 2, 16_000)
        return audio.readframes(audio.getnframes())
