"""The way out of a worker process: its cache's series on a page of their own, for whoever measures the server.

A worker has no page of metrics: it serves the engine over pipes. What it tells instead is one line of its log,
`proof_line`, which says that this cache is the one in use, and where its series are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from prefix_cache.integrations.series import cache_families
from prefix_cache.stats import CacheStats

PROOF = "prefix_cache: bundled in use"
"""How the line of proof begins; `key=value` words follow."""


class _CacheCollector(Collector):
    def __init__(self, stats: Callable[[], CacheStats], labels: Mapping[str, str]) -> None:
        self._stats, self._labels = stats, labels

    def collect(self) -> Iterator[Metric]:
        return cache_families(self._stats(), self._labels)


class Exposition:
    """A page of one cache's series on a free port of 127.0.0.1, read at the moment of the request.

    Parameters:
        stats: the cache's snapshot, called on the page's own thread.
        labels: put on every series, such as `stage`, `replica` and `engine`.
    """

    def __init__(self, stats: Callable[[], CacheStats], labels: Mapping[str, str]) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_CacheCollector(stats, labels))
        self._server: WSGIServer
        self._thread: Thread
        self._server, self._thread = start_http_server(0, addr="127.0.0.1", registry=registry)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Ends the page. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def proof_line(**facts: object) -> str:
    """The line of proof: `prefix_cache: bundled in use pid=4711 stage=0 ...`. Values hold no blanks."""
    words = {"pid": os.getpid(), **facts}
    return " ".join([PROOF, *(f"{key}={str(value).replace(' ', '')}" for key, value in words.items())])
