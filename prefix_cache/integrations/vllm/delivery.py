"""The thread that merges steps and hands complete prompts to the consumer, so that the engine waits for neither."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from prefix_cache.cache import PrefixCache
from prefix_cache.errors import CacheFailed, CacheTimeout
from prefix_cache.integrations.vllm.consumer import Consumer
from prefix_cache.integrations.vllm.prompts import Piece
from prefix_cache.step import StepHandle

KEY = "hidden"
"""The key under which the hidden states stand in the cache."""


class Delivery:
    """Steps with parts of prompts, in order.

    Parameters:
        capacity: steps that may wait; `submit` blocks beyond, so that a slow consumer slows the engine down and
            does not fill the memory.
        timeout: seconds that `submit` and `close` may block.
    """

    def __init__(self, cache: PrefixCache, consumer: Consumer, capacity: int, timeout: float) -> None:
        self._cache, self._consumer = cache, consumer
        self._capacity, self._timeout = capacity, timeout
        self._pending: deque[tuple[StepHandle, Sequence[Piece]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._failure: BaseException | None = None
        self._worker = threading.Thread(target=self._work, name="prefix-cache-delivery", daemon=True)
        self._worker.start()

    def check(self) -> None:
        """Raises CacheFailed when a merge or the consumer has failed."""
        if self._failure is not None:
            raise CacheFailed(f"a prompt's rows were not delivered: {self._failure!r}") from self._failure

    def submit(self, handle: StepHandle, pieces: Sequence[Piece]) -> None:
        """Takes a saved step over; its handle is consumed here.

        Raises:
            CacheTimeout: the consumer did not keep up.
            CacheFailed: an earlier delivery failed.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: len(self._pending) < self._capacity or self._failure is not None, self._timeout
            ):
                raise CacheTimeout(
                    f"waited {self._timeout:g} s for the consumer: {len(self._pending)} steps wait to be delivered"
                )
            self.check()
            self._pending.append((handle, pieces))
            self._changed.notify_all()

    def close(self) -> None:
        """Delivers what is left, then ends the thread. Idempotent.

        Raises:
            CacheTimeout: the consumer did not return in time.
            CacheFailed: not everything was delivered.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join(self._timeout)
        if self._worker.is_alive():
            raise CacheTimeout(f"waited {self._timeout:g} s for the consumer to return")
        self.check()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if not self._pending:
                    return
                handle, pieces = self._pending.popleft()
                self._changed.notify_all()
            try:
                self._deliver(handle, pieces)
            except Exception as error:
                with self._changed:
                    self._failure = error
                    self._pending.clear()
                    self._changed.notify_all()
                return
            del handle, pieces

    def _deliver(self, handle: StepHandle, pieces: Sequence[Piece]) -> None:
        rows = self._cache.materialize(handle, [piece.prompt.request_id for piece in pieces]).rows[KEY]
        for piece in pieces:
            prompt = piece.prompt
            prompt.pieces.append(rows[prompt.request_id])
            if piece.last:
                self._consumer(prompt.request_id, prompt.token_ids, prompt.hit_tokens, prompt.rows())
                prompt.pieces.clear()
