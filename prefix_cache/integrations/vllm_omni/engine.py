"""What the cache must know of the stage it works in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from prefix_cache.errors import ConfigError
from prefix_cache.layout import EngineLayout

# By name: a subclass may keep fewer tokens than its base says.
_EVERY_TOKEN = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})
_DEVICES = ("cpu", "cuda")
# A manager is constructed from its sizes and a view of the batch; who asks for it is known only to the caller.
_RUNNER: ContextVar[Any] = ContextVar("runner")


@dataclass(frozen=True, slots=True)
class Engine:
    """Facts of one stage's model runner.

    Parameters:
        stage: its number in the pipeline.
        rank: of the worker within the stage.
        device: where its rows are computed.
        layout: what decides whether slots can be followed.
        hidden: whether the model needs the hidden states of the whole prompt.
        batch: the live input batch; a runner may replace the object.
    """

    stage: int
    rank: int
    device: torch.device
    layout: EngineLayout
    hidden: bool
    batch: Callable[[], Any]

    @classmethod
    def of(cls, runner: Any) -> Engine:
        """The facts of a vLLM-Omni model runner whose KV cache has been initialised.

        Raises:
            ConfigError: a device that rows cannot be copied from.
        """
        device = torch.device(runner.device)
        if device.type not in _DEVICES:
            raise ConfigError(f"PREFIX_CACHE=bundled: found device {device.type}; allowed: {', '.join(_DEVICES)}")
        return cls(
            stage=runner.vllm_config.model_config.stage_id,
            rank=runner.vllm_config.parallel_config.rank,
            device=device,
            layout=layout_of(runner.vllm_config, runner.kv_cache_config),
            hidden=runner._omni_cache_policy.needs_full_hidden_states,
            batch=lambda: runner.input_batch,
        )


@contextmanager
def building_for(runner: Any) -> Iterator[None]:
    """While a runner builds its manager."""
    token = _RUNNER.set(runner)
    try:
        yield
    finally:
        _RUNNER.reset(token)


def the_runner() -> Any:
    """The runner that is building its manager.

    Raises:
        ConfigError: nobody is.
    """
    runner = _RUNNER.get(None)
    if runner is None:
        raise ConfigError("PREFIX_CACHE=bundled: the cache was constructed by something else than a model runner")
    return runner


def layout_of(vllm_config: Any, kv_cache_config: Any) -> EngineLayout:
    """Facts of a `VllmConfig` and a `KVCacheConfig` of vLLM 0.30."""
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    cache, parallel = vllm_config.cache_config, vllm_config.parallel_config
    speculative = vllm_config.speculative_config
    return EngineLayout(
        block_size=cache.block_size,
        kv_groups=len(specs),
        full_attention=all(type(spec).__name__ in _EVERY_TOKEN for spec in specs),
        match_tokens=cache.prefix_match_unit,
        speculative_tokens=0 if speculative is None else max(1, speculative.num_speculative_tokens or 0),
        decode_context_parallel=parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size,
        kv_transfer=vllm_config.kv_transfer_config is not None,
    )


def refuse_v2(vllm_config: Any) -> None:
    """Refuses a stage that would start, and never ask for a cache.

    Raises:
        ConfigError: prefix caching is on, and the model runner is the one without hooks for it.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    if cache.enable_prefix_caching and getattr(model, "use_v2_model_runner", False):
        raise ConfigError(
            f"PREFIX_CACHE=bundled: found model_runner v2 in stage {model.stage_id}, which consults no output cache; "
            "allowed: model_runner v1, or enable_prefix_caching false"
        )
