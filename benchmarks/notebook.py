"""A server that only writes down what it is asked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web


class Notebook:
    """A simulated server: answers a token to everything, and writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        tokens = body.get("max_completion_tokens") or body["max_tokens"]
        chunk = {"choices": [{"delta": {"content": "x"}, "text": "x", "finish_reason": "length"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}
        for event in (json.dumps(chunk), json.dumps(usage), "[DONE]"):
            await response.write(f"data: {event}\n\n".encode())
        return response

    async def serve(self, ready: asyncio.Future[int]) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/completions", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.set_result(runner.addresses[0][1])
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()
