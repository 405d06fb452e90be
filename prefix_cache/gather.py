"""A hit's rows on their way out of the store, in pieces that more than one thread can take."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prefix_cache.errors import CacheTimeout


class Gather:
    """Rows being gathered. It ends with `finish`; whoever waits for the rows in the meantime may `help`.

    Parameters:
        rows: what is filled, by key.
        absent: positions that end up as zeros, by key.
        pieces: each fills a part of `rows` of its own, and may be tried again.
    """

    def __init__(
        self,
        rows: Mapping[str, Tensor],
        absent: Mapping[str, npt.NDArray[np.int64]],
        pieces: Iterable[Callable[[], None]],
    ) -> None:
        self.rows = rows
        self._absent = absent
        self._pieces = deque(pieces)
        self._unfinished = len(self._pieces)
        self._changed = threading.Condition()

    def help(self) -> None:
        """Fills pieces until each is taken; others may not be through with theirs.

        A piece that fails, or is interrupted, is left to `finish`.
        """
        with suppress(Exception):
            self._fill()

    def finish(self, timeout: float) -> int:
        """Returns when every row is there: how many of them are absent, and zeros.

        Raises:
            CacheTimeout: a helper was not through with its piece after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while self._unfinished:
            self._fill()
            with self._changed:
                if not self._changed.wait_for(
                    lambda: self._pieces or not self._unfinished, max(0.0, deadline - time.monotonic())
                ):
                    raise CacheTimeout(
                        f"waited {timeout:g} s for a thread that asked for a hit and helps to gather it: "
                        f"{self._unfinished} pieces not filled"
                    )
        for key, positions in self._absent.items():
            self.rows[key][torch.from_numpy(positions)] = 0
        return sum(map(len, self._absent.values()))

    def _fill(self) -> None:
        while True:
            try:
                piece = self._pieces.popleft()
            except IndexError:
                return
            try:
                piece()
            except BaseException:
                with self._changed:
                    self._pieces.append(piece)
                    self._changed.notify_all()
                raise
            with self._changed:
                self._unfinished -= 1
                self._changed.notify_all()
