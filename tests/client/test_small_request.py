import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from harness.client.small_request import SmallRequests
from harness.errors import ServerDied, ServerNotReady
from harness.scenario import Bench
from harness.workloads.prompt import Prompt

TestServer.__test__ = False  # type: ignore[attr-defined]  # pytest would collect the imported class by its name

BENCH = {
    "name": "b",
    "dataset": "random",
    "concurrency": 1,
    "prompts": 1,
    "seed": 0,
    "output": 1,
    "shared_prefix": 0,
    "random_len": 8,
    "range_ratio": 0.0,
}


class Echo:
    """Keeps what it was asked; answers with a usage, or with what a test sets."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answer: tuple[int, str] = (200, json.dumps({"usage": {"prompt_tokens": 5}}))

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, await request.json()))
        status, text = self.answer
        return web.Response(status=status, text=text)


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, TestServer, aiohttp.ClientSession]]:
    echo, application = Echo(), web.Application()
    application.router.add_post("/{path:.*}", echo.handle)
    server = TestServer(application)
    await server.start_server()
    async with aiohttp.ClientSession() as session:
        yield echo, server, session
    await server.close()


Asked = tuple[Echo, TestServer, aiohttp.ClientSession]


def requests_to(echo: Asked, **more: Any) -> SmallRequests:
    _, server, session = echo
    bench = Bench.model_validate({**BENCH, **more})
    return SmallRequests(session, str(server.make_url("")).rstrip("/"), "m", bench, Prompt("x", 1, 1))


async def test_a_small_request_is_short_greedy_and_text(echo: Asked) -> None:
    """At the bench's own endpoint; latency and the server's count of the prompt's tokens come back."""
    answered = await requests_to(echo).send("Probe 1", 2, "a probe")
    assert answered.prompt_tokens == 5
    assert 0.0 < answered.latency < 30.0
    await requests_to(echo, endpoint="completions").send("Probe 2", 1, "a probe")
    user = [{"role": "user", "content": "Probe 1"}]
    assert echo[0].asked == [
        (
            "/v1/chat/completions",
            {"model": "m", "max_tokens": 2, "temperature": 0.0, "messages": user, "modalities": ["text"]},
        ),
        ("/v1/completions", {"model": "m", "max_tokens": 1, "temperature": 0.0, "prompt": "Probe 2"}),
    ]


async def test_a_server_that_only_speaks_is_asked_to_speak(echo: Asked) -> None:
    """Its answer is no JSON, so how many tokens the prompt had is not known."""
    echo[0].answer = (200, "RIFF....WAVE")
    speech = {"endpoint": "speech", "modalities": ("audio",), "ignore_eos": False, "extra_body": {"voice": "v"}}
    answered = await requests_to(echo, **speech).send("Probe 1", 1, "a probe")
    assert answered.prompt_tokens is None
    (path, body) = echo[0].asked[0]
    assert (path, body["input"], body["voice"]) == ("/v1/audio/speech", "Probe 1", "v")


async def test_a_refusal_and_a_death_are_told_apart(echo: Asked) -> None:
    echo[0].answer = (404, "no such model")
    with pytest.raises(ServerNotReady, match=r"the first request to .*/chat/completions was refused: HTTP 404 no such"):
        await requests_to(echo).send("x", 1, "the first request")
    sender = requests_to(echo)
    await echo[1].close()
    with pytest.raises(ServerDied, match=r"a probe to .* broke off"):
        await sender.send("x", 1, "a probe")
