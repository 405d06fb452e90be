"""A real HTTP server on 127.0.0.1 whose streams are written in the test."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web

DONE = b"data: [DONE]\n\n"


def event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def text_event(content: str, finish: str | None = None, **extra: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}], **extra})


def role_event(**extra: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], **extra})


def usage_event(prompt: int, output: int, cached: int | None = None) -> bytes:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **details}})


def wav(samples: np.ndarray, rate: int = 24_000, channels: int = 1) -> bytes:
    """A WAV file by the standard library: the oracle of our own reader."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def audio_event(data: bytes, **delta: Any) -> bytes:
    """One audio event in vLLM-Omni's form."""
    content = base64.b64encode(data).decode()
    return event({"modality": "audio", "choices": [{"index": 0, "delta": {"content": content, **delta}}]})


def whole_answer(words: list[str], prompt: int = 5) -> bytes:
    return b"".join([role_event(), *(text_event(word) for word in words), usage_event(prompt, len(words)), DONE])


async def start_stream(call: Call) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(call.request)
    return response


async def answer_at_once(call: Call) -> web.StreamResponse:
    """As many words as were asked for, in one write."""
    response = await start_stream(call)
    count = call.body.get("max_completion_tokens") or call.body["max_tokens"]
    await response.write(whole_answer(["w "] * count))
    return response


@dataclass
class ScriptedServer:
    """What the server saw: bodies in order of arrival, connections accepted, requests in flight."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    peers: set[tuple[str, int]] = field(default_factory=set)
    in_flight: int = 0
    most_in_flight: int = 0
    disconnected: int = 0
    stop: Callable[[], Awaitable[None]] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until requests have come or gone so that `condition` holds."""
        while not condition():
            await self._changed.wait()

    def count(self, change: int) -> None:
        self.in_flight += change
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(frozen=True)
class Call:
    """One request to a script."""

    request: web.Request
    body: dict[str, Any]
    server: ScriptedServer


Script = Callable[[Call], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve(script: Script) -> AsyncIterator[ScriptedServer]:
    """Serve `script` for every POST, until the block ends."""
    server = ScriptedServer()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        server.bodies.append(body)
        server.paths.append(request.path)
        server.headers.append(dict(request.headers))
        assert request.transport is not None
        server.peers.add(request.transport.get_extra_info("peername"))
        server.count(+1)
        try:
            return await script(Call(request, body, server))
        except (asyncio.CancelledError, ConnectionError):
            server.disconnected += 1
            raise
        finally:
            server.count(-1)

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    server.stop = site.stop
    try:
        yield server
    finally:
        await runner.cleanup()
