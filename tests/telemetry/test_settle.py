from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from harness.errors import MetricAbsent, ServerDied, SettleTimeout
from harness.servers.kinds import SettleRule
from harness.telemetry.scrape import scrape
from harness.telemetry.settle import settle

TestServer.__test__ = False  # type: ignore[attr-defined]  # pytest would collect the imported class by its name

QUICK = SettleRule(read_interval_s=0.001)


class Scripted:
    """A server whose n-th scrape shows what a script says: (running, waiting, tokens)."""

    def __init__(self, script: Callable[[int], tuple[int, int, int]]) -> None:
        self.script, self.scrapes, self.probed_after = script, 0, -1

    async def metrics(self, _request: web.Request) -> web.Response:
        self.scrapes += 1
        running, waiting, tokens = self.script(self.scrapes)
        return web.Response(
            text="# TYPE vllm:num_requests_running gauge\n"
            'vllm:num_requests_running{stage="0"} 0.0\n'
            f'vllm:num_requests_running{{stage="1"}} {running}.0\n'
            "# TYPE vllm:num_requests_waiting gauge\n"
            f"vllm:num_requests_waiting {waiting}.0\n"
            "# TYPE vllm:generation_tokens_total counter\n"
            f"vllm:generation_tokens_total {tokens}.0\n"
            "# TYPE http_requests_total counter\n"
            f"http_requests_total {self.scrapes}.0\n"
        )

    async def probe(self) -> None:
        self.probed_after = self.scrapes


@pytest.fixture
async def serve() -> AsyncIterator[Callable]:
    """Starts scripted servers; gives a session and the server's address."""
    started: list[TestServer] = []
    async with aiohttp.ClientSession() as session:

        async def start(handler: Callable) -> tuple[aiohttp.ClientSession, str]:
            application = web.Application()
            application.router.add_get("/metrics", handler)
            server = TestServer(application)
            await server.start_server()
            started.append(server)
            return session, str(server.make_url("")).rstrip("/")

        yield start
    for server in started:
        await server.close()


async def test_quiet_server_takes_two_reads(serve: Callable) -> None:
    """At rest, two agreeing reads are enough, though the count of the scrapes themselves moves."""
    server = Scripted(lambda _: (0, 0, 7))
    read = await settle(*await serve(server.metrics), QUICK, timeout=30.0)
    assert server.scrapes == 2
    assert [s.value for s in read.samples if s.name == "vllm:generation_tokens_total"] == [7.0]


async def test_waits_for_running_and_waiting_requests(serve: Callable) -> None:
    """Requests running on any stage or waiting hold the settling up."""
    server = Scripted(lambda n: (int(n <= 3), int(n <= 5), 7))
    await settle(*await serve(server.metrics), QUICK, timeout=30.0)
    assert server.scrapes == 7


async def test_late_counters_are_waited_for(serve: Callable) -> None:
    """Counters that still move after the last request are read until they agree twice."""
    server = Scripted(lambda n: (0, 0, min(n, 4)))
    read = await settle(*await serve(server.metrics), QUICK, timeout=30.0)
    assert server.scrapes == 5
    assert [s.value for s in read.samples if s.name == "vllm:generation_tokens_total"] == [4.0]


async def test_counters_that_never_rest(serve: Callable) -> None:
    """A moving counter ends in an error that names it and its values."""
    server = Scripted(lambda n: (0, 0, n))
    with pytest.raises(SettleTimeout, match=r"in 0\.1 s; still changing: vllm:generation_tokens_total \d+ -> \d+$"):
        await settle(*await serve(server.metrics), QUICK, timeout=0.1)


async def test_requests_that_never_end(serve: Callable) -> None:
    """A stuck request ends in an error that counts what is running and waiting."""
    server = Scripted(lambda _: (2, 1, 0))
    with pytest.raises(SettleTimeout, match="num_requests_running 2, vllm:num_requests_waiting 1"):
        await settle(*await serve(server.metrics), QUICK, timeout=0.1)


async def test_probe_is_sent_at_rest_and_waited_for(serve: Callable) -> None:
    """A rule with a probe sends it once the server rests, then settles again; without a sender it is refused."""
    server = Scripted(lambda n: (int(n <= 2 or n == 4), 0, 7))
    rule = SettleRule(publish_delay_s=0.01, probe=True, read_interval_s=0.001)
    session, url = await serve(server.metrics)
    await settle(session, url, rule, 30.0, probe=server.probe)
    assert server.probed_after == 3
    assert server.scrapes == 6
    with pytest.raises(ValueError, match="asks for a probe"):
        await settle(session, url, rule, 30.0)


async def test_server_without_gauges(serve: Callable) -> None:
    """A server that does not say how many requests it has cannot be settled."""

    async def bare(_request: web.Request) -> web.Response:
        return web.Response(text="# TYPE vllm:x_total counter\nvllm:x_total 1.0\n")

    with pytest.raises(MetricAbsent, match="publishes no vllm:num_requests_running"):
        await settle(*await serve(bare), QUICK, timeout=30.0)


async def test_scrape_of_something_else(serve: Callable) -> None:
    """No metrics page, a page in another format, and no server at all are three errors with the address."""

    async def refuses(_request: web.Request) -> web.Response:
        return web.Response(status=404)

    async def html(_request: web.Request) -> web.Response:
        return web.Response(text="<html>{x}</html>\n")

    with pytest.raises(MetricAbsent, match="/metrics answered HTTP 404"):
        await scrape(*await serve(refuses))
    with pytest.raises(MetricAbsent, match="not answer in Prometheus"):
        await scrape(*await serve(html))
    session, _ = await serve(html)
    with pytest.raises(ServerDied, match=r"no answer from http://127\.0\.0\.1:1/metrics"):
        await scrape(session, "http://127.0.0.1:1")
