"""Settle: wait until a server has nothing to do and has published everything it did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp

from harness.errors import SettleTimeout
from harness.servers.kinds import SettleRule
from harness.telemetry.counters import changed, total
from harness.telemetry.scrape import Scrape, scrape

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
_SHOWN = 5


async def settle(
    session: aiohttp.ClientSession,
    base_url: str,
    rule: SettleRule,
    timeout: float,
    probe: Callable[[], Awaitable[None]] | None = None,
) -> Scrape:
    """Wait for rest, then for the server kind's own publish rule, then until two reads in a row agree.

    Parameters:
        timeout: seconds for all of it.
        probe: sends the one request that `rule.probe` asks for; its own tokens are the caller's to subtract.

    Returns:
        The last of the agreeing reads.

    Raises:
        SettleTimeout: with what was still going on.
        MetricAbsent: the server does not say how many requests it has.
        ServerDied: nobody answers any more.
    """
    if rule.probe and probe is None:
        raise ValueError("this server's settle rule asks for a probe")
    deadline = time.monotonic() + timeout
    if rule.publish_delay_s > 0 or rule.probe:
        await _rest(session, base_url, rule, deadline, timeout)
        await asyncio.sleep(rule.publish_delay_s)
    if rule.probe and probe is not None:
        await probe()
    previous: Scrape | None = None
    while True:
        read = await _rest(session, base_url, rule, deadline, timeout)
        moving = ["no second read"] if previous is None else changed(previous, read, rule.counters)
        if not moving:
            return read
        previous = read
        if time.monotonic() > deadline:
            more = f" and {len(moving) - _SHOWN} more" if len(moving) > _SHOWN else ""
            raise SettleTimeout(
                f"{base_url} did not come to rest in {timeout:g} s; still changing: {', '.join(moving[:_SHOWN])}{more}"
            )
        await asyncio.sleep(rule.read_interval_s)


async def _rest(
    session: aiohttp.ClientSession, base_url: str, rule: SettleRule, deadline: float, timeout: float
) -> Scrape:
    """Read until no request is running or waiting on any stage."""
    while True:
        read = await scrape(session, base_url)
        running, waiting = total(read, RUNNING), total(read, WAITING)
        if running == 0 and waiting == 0:
            return read
        if time.monotonic() > deadline:
            raise SettleTimeout(
                f"{base_url} did not come to rest in {timeout:g} s: {running:g} requests running, {waiting:g} waiting"
            )
        await asyncio.sleep(rule.read_interval_s)
