"""A gather that more than one thread works on."""

from __future__ import annotations

import threading
from typing import cast

import numpy as np
import pytest
import torch

from prefix_cache.errors import CacheFailed, CacheTimeout
from prefix_cache.gather import Gather
from prefix_cache.operations import Read
from prefix_cache.pool import BufferPool
from prefix_cache.stats import Counters
from prefix_cache.store import RowStore

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
    with pytest.raises(CacheTimeout, match=r"helps to gather it: 1 pieces not filled"):
        gather.finish(0.01)
    piece.may_end.set()
    helper.join(WAIT)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_helper_that_is_interrupted_leaves_its_piece_to_the_first_thread(error: type[BaseException]) -> None:
    """The rows are all there in the end; only what the helper itself must know of is raised in it."""
    rows, failed, other = torch.zeros(2, 1), threading.Event(), Slow(torch.zeros(1), 0.0)
    main = threading.current_thread()

    def piece() -> None:
        if threading.current_thread() is main:
            failed.set()
            raise error
        rows.fill_(3.0)

    gather = Gather({"hidden": rows}, {}, [other, piece])
    worker = threading.Thread(target=gather.finish, args=(WAIT,))
    worker.start()
    assert other.begun.wait(WAIT)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            gather.help()
    else:
        gather.help()
    assert failed.is_set()
    other.may_end.set()
    worker.join(WAIT)
    assert not worker.is_alive()
    assert rows.tolist() == [[3.0], [3.0]]


def test_what_fails_in_the_first_thread_is_raised_there() -> None:
    """The log learns of the error itself."""

    def piece() -> None:
        raise MemoryError("no rows")

    with pytest.raises(MemoryError, match="no rows"):
        Gather({}, {}, [piece]).finish(WAIT)


class OnePiece:
    """A store whose every hit is one row, gathered by two pieces: the first waits for the second."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self._second = threading.Event()

    def read(self, *_: object) -> Gather:
        rows = torch.zeros(2, 1)

        def first() -> None:
            assert self._second.wait(WAIT)
            rows[0] = 1.0

        def second() -> None:
            self.threads.append(threading.current_thread().name)
            rows[1] = 2.0
            self._second.set()

        return Gather({"hidden": rows}, {}, [first, second])


def test_a_consumer_that_comes_before_the_read_helps() -> None:
    """A hit behind a long WRITE is waited for the longest: its consumer does not sleep through the gather."""
    store = OnePiece()
    read = Read(cast("RowStore", store), np.array([0]), 0, BufferPool(1), WAIT, Counters())
    worker = threading.Timer(0.1, read.run)
    worker.start()
    rows = read.result("a", WAIT)
    worker.join(WAIT)
    assert rows["hidden"].tolist() == [[1.0], [2.0]]
    assert store.threads == [threading.current_thread().name]


def test_a_read_that_has_failed_is_not_gathered_further() -> None:
    """Who asks then learns why, and copies nothing."""
    store = OnePiece()
    read = Read(cast("RowStore", store), np.array([0]), 0, BufferPool(1), WAIT, Counters())
    read.abandon(MemoryError("no rows"))
    with pytest.raises(CacheFailed, match="no rows"):
        read.result("a", WAIT)
    assert store.threads == []
