"""A gather that more than one thread works on."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from prefix_cache.errors import CacheTimeout
from prefix_cache.gather import Gather

WAIT = 10.0


class Slow:
    """A piece that says when it has begun, and ends when it may."""

    def __init__(self, rows: torch.Tensor, value: float) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self._rows, self._value = rows, value

    def __call__(self) -> None:
        self.begun.set()
        assert self.may_end.wait(WAIT)
        self._rows.fill_(self._value)


def test_a_helper_takes_what_the_first_thread_has_not_begun() -> None:
    """While one thread is at its piece, a second fills the other, and does not wait for the first."""
    rows = torch.zeros(2, 3)
    first, second = Slow(rows[0], 1.0), Slow(rows[1], 2.0)
    second.may_end.set()
    gather = Gather({"hidden": rows}, {}, [first, second])
    worker = threading.Thread(target=gather.finish, args=(WAIT,))
    worker.start()
    assert first.begun.wait(WAIT)
    gather.help()
    assert rows.tolist() == [[0.0] * 3, [2.0] * 3]
    first.may_end.set()
    worker.join(WAIT)
    assert rows.tolist() == [[1.0] * 3, [2.0] * 3]


def test_finish_waits_for_the_helper_and_zeroes_what_is_absent() -> None:
    """Nothing is finished while somebody fills a piece, and absent rows are zeros whoever filled them."""
    rows = torch.ones(2, 3)
    piece = Slow(rows, 5.0)
    gather = Gather({"hidden": rows}, {"hidden": np.array([1])}, [piece])
    helper = threading.Thread(target=gather.help)
    helper.start()
    assert piece.begun.wait(WAIT)
    worker = threading.Thread(target=gather.finish, args=(WAIT,))
    worker.start()
    worker.join(0.05)
    assert worker.is_alive()
    piece.may_end.set()
    worker.join(WAIT)
    helper.join(WAIT)
    assert rows.tolist() == [[5.0] * 3, [0.0] * 3]


def test_a_helper_that_hangs_is_named() -> None:
    """The log's worker does not wait for ever."""
    piece = Slow(torch.zeros(1, 1), 0.0)
    gather = Gather({}, {}, [piece])
    helper = threading.Thread(target=gather.help)
    helper.start()
    assert piece.begun.wait(WAIT)
    with pytest.raises(CacheTimeout, match="a thread that helps to gather"):
        gather.finish(0.01)
    piece.may_end.set()
    helper.join(WAIT)
