"""Settle: wait until a server has nothing to do and has published everything it did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import aiohttp

from harness.errors import SettleTimeout
from harness.servers.kinds import SettleRule
from harness.telemetry.counters import changed, total
from harness.telemetry.scrape import Scrape, scrape

_SHOWN = 5


async def settle(
    session: aiohttp.ClientSession,
    base_url: str,
    rule: SettleRule,
    timeout: float,
    probe: Callable[[], Awaitable[None]] | None = None,
    pages: Sequence[str] = (),
) -> Scrape:
    """Wait for rest, then for the server kind's own publish rule, then until two reads in a row agree.

    Parameters:
        timeout: seconds for all of it.
        probe: sends the one request that `rule.probe` asks for; its own tokens are the caller's to subtract.
        pages: addresses of further pages whose series belong to the server.

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
        await _rest(session, base_url, rule, deadline, timeout, pages)
        await asyncio.sleep(rule.publish_delay_s)
    if rule.probe and probe is not None:
        await probe()
    previous: Scrape | None = None
    while True:
        read = await _rest(session, base_url, rule, deadline, timeout, pages)
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
    session: aiohttp.ClientSession,
    base_url: str,
    rule: SettleRule,
    deadline: float,
    timeout: float,
    pages: Sequence[str],
) -> Scrape:
    """Read until no request is running or waiting on any stage."""
    while True:
        read = await scrape(session, base_url, pages)
        busy = {gauge: number for gauge in rule.gauges if (number := total(read, gauge))}
        if not busy:
            return read
        if time.monotonic() > deadline:
            shown = ", ".join(f"{gauge} {number:g}" for gauge, number in busy.items())
            raise SettleTimeout(f"{base_url} did not come to rest in {timeout:g} s: {shown}")
        await asyncio.sleep(rule.read_interval_s)
