"""The harness' own requests to a server under test: short, greedy, each with a prompt of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from harness.client.payload import PATHS, build_payload
from harness.errors import ServerDied, ServerNotReady
from harness.scenario import Bench
from harness.workloads.prompt import Prompt

_ANSWER_S = 300.0


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer.

    Parameters:
        latency: seconds from sending the request to the end of the answer.
        prompt_tokens: as the server counts them; None where it does not say.
    """

    latency: float
    prompt_tokens: int | None


@dataclass(frozen=True, slots=True)
class SmallRequests:
    """Where such requests go, and in what form.

    Parameters:
        base_url: of the server, without a trailing slash.
        model: the name to send.
        bench: the endpoint is that of this bench: a server need not have another.
        pattern: a prompt of it, whose voice a speech request borrows.
    """

    session: aiohttp.ClientSession
    base_url: str
    model: str
    bench: Bench
    pattern: Prompt

    async def send(self, text: str, max_tokens: int, what: str) -> Answered:
        """Send one and wait for its whole answer.

        Parameters:
            text: the prompt.
            max_tokens: of the answer; speech ends where its text does.
            what: what an error calls it (`the first request`).

        Raises:
            ServerDied: the connection broke.
            ServerNotReady: the server refused the request or did not answer in five minutes.
        """
        url = f"{self.base_url}{PATHS[self.bench.endpoint]}"
        sent = time.perf_counter()
        try:
            async with self.session.post(
                url,
                data=self._body(text, max_tokens),
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
            ) as answer:
                body = await answer.read()
                latency = time.perf_counter() - sent
        except TimeoutError:
            raise ServerNotReady(f"{what} got no answer from {url} in {_ANSWER_S:g} s") from None
        except aiohttp.ClientError as error:
            raise ServerDied(f"{what} to {url} broke off: {error}") from error
        if answer.status != 200:
            told = body.decode(errors="replace")[:300]
            raise ServerNotReady(f"{what} to {url} was refused: HTTP {answer.status} {told}")
        return Answered(latency, _prompt_tokens(body))

    def _body(self, text: str, max_tokens: int) -> bytes:
        if self.bench.endpoint == "speech":
            return build_payload(self.bench, replace(self.pattern, text=text), self.model)
        body: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": 0.0}
        if self.bench.endpoint == "chat":
            body |= {"messages": [{"role": "user", "content": text}], "modalities": ["text"]}
        else:
            body["prompt"] = text
        return json.dumps(body).encode()


def _prompt_tokens(body: bytes) -> int | None:
    try:
        data = json.loads(body)
    except ValueError:
        return None
    usage = data.get("usage") if isinstance(data, Mapping) else None
    tokens = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None
