"""The watchdog tells a server that hangs from one that is slow, unwell or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from harness.watchdog import hung

PATIENCE_S = 0.6


async def watched(answer: Callable[[int], Awaitable[web.Response]], seconds: float) -> bool:
    """Whether the watchdog calls a server hung that answers its n-th `/health` so, within `seconds`."""
    asked = 0

    async def health(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return await answer(asked)

    app = web.Application()
    app.router.add_get("/health", health)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        try:
            await asyncio.wait_for(hung(session, f"http://127.0.0.1:{server.port}", PATIENCE_S), seconds)
        except TimeoutError:
            return False
        return True


async def silent(_number: int) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


async def unwell(_number: int) -> web.Response:
    return web.Response(status=503)


async def sometimes(number: int) -> web.Response:
    return await (unwell(number) if number % 3 == 0 else silent(number))


@pytest.mark.parametrize(
    ("answer", "hangs"), [(silent, True), (unwell, False), (sometimes, False)], ids=["silent", "503", "two in a row"]
)
async def test_only_three_silences_in_a_row_are_a_hang(
    answer: Callable[[int], Awaitable[web.Response]], hangs: bool
) -> None:
    assert await watched(answer, 20.0 if hangs else 4 * PATIENCE_S) is hangs


async def test_a_server_that_is_gone_does_not_hang(unused_tcp_port_factory: Callable[[], int]) -> None:
    """Refused connections fail the requests themselves, at once: not a matter of patience."""
    url = f"http://127.0.0.1:{unused_tcp_port_factory()}"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hung(session, url, PATIENCE_S), 3 * PATIENCE_S)
