"""The load generator against real servers on this machine."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from client_bench import make_bench, make_prompts
from scripted_server import DONE, Call, answer_at_once, serve, start_stream, text_event, usage_event

from harness.client.arrivals import arrival_times
from harness.client.lag import LoopLag
from harness.client.load import run_load
from harness.client.requests import to_records
from harness.errors import UsageError
from harness.lag import Lag


async def answer_when_full(call: Call) -> web.StreamResponse:
    """Hold the first requests until four are in flight, then answer each a little later."""
    await call.server.until(lambda: call.server.most_in_flight == 4)
    await asyncio.sleep(0.005)
    return await answer_at_once(call)


async def test_closed_loop_reaches_its_concurrency_and_never_exceeds_it() -> None:
    """Four in flight, over four connections kept for twelve requests, in prompt order; each record is whole."""
    bench, prompts = make_bench(concurrency=4), make_prompts(12)
    async with serve(answer_when_full) as server:
        load = await run_load(bench, prompts, base_url=server.url, model="m")
    assert server.most_in_flight == 4
    assert len(server.peers) == 4
    assert server.paths == ["/v1/chat/completions"] * 12
    sent = [body["messages"][0]["content"][0]["text"] for body in server.bodies]
    assert sorted(sent) == sorted(prompt.text for prompt in prompts)
    assert set(sent[:4]) == {f"prompt {index}" for index in range(4)}
    records = to_records(load, bench=bench, prompts=prompts)
    assert [record.index for record in records] == list(range(12))
    assert {(record.status, record.text, record.output_tokens) for record in records} == {("ok", "w w w ", 3)}
    assert min(record.sent for record in records) == 0.0


async def test_waiting_for_a_place_is_queue_time_and_not_latency() -> None:
    """With one place, the second request waits for the first, and its clock starts only when it is sent."""

    async def slowly(call: Call) -> web.StreamResponse:
        await asyncio.sleep(0.15)
        return await answer_at_once(call)

    bench, prompts = make_bench(concurrency=1), make_prompts(2)
    async with serve(slowly) as server:
        load = await run_load(bench, prompts, base_url=server.url, model="m")
    first, second = to_records(load, bench=bench, prompts=prompts)
    assert len(server.peers) == 1
    assert first.latency is not None
    assert second.queued >= first.latency >= 0.15
    assert second.sent == pytest.approx(second.queued - first.queued)
    assert load.duration_s >= 0.3


async def test_open_loop_keeps_to_its_plan_however_many_are_in_flight() -> None:
    """Requests leave at their planned times although none has been answered, and are never early."""
    bench, prompts = make_bench(request_rate=100.0, burstiness=1.0, seed=5, concurrency=1), make_prompts(10)

    async def hold(call: Call) -> web.StreamResponse:
        await call.server.until(lambda: len(call.server.bodies) == 10)
        return await answer_at_once(call)

    async with serve(hold) as server:
        load = await run_load(bench, prompts, base_url=server.url, model="m")
    assert server.most_in_flight == 10
    due = np.array([(raw.due_ns - load.started_ns) / 1e9 for raw in load.requests])
    np.testing.assert_allclose(due, arrival_times(10, 100.0, 1.0, seed=5), atol=1e-6)
    assert all(raw.sent_ns >= raw.due_ns - 1_000_000 for raw in load.requests)
    assert {record.status for record in to_records(load, bench=bench, prompts=prompts)} == {"ok"}


async def test_completions_endpoint_and_headers() -> None:
    """The endpoint sets the path; our headers come along; no compression is asked for."""
    bench, prompts = make_bench(endpoint="completions"), make_prompts(1)
    async with serve(answer_at_once) as server:
        await run_load(bench, prompts, base_url=server.url + "/", model="m", headers={"Authorization": "Bearer x"})
    assert server.paths == ["/v1/completions"]
    assert server.headers[0]["Authorization"] == "Bearer x"
    assert server.headers[0]["Accept-Encoding"] == "identity"
    assert server.headers[0]["Content-Type"] == "application/json"


async def test_chunks_are_stamped_as_they_arrive() -> None:
    """The gap that the server makes between two chunks is the gap in the record, not more than the whole request."""

    async def two_bursts(call: Call) -> web.StreamResponse:
        response = await start_stream(call)
        await response.write(text_event("a"))
        await asyncio.sleep(0.2)
        await response.write(text_event("b") + text_event("c") + usage_event(5, 3) + DONE)
        return response

    bench, prompts = make_bench(), make_prompts(1)
    async with serve(two_bursts) as server:
        load = await run_load(bench, prompts, base_url=server.url, model="m")
    (record,) = to_records(load, bench=bench, prompts=prompts)
    assert record.status == "ok"
    assert record.itl[0] > 0.15
    assert record.itl[1] == 0.0
    assert record.ttft is not None
    assert record.latency == pytest.approx(record.ttft + sum(record.itl))


async def test_lines_far_longer_than_a_socket_read_arrive_whole() -> None:
    """A single event of 3 MB, as base64 audio makes them, is one event."""

    async def long_line(call: Call) -> web.StreamResponse:
        response = await start_stream(call)
        await response.write(text_event("x" * 3_000_000) + usage_event(5, 3) + DONE)
        return response

    bench, prompts = make_bench(), make_prompts(1)
    async with serve(long_line) as server:
        load = await run_load(bench, prompts, base_url=server.url, model="m")
    (record,) = to_records(load, bench=bench, prompts=prompts)
    assert (record.status, len(record.text)) == ("ok", 3_000_000)


async def test_progress_counts_every_request() -> None:
    """Progress is told after each request, up to the total."""
    told: list[tuple[int, int]] = []
    async with serve(answer_at_once) as server:
        await run_load(
            make_bench(concurrency=2),
            make_prompts(5),
            base_url=server.url,
            model="m",
            on_progress=lambda done, total: told.append((done, total)),
        )
    assert told == [(done, 5) for done in range(1, 6)]


async def test_garbage_collection_is_off_during_the_load_and_back_after_it() -> None:
    """No collection inside the load; afterwards the collector is as it was."""
    during: list[bool] = []
    before = (gc.isenabled(), gc.get_freeze_count())
    async with serve(answer_at_once) as server:
        await run_load(
            make_bench(),
            make_prompts(1),
            base_url=server.url,
            model="m",
            on_progress=lambda *_: during.append(gc.isenabled()),
        )
    assert during == [False]
    assert (gc.isenabled(), gc.get_freeze_count()) == before


async def test_lag_is_the_worst_delay_of_the_loop() -> None:
    """A loop blocked for 80 ms is late by nearly that much; the worst stands."""
    async with LoopLag(period_s=0.005) as lag:
        await asyncio.sleep(0.02)
        time.sleep(0.08)  # noqa: ASYNC251  (blocking the loop is the point)
        await asyncio.sleep(0.02)
    assert lag.worst.late_ms > 70.0
    assert lag.worst.late_ms - lag.worst.waiting_ms > 70.0, "time that the loop spent itself is no waiting"


async def test_the_part_of_the_lag_without_a_cpu_is_the_kernel_s() -> None:
    """A loop that shares its one CPU with a busy process waits for it, and the lag says how long."""
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    hog = await asyncio.create_subprocess_exec(
        sys.executable, "-Sc", "print(flush=True)\nwhile True: pass", stdout=PIPE
    )
    try:
        await hog.stdout.readline()
        os.sched_setaffinity(hog.pid, one)
        os.sched_setaffinity(0, one)
        before = _waited_ms()
        async with LoopLag(period_s=0.005) as lag:
            await asyncio.sleep(0.02)
            until = time.perf_counter() + 0.2
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0.02)
        waited_ms = _waited_ms() - before
    finally:
        os.sched_setaffinity(0, allowed)
        hog.kill()
        await hog.wait()
    assert 10.0 < lag.worst.waiting_ms <= min(waited_ms, lag.worst.late_ms + 5.0)


@pytest.mark.parametrize("content", ["", "0 0 0\n", "what\n", "12\n"])
async def test_a_kernel_that_says_nothing_of_waiting_is_believed_nothing(tmp_path: Path, content: str) -> None:
    """No statistics, or zeros in place of them, are no proof that nothing was waited for."""
    (tmp_path / "schedstat").write_text(content)
    async with LoopLag(period_s=0.005, schedstat=tmp_path / "schedstat") as lag:
        await asyncio.sleep(0.03)
    assert lag.worst.late_ms > 0.0
    assert lag.worst.waiting_ms is None


def _waited_ms() -> float:
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e6


def test_without_the_kernel_s_word_no_waiting_is_claimed() -> None:
    """A lag of which the kernel says nothing is only late."""
    assert str(Lag(51.4)) == "late by up to 51 ms"
    assert str(Lag(4026.4, 4017.2)) == "late by up to 4026 ms, 4017 ms of it waiting for a CPU"


async def test_no_prompts_is_an_error() -> None:
    """A load of nothing is a mistake of the caller."""
    with pytest.raises(ValueError, match="no prompts"):
        await run_load(make_bench(), [], base_url="http://127.0.0.1:1", model="m")


async def test_body_that_cannot_be_built_stops_the_load_before_it_starts() -> None:
    """A reserved key in `extra_body` is refused before any connection is made."""
    with pytest.raises(UsageError, match="extra_body"):
        await run_load(
            make_bench(extra_body={"stream": False}), make_prompts(1), base_url="http://127.0.0.1:1", model="m"
        )
