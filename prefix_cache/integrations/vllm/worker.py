"""`--worker-cls prefix_cache.integrations.vllm.PrefixCacheWorker`"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import vllm
from vllm.distributed import get_pp_group, get_tp_group
from vllm.platforms import current_platform

from prefix_cache.cache import PrefixCache
from prefix_cache.config import CacheConfig
from prefix_cache.copier import CudaCopier, InlineCopier
from prefix_cache.errors import ConfigError, PrefixCacheError
from prefix_cache.integrations.exposition import Exposition, proof_line
from prefix_cache.integrations.vllm.consumer import load_consumer
from prefix_cache.integrations.vllm.delivery import KEY
from prefix_cache.integrations.vllm.engine import check_engine, check_version, engine_layout
from prefix_cache.integrations.vllm.follower import StepFollower
from prefix_cache.integrations.vllm.schedule import SchedulerOutput
from prefix_cache.slots import Slots, slots_of

# Below "vllm", whose handler is the only one that writes to the server's log.
logger = logging.getLogger("vllm.prefix_cache")


def _platform_worker() -> type[Any]:
    """The class that vLLM itself would run on this platform."""
    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker

        return CPUWorker  # type: ignore[no-any-return]  # vLLM is not there when types are checked
    if current_platform.is_cuda():
        from vllm.v1.worker.gpu_worker import Worker

        return Worker  # type: ignore[no-any-return]  # as above
    raise ConfigError(f"PrefixCacheWorker: found vLLM's {type(current_platform).__name__}; allowed: cpu, cuda")


check_version(vllm.__version__)
if TYPE_CHECKING:
    PlatformWorker = Any
else:
    PlatformWorker = _platform_worker()


class PrefixCacheWorker(PlatformWorker):  # type: ignore[misc]  # the base is resolved at import
    """The platform's worker, with the output cache between the forward and the sampling.

    vLLM calls `execute_model`, then `sample_tokens`, one step after another, under asynchronous scheduling too (which
    only schedules a step before the last one's tokens are known). In between, `execute_model_state` of the model
    runner holds the step's hidden states; a step without tokens leaves it None.

    The cache lives where the last layer's output is whole: on the last pipeline stage, at tensor-parallel rank 0.
    The other ranks do what vLLM's worker does.

    Raises:
        ConfigError: at construction or when the KV cache is laid out, an engine that the cache cannot follow.
    """

    _follower: StepFollower | None = None
    _page: Exposition | None = None

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        self._consumer = load_consumer(os.environ)
        check_engine(vllm_config, consumer=self._consumer is not None)
        super().__init__(vllm_config, *args, **kwargs)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        self._close_cache()
        if get_pp_group().is_last_rank and get_tp_group().rank_in_group == 0:
            self._open_cache(kv_cache_config)

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        follower = self._follower
        if follower is None:
            return super().execute_model(scheduler_output)
        follower.begin(scheduler_output)
        output = super().execute_model(scheduler_output)
        state = self.model_runner.execute_model_state
        if state is not None:
            ids = self.model_runner.input_batch.req_ids
            scheduled = scheduler_output.num_scheduled_tokens
            counts = np.fromiter((scheduled[request] for request in ids), np.int32, len(ids))
            decodes = scheduler_output.total_num_scheduled_tokens == len(ids)
            slots = self.step_slots(len(ids) if decodes else counts)
            follower.save(scheduler_output, ids, counts, slots, state.hidden_states)
        return output

    def step_slots(self, counts: npt.NDArray[np.int32] | int) -> Slots:
        """Slots of the step's tokens [N], in the batch's order, from the runner's block table on the host.

        `counts` as `slots_of` has it.

        Its blocks may be the attention kernel's, smaller than the scheduler's: a token's slot is the same in both.
        """
        batch = self.model_runner.input_batch
        table = batch.block_table[0]
        return slots_of(table.get_numpy_array(), batch.num_computed_tokens_cpu, counts, table.block_size)

    def shutdown(self) -> None:
        try:
            self._close_cache()
        except PrefixCacheError:
            # The engine is going down, perhaps because of this very error: its own resources must be freed.
            logger.exception("prefix_cache: not everything was written and delivered")
        super().shutdown()

    def _open_cache(self, kv_cache_config: Any) -> None:
        layout = engine_layout(self.vllm_config, kv_cache_config)
        config = CacheConfig.from_env(kv_cache_config.num_blocks, layout.block_size, frozenset({KEY}), os.environ)
        on_host = self.device.type == "cpu"
        cache = PrefixCache(
            config,
            layout,
            InlineCopier if on_host else lambda _: CudaCopier(self.device),
            pinned=not on_host,
        )
        self._follower = StepFollower(cache, self._consumer)
        labels = {"stage": "0", "replica": str(self.parallel_config.data_parallel_rank)}
        self._page = Exposition(self._follower.stats, labels)
        line = proof_line(
            **labels,
            metrics=self._page.url,
            engine=f"vllm-{vllm.__version__}",
            block_size=layout.block_size,
            num_blocks=config.num_blocks,
            consumer=os.environ.get("PREFIX_CACHE_CONSUMER") or "none",
        )
        # Whatever level the log is kept at, a server without the line is taken for one without the cache.
        logger.log(max(logging.INFO, logger.getEffectiveLevel()), line)

    def _close_cache(self) -> None:
        follower, self._follower = self._follower, None
        page, self._page = self._page, None
        if page is not None:
            page.close()
        if follower is not None:
            follower.close()
