"""vLLM-Omni's manager, by its own call names, over this project's cache."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from torch import Tensor

from prefix_cache.cache import PrefixCache
from prefix_cache.config import CacheConfig
from prefix_cache.copier import Copier, CudaCopier, InlineCopier
from prefix_cache.errors import ConfigError, StepError
from prefix_cache.inference import inference
from prefix_cache.integrations.exposition import Exposition, proof_line
from prefix_cache.integrations.vllm.schedule import translate
from prefix_cache.integrations.vllm_omni.choice import Choice
from prefix_cache.integrations.vllm_omni.engine import Engine, the_runner
from prefix_cache.integrations.vllm_omni.passthrough import HandedOut, Passthrough
from prefix_cache.pool import BufferPool
from prefix_cache.slots import Slots, slots_of
from prefix_cache.step import StepHandle

# Below "vllm", whose handler is the one that writes to the server's log.
logger = logging.getLogger("vllm.prefix_cache")


@dataclass(frozen=True, slots=True)
class SavedBatch:
    """What a step's consumer needs beside its rows."""

    ids: Sequence[str]
    counts: Sequence[int]
    others: Passthrough

    def spans(self) -> dict[str, tuple[int, int]]:
        """First and last-plus-one token of each request, in the batch's order."""
        return dict(zip(self.ids, pairwise(accumulate(self.counts, initial=0)), strict=True))


class BundledManager:
    """Stands in for `vllm_omni.core.prefix_cache.OmniPrefixCacheManager` in one stage's worker.

    The engine's thread calls `new_step_starts` before each forward and `save_outputs` after it; any thread consumes
    the step, once, with `materialize` or `discard_step`. Constructed while a runner builds its manager: see
    `prefix_cache.integrations.vllm_omni.engine.building_for`.

    Parameters:
        config: vLLM-Omni's `PrefixCacheConfig`; its sizes are used, its bounds have no counterpart here.
        view: vLLM-Omni's `FullAttentionGroupView`; the runner's own batch is read instead, which may be replaced.

    Raises:
        ConfigError: an engine that the cache cannot follow, or a bound in the environment that cannot work.
    """

    def __init__(self, config: Any, view: Any) -> None:  # noqa: ARG002 - the runner passes it
        from vllm_omni.core.prefix_cache.interface import HIDDEN_KEY, StageCacheOutputs
        from vllm_omni.utils.mm_outputs import to_payload_element

        self._outputs, self._element, self._hidden_key = StageCacheOutputs, to_payload_element, HIDDEN_KEY
        self._engine = Engine.of(the_runner())
        _block_table(self._engine.batch())
        required = frozenset({HIDDEN_KEY}) if self._engine.hidden else frozenset()
        bounds = CacheConfig.from_env(config.num_blocks, config.block_size, required, os.environ)
        bounds = replace(bounds, threaded=Choice.from_env(os.environ).threaded)
        on_device = self._engine.device.type != "cpu"
        self._cache = PrefixCache(bounds, self._engine.layout, self._copier, pinned=on_device)
        self._scheduled: Mapping[str, int] = {}
        release = importlib.metadata.version("vllm-omni")
        facts = {"stage": str(self._engine.stage), "rank": str(self._engine.rank)}
        engine = f"vllm-omni-{release}"
        try:
            self._page = Exposition(self._cache.stats, {**facts, "engine": engine})
        except BaseException:
            self._cache.shutdown()
            raise
        logger.info(
            proof_line(
                **facts,
                metrics=self._page.url,
                engine=engine,
                block_size=bounds.block_size,
                blocks=bounds.num_blocks,
                device=self._engine.device,
                threaded=bounds.threaded,
            )
        )

    def register_policy(self, policy: Any) -> None:
        """Takes the model's `ModelCachePolicy`.

        Deferred keys are written like all others: in one FIFO a later hit sees them anyway.

        Raises:
            ConfigError: it differs from the one of the runner this was constructed for.
        """
        if policy.needs_full_hidden_states != self._engine.hidden:
            raise ConfigError(
                f"PREFIX_CACHE=bundled: found a policy with needs_full_hidden_states={policy.needs_full_hidden_states}"
                f"; allowed: the runner's own, {self._engine.hidden}"
            )

    def new_step_starts(self, scheduler_output: Any) -> None:
        """Registers a step; once per scheduler output, before the runner forgets its finished requests.

        Raises:
            PrefixCacheError: the step cannot be followed, or an earlier one failed.
        """
        step = translate(scheduler_output, ())
        self._cache.begin_step(step.scheduled, step.new, step.finished, step.resumed)
        self._scheduled = dict(step.scheduled)

    @inference
    def save_outputs(
        self,
        hidden_states: Tensor | None,
        mm_outputs: Mapping[str, Any] | None,
        *,
        num_tokens_unpadded: int,
        num_tokens_padded: int,
    ) -> int:
        """Takes a step's outputs out of the engine's buffers.

        Parameters:
            hidden_states: [>=num_tokens_unpadded, hidden_size].
            mm_outputs: by flat name. A tensor of two or more dimensions with one row per token (padding included or
                not) is kept in step with the KV cache; everything else belongs to this step alone.

        Returns:
            The step's id, to be consumed exactly once.

        Raises:
            PrefixCacheError: the batch is not what was scheduled, or rows changed their width or dtype.
        """
        batch, count = self._engine.batch(), num_tokens_unpadded
        ids = list(batch.req_ids)
        planned = [self._scheduled.get(request, 0) for request in ids]
        if sum(planned) != count:
            raise StepError(f"save_outputs: the batch holds {sum(planned)} scheduled tokens, the step has {count}")
        counts = np.array(planned, dtype=np.int64)
        rows: dict[str, Tensor] = {}
        others: dict[str, Any] = {}
        if self._engine.hidden and hidden_states is not None and count:
            rows[self._hidden_key] = hidden_states
        for key, value in (mm_outputs or {}).items():
            if key == self._hidden_key:
                continue
            if count and _is_rows(value, (count, num_tokens_padded)):
                rows[key] = value
            else:
                others[key] = value
        saved = SavedBatch(ids, planned, Passthrough.take(others))
        return self._cache.save_step(ids, counts, self._slots(batch, planned, counts), rows, saved).step

    @inference
    def materialize(self, step_id: int, req_ids: Sequence[str]) -> Any:
        """Consumes a step: what each of `req_ids` is handed, the hit prefix in front.

        Merged when it is first read, and only for the requests that are: a batch may hold requests whose rows no
        later stage wants.

        Returns:
            A `StageCacheOutputs` of read-only mappings.

        Raises:
            PrefixCacheError: the step was consumed before or never saved, or a request is not of that step.
        """
        outputs = self._cache.materialize(StepHandle(step_id), req_ids, lazy=True)
        saved: SavedBatch = outputs.extra
        by_key: dict[str, Mapping[str, Any]] = dict(outputs.rows)
        hidden = by_key.pop(self._hidden_key, None)
        others = saved.others.values(self._cache.config.wait_timeout)
        if others:
            spans = saved.spans()
            by_key |= {key: HandedOut(value, spans, req_ids, self._element) for key, value in others.items()}
        return self._outputs(hidden_states=hidden, mm_outputs=by_key)

    def discard_step(self, step_id: int) -> None:
        """Consumes a step that nobody reads; its rows stay in the store.

        Raises:
            PrefixCacheError: it was consumed before, or never saved.
        """
        self._cache.discard(StepHandle(step_id))

    def shutdown(self) -> None:
        """Writes what is parked and ends the cache's threads. Idempotent."""
        self._page.close()
        self._cache.shutdown()

    def _copier(self, pool: BufferPool) -> Copier:
        return InlineCopier(pool) if self._engine.device.type == "cpu" else CudaCopier(self._engine.device)

    def _slots(self, batch: Any, planned: Sequence[int], counts: np.ndarray[Any, np.dtype[np.int64]]) -> Slots:
        each_one = len(planned) if planned and set(planned) == {1} else counts
        return slots_of(_block_table(batch), batch.num_computed_tokens_cpu, each_one, self._cache.config.block_size)


def _block_table(batch: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    table = getattr(batch.block_table[0].block_table, "np", None)
    if not isinstance(table, np.ndarray):
        raise ConfigError("PREFIX_CACHE=bundled: the input batch has no block table on the host")
    return table


def _is_rows(value: Any, lengths: tuple[int, int]) -> bool:
    return isinstance(value, Tensor) and value.ndim >= 2 and len(value) in lengths and 0 not in value.shape[1:]
