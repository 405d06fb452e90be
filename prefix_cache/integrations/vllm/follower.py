"""One engine's cache, followed step by step: what the worker calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from prefix_cache.cache import PrefixCache
from prefix_cache.integrations.vllm.consumer import Consumer
from prefix_cache.integrations.vllm.delivery import KEY, Delivery
from prefix_cache.integrations.vllm.prompts import OwedPrompts
from prefix_cache.integrations.vllm.schedule import SchedulerOutput, translate
from prefix_cache.slots import Slots
from prefix_cache.stats import CacheStats


class StepFollower:
    """Feeds a cache from scheduler outputs, and hands prompts to the consumer.

    Parameters:
        consumer: None: every step is discarded, and nothing is merged.
    """

    def __init__(self, cache: PrefixCache, consumer: Consumer | None) -> None:
        self._cache = cache
        self._owed: OwedPrompts | None = None
        self._delivery: Delivery | None = None
        if consumer is not None:
            config = cache.config
            self._owed = OwedPrompts()
            self._delivery = Delivery(cache, consumer, config.max_inflight_steps, config.wait_timeout)

    def begin(self, step: SchedulerOutput) -> None:
        """Before the forward, also of a step without tokens.

        Raises:
            PrefixCacheError: the step cannot be followed, or an earlier one failed.
        """
        if self._delivery is not None:
            self._delivery.check()
        if self._owed is None:
            plan = translate(step, ())
        else:
            plan = translate(step, self._owed.ids())
            self._owed.follow(step)
        self._cache.begin_step(plan.scheduled, plan.new, plan.finished, plan.resumed)

    def save(
        self, step: SchedulerOutput, ids: Sequence[str], counts: npt.NDArray[np.integer], slots: Slots, hidden: Tensor
    ) -> None:
        """After the forward, before the engine's buffers are used again; arguments as of `PrefixCache.save_step`."""
        handle = self._cache.save_step(ids, counts, slots, {KEY: hidden})
        pieces = self._owed.take(step.num_scheduled_tokens) if self._owed is not None else []
        if self._delivery is not None and pieces:
            self._delivery.submit(handle, pieces)
        else:
            self._cache.discard(handle)

    def stats(self) -> CacheStats:
        """The cache's snapshot, from any thread."""
        return self._cache.stats()

    def close(self) -> None:
        """Delivers what is complete, writes what is parked, ends the threads. Idempotent."""
        try:
            if self._delivery is not None:
                self._delivery.close()
        finally:
            self._cache.shutdown()
