"""A hit's rows on their way out of the store, in pieces that more than one thread can take."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping

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
        pieces: each fills a part of `rows` of its own.
    """

    def __init__(
        self,
        rows: Mapping[str, Tensor],
        absent: Mapping[str, npt.NDArray[np.int64]],
        pieces: Iterable[Callable[[], None]],
    ) -> None:
        self.rows, self.absent = rows, absent
        self._pieces = deque(pieces)
        self._unfinished = len(self._pieces)
        self._lock = threading.Lock()
        self._filled = threading.Event()
        if not self._pieces:
            self._filled.set()

    def help(self) -> None:
        """Fills pieces until each is taken; others may not be through with theirs."""
        while True:
            try:
                piece = self._pieces.popleft()
            except IndexError:
                return
            piece()
            with self._lock:
                self._unfinished -= 1
                if not self._unfinished:
                    self._filled.set()

    def finish(self, timeout: float) -> None:
        """Returns when every row is there.

        Raises:
            CacheTimeout: a helper did not fill its piece within `timeout` seconds.
        """
        self.help()
        if not self._filled.wait(timeout):
            raise CacheTimeout(f"waited {timeout:g} s for a thread that helps to gather a hit")
        for key, positions in self.absent.items():
            self.rows[key][torch.from_numpy(positions)] = 0
