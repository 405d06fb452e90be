"""A server that publishes as a stage of vLLM-Omni does: with a step, at most once in a while, and all of it then."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

INTERVAL_S = 0.05


class LateServer:
    """Each request of `n` words is one step that looks `n` tokens up; `hits` of them are found.

    The gauge of the stage is as old as the last publication; the front end's is not.
    """

    def __init__(self, caching: bool = True, hits: int = 0, replicas: int = 1, tells: bool = True) -> None:
        self.caching, self.hits, self.replicas, self.tells = caching, hits, replicas, tells
        self.queries = self.hit = self.published_queries = self.published_hits = 0
        self.published_at = 0.0
        self.running = 0
        self.stale_running = 0
        self.probes = 0

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/metrics", self.metrics)
        application.router.add_post("/v1/chat/completions", self.chat)
        return application

    async def chat(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        text = str(body["messages"][0]["content"])
        self.probes += text.startswith("Probe")
        tokens = self.step(text)
        return web.json_response({"usage": {"prompt_tokens": tokens} if self.tells else None})

    def step(self, text: str) -> int:
        tokens = len(text.split())
        if self.caching:
            self.queries += tokens
            self.hit += self.hits
        if time.monotonic() - self.published_at >= INTERVAL_S:
            self.published_at = time.monotonic()
            self.published_queries, self.published_hits = self.queries, self.hit
            # A longer request is not at its end yet, and as long as no other comes nobody takes that back.
            self.stale_running = int(not text.startswith("Probe"))
        return tokens

    async def metrics(self, _request: web.Request) -> web.Response:
        lines = [
            "# TYPE vllm_omni:num_requests_running gauge",
            f"vllm_omni:num_requests_running {self.running}.0",
            "# TYPE vllm:num_requests_running gauge",
            f'vllm:num_requests_running{{stage="0"}} {self.stale_running}.0',
        ]
        published = {"queries": self.published_queries, "hits": self.published_hits}
        for name, value in published.items():
            lines.append(f"# TYPE vllm:prefix_cache_{name}_total counter")
            for replica in range(self.replicas):
                value_of = value if replica == 0 else 0
                lines.append(f'vllm:prefix_cache_{name}_total{{stage="0",replica="{replica}"}} {value_of}.0')
        return web.Response(text="\n".join(lines) + "\n")
