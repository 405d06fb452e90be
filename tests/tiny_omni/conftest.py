"""Engines of the reference server, small enough to start in every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served import config

from harness.tiny_omni.engine import Engine


@pytest.fixture(params=[False, True], ids=["cache_off", "cache_on"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from _running(request.param)


@pytest.fixture
def caching_engine() -> Iterator[Engine]:
    yield from _running(True)


@pytest.fixture(scope="module")
def idle_engine() -> Iterator[Engine]:
    """Never started: what reaches it stays."""
    engine = Engine(config(False))
    yield engine
    engine.shutdown()


def _running(caching: bool) -> Iterator[Engine]:
    engine = Engine(config(caching))
    engine.start()
    yield engine
    engine.shutdown()
