"""Each way a server can fail a request ends as a failed record, soon, and costs the other requests nothing."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest
from aiohttp import web
from client_bench import make_bench, make_prompts
from scripted_server import Call, ScriptedServer, answer_at_once, serve, start_stream, text_event

from harness.client.load import run_load
from harness.client.requests import to_records
from harness.records import RequestRecord
from harness.scenario import Bench


async def refuse(_call: Call) -> web.StreamResponse:
    return web.json_response({"error": {"message": "prompt too long"}}, status=400)


async def redirect(_call: Call) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "/elsewhere"}, text="moved")


async def stall(call: Call) -> web.StreamResponse:
    response = await start_stream(call)
    await response.write(text_event("a"))
    await asyncio.sleep(60)
    return response


async def hang_up(call: Call) -> web.StreamResponse:
    response = await start_stream(call)
    await response.write(text_event("a"))
    assert call.request.transport is not None
    call.request.transport.close()
    return response


async def never_answer(call: Call) -> web.StreamResponse:
    assert call.request.transport is not None
    call.request.transport.close()
    await asyncio.sleep(60)
    raise AssertionError("unreachable")


async def stop_early(call: Call) -> web.StreamResponse:
    response = await start_stream(call)
    await response.write(text_event("a"))
    return response


async def load_of(server: ScriptedServer, bench: Bench, count: int, **settings: Any) -> list[RequestRecord]:
    prompts = make_prompts(count)
    load = await run_load(bench, prompts, base_url=server.url, model="m", **settings)
    return to_records(load, bench=bench, prompts=prompts)


@pytest.mark.parametrize(
    ("script", "http_status", "reason"),
    [
        (refuse, 400, "HTTP 400: {"),
        (redirect, 307, "HTTP 307: moved"),
        (stall, 200, "no end of the response within 1.5 s"),
        (hang_up, 200, "ClientPayloadError"),
        (never_answer, None, "ServerDisconnectedError"),
        (stop_early, 200, "without [DONE] after 1 text"),
    ],
)
async def test_one_bad_request_fails_alone(script: Any, http_status: int | None, reason: str) -> None:
    """The third of five requests goes wrong: it fails with its reason, was sent once, and four succeed."""

    async def third_goes_wrong(call: Call) -> web.StreamResponse:
        bad = call.body["messages"][0]["content"][0]["text"] == "prompt 2"
        return await (script if bad else answer_at_once)(call)

    async with serve(third_goes_wrong) as server:
        records = await load_of(server, make_bench(concurrency=2), 5, timeout_s=1.5)
    assert [record.status for record in records] == ["ok", "ok", "failed", "ok", "ok"]
    assert records[2].http_status == http_status
    assert reason in (records[2].error or "")
    assert len(server.bodies) == 5
    assert gc.isenabled()


async def test_partial_answers_keep_what_was_seen() -> None:
    """A stalled stream's first token was measured, and stays in the failed record."""
    async with serve(stall) as server:
        (record,) = await load_of(server, make_bench(), 1, timeout_s=0.2)
    assert (record.status, record.text) == ("failed", "a")
    assert record.ttft is not None


async def test_total_time_bounds_the_load() -> None:
    """All streams stall: those in flight are cut at the total time, those behind them are never sent."""
    began = asyncio.get_running_loop().time()
    async with serve(stall) as server:
        records = await load_of(server, make_bench(concurrency=2), 50, timeout_s=30.0, total_timeout_s=0.3)
        sent = len(server.bodies)
    assert asyncio.get_running_loop().time() - began < 10
    assert sent == 2
    assert [record.status for record in records] == ["failed"] * 50
    assert {record.error for record in records[2:]} == {"not sent: the bench ran out of its total time"}


async def test_total_time_bounds_an_open_loop_between_arrivals() -> None:
    """A plan that is longer than the total time is given up at that time, not at its end."""
    began = asyncio.get_running_loop().time()
    async with serve(answer_at_once) as server:
        records = await load_of(server, make_bench(request_rate=0.05), 3, total_timeout_s=0.2)
    assert asyncio.get_running_loop().time() - began < 10
    assert {record.status for record in records} == {"failed"}


@pytest.mark.parametrize("traffic", [{"concurrency": 3}, {"request_rate": 1000.0}], ids=["closed", "open"])
async def test_absent_server_fails_everything_at_once(traffic: dict[str, Any]) -> None:
    """Nobody listens: every request fails with that reason, most without being sent."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        records = await load_of(ScriptedServer(url=url), make_bench(**traffic), 200)
    assert [record.status for record in records] == ["failed"] * 200
    assert any("ClientConnectorError" in (record.error or "") for record in records)
    assert sum("not sent: the server is gone" in (record.error or "") for record in records) > 100


async def test_server_that_dies_mid_load_ends_the_load() -> None:
    """The server goes at its fourth request: three count, the fourth is cut off, the rest fails without waiting."""

    async def last_breath(call: Call) -> web.StreamResponse:
        if len(call.server.bodies) < 4:
            return await answer_at_once(call)
        assert call.server.stop is not None
        await call.server.stop()
        return await never_answer(call)

    async with serve(last_breath) as server:
        records = await load_of(server, make_bench(), 100)
    assert [record.status for record in records] == ["ok"] * 3 + ["failed"] * 97
    assert "ServerDisconnectedError" in (records[3].error or "")
    assert "ClientConnectorError" in (records[4].error or "")
    assert all((record.error or "").startswith("not sent: the server is gone") for record in records[5:])


async def test_cancelling_closes_every_connection() -> None:
    """A cancelled load ends at once, the server sees its clients go, and the collector is back on."""
    async with serve(stall) as server:
        task = asyncio.create_task(load_of(server, make_bench(concurrency=3), 9))
        await server.until(lambda: server.in_flight == 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await server.until(lambda: server.in_flight == 0)
        assert server.disconnected == 3
        assert len(server.bodies) == 3
    assert gc.isenabled()


async def test_progress_that_raises_ends_the_load_and_restores_the_collector() -> None:
    """An error in the caller's own callback is not swallowed."""

    def broken(_done: int, _total: int) -> None:
        raise RuntimeError("broken bar")

    async with serve(answer_at_once) as server:
        with pytest.raises(ExceptionGroup) as caught:
            await load_of(server, make_bench(), 2, on_progress=broken)
    assert caught.group_contains(RuntimeError, match="broken bar")
    assert gc.isenabled()
