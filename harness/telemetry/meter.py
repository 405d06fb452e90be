"""The meter: a running server's counters, read at rest, and what our own reading adds to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

import aiohttp

from harness.client.small_request import SmallRequests
from harness.errors import InvalidRun
from harness.servers.kinds import SettleRule
from harness.telemetry.counters import HIT_COUNTERS, HITS, QUERIES, delta, stage_samples
from harness.telemetry.scrape import Scrape
from harness.telemetry.settle import settle

_PROBE_TOKENS = 1
"""One step, so that the publication it brings about already shows it finished."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at rest.

    Parameters:
        scrape: all series, with everything the server did up to now.
        probe: what of stage 0's hit counters is the probe of this very reading; empty where none was sent.
    """

    scrape: Scrape
    probe: Mapping[str, float]


class Meter:
    """Reads one server by its kind's rule.

    Where the rule asks for a probe, each reading contains the probe that brought it about, so that between two
    readings lies exactly one probe that is not the load's: the later one's. `calibrate` measures what a probe counts
    for on this server, by two readings with nothing between them.

    Parameters:
        session: for the scrapes.
        requests: where the server is, and how probes are sent.
        rule: how the server publishes.
        pages: addresses of further pages whose series belong to the server.
        tag: unique to the trial; probes are made unique by it.
        timeout: seconds for one reading.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        requests: SmallRequests,
        rule: SettleRule,
        pages: tuple[str, ...],
        tag: str,
        timeout: float,
    ) -> None:
        self._session, self._requests, self._rule, self._pages = session, requests, rule, pages
        self._tag, self._timeout = tag, timeout
        self._numbers = count(1)
        self._counted: float | None = None
        self._hits = 0.0
        self._tokens: int | None = None

    async def calibrate(self) -> None:
        """Measure a probe. To be called once, at rest, before the first reading; nothing where the rule has none.

        Raises:
            InvalidRun: the counters do not move by the probe's own tokens, so they could not be trusted to the token.
        """
        if not self._rule.probe:
            return
        first, second = await self._settle(), await self._settle()
        series = sum(sample.name == QUERIES for sample in stage_samples(first))
        if series > 1:
            raise InvalidRun(
                f"stage 0 has {series} replicas; a probe reaches one of them, and what the others have not published "
                "is missing; allowed: one replica of stage 0"
            )
        moved = delta(first, second, HIT_COUNTERS)
        queries, hits = moved[QUERIES], moved[HITS]
        if queries and self._tokens is not None and queries != self._tokens:
            raise InvalidRun(
                f"{QUERIES} of stage 0 moved by {queries:g} around a probe of {self._tokens} tokens on a server at "
                "rest: another client uses it, or it publishes in another way than is known"
            )
        self._counted, self._hits = queries, hits

    async def read(self) -> Reading:
        """Settle and read.

        Raises:
            SettleTimeout, MetricAbsent, ServerDied: as `settle`.
        """
        scrape = await self._settle()
        if not self._rule.probe:
            return Reading(scrape, {})
        if self._counted is None:
            raise ValueError("a meter with a probe is to be calibrated first")
        # With the cache off nothing is looked up, for a probe neither.
        tokens = self._counted if self._tokens is None or not self._counted else float(self._tokens)
        return Reading(scrape, {QUERIES: tokens, HITS: self._hits})

    async def _settle(self) -> Scrape:
        return await settle(
            self._session, self._requests.base_url, self._rule, self._timeout, self._probe, pages=self._pages
        )

    async def _probe(self) -> None:
        text = f"Probe {next(self._numbers)} of {self._tag}"
        self._tokens = (await self._requests.send(text, _PROBE_TOKENS, "a probe")).prompt_tokens
