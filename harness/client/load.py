"""The load generator: drives one bench at a running server and keeps what came back, raw."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp

from harness.client.arrivals import arrival_times
from harness.client.lag import LoopLag
from harness.client.payload import PATHS, build_payload
from harness.client.stream import RawRequest, exchange, unsent
from harness.lag import Lag
from harness.scenario import Bench
from harness.workloads.prompt import Prompt

Progress = Callable[[int, int], None]
"""Called with (finished, total) after each request, on the event loop: it must be cheap."""

READ_BUFFER = 4 << 20
"""Bytes buffered per stream before the socket is paused: many base64 audio lines."""

KEEP_ALIVE_S = 4.0
"""Idle connections are dropped before uvicorn's 5 s, or a request could meet a connection just being closed."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One bench, raw.

    Parameters:
        started_at: UTC.
        started_ns: `time.perf_counter_ns()` at the start of the load; planned arrivals count from here.
        duration_s: from the start of the load to the end of the last response, as `vllm bench serve` counts it
            (an open loop therefore includes the wait for the first arrival).
        client_lag: worst delay of the client's event loop; None where it was not measured.
        requests: one per prompt, in prompt order.
    """

    started_at: datetime
    started_ns: int
    duration_s: float
    client_lag: Lag | None
    requests: tuple[RawRequest, ...]

    @property
    def first_sent_ns(self) -> int:
        """Origin of the times in request records."""
        return min(raw.sent_ns for raw in self.requests)


@dataclass(slots=True)
class _Load:
    """The state of one running load; touched by one event loop only."""

    session: aiohttp.ClientSession
    url: str
    bodies: Sequence[bytes]
    started_ns: int
    timeout_s: float
    deadline_ns: int | None
    on_progress: Progress | None
    done: list[RawRequest] = field(default_factory=list)
    gone: str | None = None

    async def send(self, index: int, due_ns: int) -> None:
        """Send one request, or give it up where sending is pointless, and keep the result."""
        timeout_s = self.timeout_s
        reason = self.gone
        if self.deadline_ns is not None:
            left_s = (self.deadline_ns - time.perf_counter_ns()) / 1e9
            timeout_s = min(timeout_s, left_s)
            if left_s <= 0:
                reason = reason or "the bench ran out of its total time"
        if reason is not None:
            raw = unsent(index, due_ns=due_ns, reason=reason)
        else:
            raw = await exchange(
                self.session, self.url, self.bodies[index], index=index, due_ns=due_ns, timeout_s=timeout_s
            )
            if raw.refused:
                self.gone = f"the server is gone ({raw.error})"
        self.done.append(raw)
        if self.on_progress is not None:
            self.on_progress(len(self.done), len(self.bodies))

    async def closed_loop(self, concurrency: int) -> None:
        """`concurrency` workers take the prompts in order, each sending its next when its last has ended."""
        pending = iter(range(len(self.bodies)))

        async def work() -> None:
            for index in pending:
                await self.send(index, self.started_ns)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(self.bodies))):
                group.create_task(work())

    async def open_loop(self, due_s: Sequence[float]) -> None:
        """Send each prompt at its planned time, however many are in flight."""
        async with asyncio.TaskGroup() as group:
            for index, offset_s in enumerate(due_s):
                due_ns = self.started_ns + int(offset_s * 1e9)
                wake_ns = due_ns if self.deadline_ns is None else min(due_ns, self.deadline_ns)
                wait_s = (wake_ns - time.perf_counter_ns()) / 1e9
                if wait_s > 0 and self.gone is None:
                    await asyncio.sleep(wait_s)
                group.create_task(self.send(index, due_ns))


async def run_load(
    bench: Bench,
    prompts: Sequence[Prompt],
    *,
    base_url: str,
    model: str,
    on_progress: Progress | None = None,
    timeout_s: float = 600.0,
    total_timeout_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> LoadResult:
    """Drive `prompts` at a server the way `bench` says, and return what came back.

    Closed loop (no `request_rate`): `concurrency` requests in flight over as many kept-alive connections. Open loop:
    requests leave at `arrival_times`, seeded by the bench's seed, over as many connections as it takes.

    A request that fails is a `RawRequest` with the failure; nothing is retried and nothing is raised for it. When the
    address refuses connections the rest fails at once. Cancelling closes every connection.

    Parameters:
        base_url: scheme, host and port (`http://127.0.0.1:8000`).
        model: the name to send; the one `/v1/models` answers.
        timeout_s: bound on each request, so that a stalled stream ends.
        total_timeout_s: bound on the whole load; what is left then fails.
        headers: sent with each request, for example an authorization.

    Raises:
        UsageError: a bench whose body cannot be built.
        ValueError: no prompts.
    """
    if not prompts:
        raise ValueError(f"bench {bench.name}: no prompts")
    bodies = [build_payload(bench, prompt, model) for prompt in prompts]
    due_s: list[float] | None = None
    if bench.request_rate is not None:
        due_s = arrival_times(len(prompts), bench.request_rate, bench.burstiness, bench.seed).tolist()
    async with _session(bench, headers or {}) as session, LoopLag() as lag:
        with _quiet_gc():
            started_at, started_ns = datetime.now(UTC), time.perf_counter_ns()
            load = _Load(
                session,
                base_url.rstrip("/") + PATHS[bench.endpoint],
                bodies,
                started_ns,
                timeout_s,
                None if total_timeout_s is None else started_ns + int(total_timeout_s * 1e9),
                on_progress,
            )
            if due_s is None:
                await load.closed_loop(bench.concurrency)
            else:
                await load.open_loop(due_s)
            finished_ns = max(raw.finished_ns for raw in load.done)
    return LoadResult(
        started_at,
        started_ns,
        (finished_ns - started_ns) / 1e9,
        lag.worst,
        tuple(sorted(load.done, key=lambda raw: raw.index)),
    )


def _session(bench: Bench, headers: Mapping[str, str]) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=bench.concurrency if bench.request_rate is None else 0, keepalive_timeout=KEEP_ALIVE_S
        ),
        # Identity: a compressor on the way would hold chunks back and bunch them.
        headers={"Content-Type": "application/json", "Accept-Encoding": "identity"} | dict(headers),
        # Each exchange carries its own bound.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        read_bufsize=READ_BUFFER,
        trust_env=False,
    )


@contextmanager
def _quiet_gc() -> Iterator[None]:
    """No garbage collection inside: a full collection stops the loop for tens of milliseconds."""
    was_enabled, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    if not was_frozen:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
