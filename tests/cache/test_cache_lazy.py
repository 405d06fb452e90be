"""Rows merged when they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from prefix_cache import CacheConfig, NewRequest, PrefixCache, StepError, StepHandle
from prefix_cache.errors import CacheTimeout


@pytest.fixture
def cache() -> Iterator[PrefixCache]:
    made = PrefixCache(CacheConfig(8, 2, warm_bytes=0, wait_timeout=0.5))
    yield made
    made.shutdown()


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([[value, value] for value in values])


def hit_and_miss(cache: PrefixCache) -> StepHandle:
    """A step with one token each of `hit`, behind tokens 1 and 2, and of `m1` and `m2`, which hit nothing."""
    cache.begin_step({"a": 2}, [NewRequest("a", 0, [0])])
    cache.discard(cache.save_step(["a"], np.array([2]), np.array([0, 1]), {"hidden": rows(1, 2)}))
    new = [NewRequest("hit", 2, [0, 1]), NewRequest("m1", 0, [2]), NewRequest("m2", 0, [3])]
    cache.begin_step({"hit": 1, "m1": 1, "m2": 1}, new, finished={"a"})
    ids = ["hit", "m1", "m2"]
    return cache.save_step(ids, np.array([1, 1, 1]), np.array([2, 4, 6]), {"hidden": rows(3, 4, 5)})


def test_lazy_rows_are_those_of_an_eager_merge(cache: PrefixCache) -> None:
    """The hit prefix in front, requests in the order asked for, and no others."""
    hidden = cache.materialize(hit_and_miss(cache), ["m2", "hit"], lazy=True).rows["hidden"]
    assert list(hidden) == ["m2", "hit"]
    assert len(hidden) == 2
    assert hidden["hit"][:, 0].tolist() == [1, 2, 3]
    assert hidden["m2"][:, 0].tolist() == [5]
    assert hidden["hit"] is hidden["hit"]
    with pytest.raises(KeyError):
        hidden["m1"]


def test_asking_for_rows_and_nothing_else_merges_them(cache: PrefixCache) -> None:
    """Requests without a hit together, by the first one that is read; a hit by itself."""
    hidden = cache.materialize(hit_and_miss(cache), ["hit", "m1", "m2"], lazy=True).rows["hidden"]
    assert "hit" in hidden
    assert set(hidden) == {"hit", "m1", "m2"}
    assert cache.stats().merged_bytes_total == 0
    hidden["hit"]
    assert cache.stats().merged_bytes_total == rows(3).nbytes
    hidden["m1"]
    merged = cache.stats().merge_seconds_total
    hidden["m2"]
    assert cache.stats().merge_seconds_total == merged


def test_a_step_read_lazily_is_consumed(cache: PrefixCache) -> None:
    """At once, whether its rows are read or not; a request that is not of the step is refused at once too."""
    handle = hit_and_miss(cache)
    with pytest.raises(StepError, match="other"):
        cache.materialize(handle, ["other"], lazy=True)
    cache.materialize(handle, ["hit"], lazy=True)
    with pytest.raises(StepError):
        cache.materialize(handle, ["hit"], lazy=True)
    assert cache.stats().materialized_total == 1
    assert cache.stats().open_handles == 0


def test_nobody_waits_for_a_hit_that_is_not_read(cache: PrefixCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the log held up, the other requests' rows are there, and the hit's are what times out."""
    go_on = threading.Event()
    read = type(cache._store).read

    def held_up(*args: object) -> object:
        go_on.wait(20)
        return read(*args)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(type(cache._store), "read", held_up)
    try:
        hidden = cache.materialize(hit_and_miss(cache), ["hit", "m1"], lazy=True).rows["hidden"]
        assert hidden["m1"][:, 0].tolist() == [4]
        with pytest.raises(CacheTimeout, match="hit"):
            hidden["hit"]
    finally:
        go_on.set()
    assert hidden["hit"][:, 0].tolist() == [1, 2, 3]
