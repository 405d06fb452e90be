"""The raw stream: what the hot path keeps of one request, and the exchange that fills it.

The exchange stamps the clock and keeps the bytes. It decodes nothing: parsing 64 streams between two reads would
delay the very arrivals it measures (docs/design.md, section 6).
"""

from __future__ import annotations

import asyncio
import errno
import time
from dataclasses import dataclass

import aiohttp

Arrival = tuple[int, bytes]
"""One read from the socket: `time.perf_counter_ns()` right after it, and its bytes."""


@dataclass(frozen=True, slots=True)
class RawRequest:
    """One request as the socket saw it. All instants are `time.perf_counter_ns()`.

    Parameters:
        index: position in the prompt list.
        due_ns: when it could first have been sent: the start of a closed loop, the planned arrival of an open one.
        sent_ns: just before the POST; for a request that was never sent, when it was given up.
        finished_ns: end of the response, or of the attempt.
        http_status: None when no status line came.
        arrivals: the body, read by read. Reads do not follow event boundaries.
        error: what the transport said; None when the response ended in an orderly way (whatever it said).
        refused: nobody listens at the address.
    """

    index: int
    due_ns: int
    sent_ns: int
    finished_ns: int
    http_status: int | None
    arrivals: tuple[Arrival, ...]
    error: str | None
    refused: bool = False


async def exchange(
    session: aiohttp.ClientSession, url: str, body: bytes, *, index: int, due_ns: int, timeout_s: float
) -> RawRequest:
    """Post one body and keep its response. Failures are returned, never raised; only cancellation propagates.

    Parameters:
        timeout_s: bound on the whole exchange, connecting included.
    """
    clock = time.perf_counter_ns
    arrivals: list[Arrival] = []
    status: int | None = None
    error: str | None = None
    refused = False
    sent_ns = clock()
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.post(url, data=body, allow_redirects=False) as response,
        ):
            status = response.status
            read = response.content.readany
            while data := await read():
                arrivals.append((clock(), data))
    except TimeoutError:
        error = f"no end of the response within {timeout_s:.3g} s"
    except aiohttp.ClientConnectorError as exc:
        refused = exc.os_error.errno == errno.ECONNREFUSED
        error = f"{type(exc).__name__}: {exc}"
    except Exception as exc:
        # Whatever goes wrong with one request is that request's result; it must not cost the others theirs.
        error = f"{type(exc).__name__}: {exc}"
    return RawRequest(index, due_ns, sent_ns, clock(), status, tuple(arrivals), error, refused)


def unsent(index: int, *, due_ns: int, reason: str) -> RawRequest:
    """A request that was given up before it was sent."""
    now = time.perf_counter_ns()
    return RawRequest(index, due_ns, now, now, None, (), f"not sent: {reason}")
