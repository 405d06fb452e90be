import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from late_server import INTERVAL_S, LateServer

from harness.client.small_request import SmallRequests
from harness.errors import InvalidRun
from harness.scenario import Bench
from harness.servers.kinds import SettleRule
from harness.telemetry.counters import HIT_COUNTERS, HITS, QUERIES, metrics_delta
from harness.telemetry.meter import Meter
from harness.workloads.prompt import Prompt

TestServer.__test__ = False  # type: ignore[attr-defined]  # pytest would collect the imported class by its name

RULE = SettleRule(
    publish_delay_s=INTERVAL_S * 1.5, probe=True, gauges=("vllm_omni:num_requests_running",), read_interval_s=0.001
)
BENCH = Bench.model_validate(
    {"name": "b", "dataset": "random", "concurrency": 1, "prompts": 1, "seed": 0, "output": 1, "shared_prefix": 0}
    | {"random_len": 8, "range_ratio": 0.0}
)

Start = Callable[..., Awaitable[Meter]]


@pytest.fixture
async def meter_of() -> AsyncIterator[Start]:
    """A meter on a late server; `pages` are handlers of further pages."""
    started: list[TestServer] = []
    async with aiohttp.ClientSession() as session:

        async def start(late: LateServer, *pages: Callable[[web.Request], Awaitable[web.Response]]) -> Meter:
            application = late.application()
            for number, page in enumerate(pages):
                application.router.add_get(f"/page{number}", page)
            server = TestServer(application)
            await server.start_server()
            started.append(server)
            url = str(server.make_url("")).rstrip("/")
            requests = SmallRequests(session, url, "m", BENCH, Prompt(text="", prompt_len=1, output_len=1))
            addresses = tuple(f"{url}/page{number}" for number in range(len(pages)))
            return Meter(session, requests, RULE, addresses, "r01-1-on", timeout=30.0)

        yield start
    for server in started:
        await server.close()


async def measured(meter: Meter, late: LateServer, *load: str) -> dict[str, float]:
    """What a meter says of a load, as a trial asks it."""
    before = await meter.read()
    for text in load:
        late.step(text)
    after = await meter.read()
    return metrics_delta(before.scrape, after.scrape, HIT_COUNTERS, probe=after.probe).delta


@pytest.mark.parametrize("tells", [True, False], ids=["usage", "no usage"])
@pytest.mark.parametrize("hits", [0, 2])
async def test_a_load_is_measured_to_the_token(meter_of: Start, hits: int, tells: bool) -> None:
    """What is published late is counted, and no probe's tokens or hits are; a stale gauge of a stage is no obstacle."""
    late = LateServer(hits=hits, tells=tells)
    late.step("first request")
    meter = await meter_of(late)
    await meter.calibrate()
    assert await measured(meter, late, "a b c d e", "f g h") == {QUERIES: 8.0, HITS: 2.0 * hits}
    assert await measured(meter, late) == {QUERIES: 0.0, HITS: 0.0}
    assert late.probes == 6


async def test_with_the_cache_off_nothing_is_subtracted(meter_of: Start) -> None:
    """A probe looks nothing up then, so its tokens are not in the counters."""
    late = LateServer(caching=False)
    meter = await meter_of(late)
    await meter.calibrate()
    assert await measured(meter, late, "a b c") == {QUERIES: 0.0, HITS: 0.0}


async def test_a_server_that_somebody_else_uses_is_not_trusted(meter_of: Start) -> None:
    """Between two readings of a server at rest lies one probe and nothing else."""
    late = LateServer()
    meter = await meter_of(late)

    async def other() -> None:
        while True:
            late.step("from somebody else")
            await asyncio.sleep(INTERVAL_S / 5)

    task = asyncio.create_task(other())
    # Counters that never rest have their own error; these come to rest between two requests of the other client.
    with pytest.raises(InvalidRun, match=r"moved by \d+ around a probe of 4 tokens on a server at rest"):
        await meter.calibrate()
    task.cancel()


async def test_replicas_that_a_probe_cannot_reach_are_refused(meter_of: Start) -> None:
    meter = await meter_of(LateServer(replicas=2))
    with pytest.raises(InvalidRun, match="stage 0 has 2 replicas"):
        await meter.calibrate()


async def test_a_workers_own_page_is_part_of_every_reading(meter_of: Start) -> None:
    """Its series keep their labels, and their increase is in the delta."""
    rows = 3

    async def page(_request: web.Request) -> web.Response:
        return web.Response(
            text="# TYPE prefix_cache:rows_written_total counter\n"
            f'prefix_cache:rows_written_total{{stage="0",engine="e"}} {rows}.0\n'
        )

    late = LateServer()
    meter = await meter_of(late, page)
    await meter.calibrate()
    before = await meter.read()
    rows = 7
    after = await meter.read()
    found = metrics_delta(before.scrape, after.scrape, HIT_COUNTERS, probe=after.probe)
    assert found.delta["prefix_cache:rows_written_total"] == 4.0
    assert {s.labels["engine"] for s in found.after if s.name.startswith("prefix_cache:")} == {"e"}
    assert found.probe == {QUERIES: 4.0, HITS: 0.0}


async def test_a_reading_before_the_calibration_is_refused(meter_of: Start) -> None:
    meter = await meter_of(LateServer())
    with pytest.raises(ValueError, match="calibrated first"):
        await meter.read()
