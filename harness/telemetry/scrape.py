"""The scrape: one read of a server's `/metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from harness.errors import HarnessFailure, MetricAbsent, ServerDied
from harness.records import Sample

_ANSWER_S = 10.0
_MONOTONE_ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}


@dataclass(frozen=True, slots=True)
class Scrape:
    """Every series of one read.

    Parameters:
        samples: in the server's order, labels kept.
        monotone: names of the samples that never decrease: counters, and the parts of histograms and summaries.
    """

    samples: tuple[Sample, ...]
    monotone: frozenset[str]


def parse(text: str) -> Scrape:
    """Read Prometheus' text format.

    Raises:
        ValueError: the text is not in that format.
    """
    samples: list[Sample] = []
    monotone: set[str] = set()
    for family in text_string_to_metric_families(text):
        endings = _MONOTONE_ENDINGS.get(family.type, ())
        for sample in family.samples:
            samples.append(Sample(name=sample.name, labels=dict(sample.labels), value=float(sample.value)))
            if sample.name.endswith(endings) and endings:
                monotone.add(sample.name)
    return Scrape(samples=tuple(samples), monotone=frozenset(monotone))


async def scrape(session: aiohttp.ClientSession, base_url: str, pages: Sequence[str] = ()) -> Scrape:
    """Read the server's metrics now.

    Parameters:
        pages: addresses of further pages whose series belong to the server, such as its workers' own.

    Raises:
        ServerDied: nobody answers any more.
        MetricAbsent: the answer is not a page of metrics.
        HarnessFailure: no answer in ten seconds.
    """
    reads = [await _page(session, url) for url in (f"{base_url}/metrics", *pages)]
    return Scrape(
        samples=tuple(sample for read in reads for sample in read.samples),
        monotone=frozenset().union(*(read.monotone for read in reads)),
    )


async def _page(session: aiohttp.ClientSession, url: str) -> Scrape:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as answer:
            text = await answer.text(errors="replace")
    except TimeoutError:
        raise HarnessFailure(f"no answer from {url} in {_ANSWER_S:g} s") from None
    except aiohttp.ClientError as error:
        raise ServerDied(f"no answer from {url}: {error}") from error
    if answer.status != 200:
        raise MetricAbsent(f"{url} answered HTTP {answer.status}; the server must publish its metrics there")
    try:
        return parse(text)
    except ValueError as error:
        raise MetricAbsent(f"{url} does not answer in Prometheus' text format: {error}") from error
