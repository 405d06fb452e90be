"""What the cache must know of a vLLM before it follows it: its version, and how its KV cache is laid out."""

from __future__ import annotations

from typing import Any

from prefix_cache.errors import ConfigError
from prefix_cache.layout import EngineLayout

SUPPORTED = "0.32"
"""The series of vLLM whose worker and model runner this package was written against, and is tested with."""

# By name: a subclass may keep fewer tokens than its base says (a windowed one is a full attention spec to vLLM).
_EVERY_TOKEN = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})


def check_version(version: str) -> None:
    """Refuses a vLLM whose insides are not known.

    Raises:
        ConfigError: another series than `SUPPORTED`.
    """
    if version.split("+")[0].split(".")[:2] != SUPPORTED.split("."):
        raise ConfigError(f"PrefixCacheWorker: found vLLM {version}; allowed: {SUPPORTED}.x")


def check_engine(vllm_config: Any, *, consumer: bool) -> None:
    """Refuses, before a model is loaded, a configuration under which no rows reach the worker.

    Parameters:
        vllm_config: a `vllm.config.VllmConfig`.
        consumer: whether somebody wants the prompts' rows, with the token ids they belong to.

    Raises:
        ConfigError: the message names the setting to change.
    """
    if vllm_config.use_v2_model_runner:
        raise ConfigError(
            "PrefixCacheWorker: found model runner V2, which keeps its block tables on the device only; "
            "set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    model = vllm_config.model_config
    if model.runner_type != "generate":
        raise ConfigError(f"PrefixCacheWorker: found --runner {model.runner_type}; allowed: generate")
    encoder = vllm_config.ec_transfer_config
    if encoder is not None and encoder.is_encode_only:
        raise ConfigError("PrefixCacheWorker: found an encode-only instance, which runs no forward of the model")
    if consumer and model.enable_prompt_embeds:
        raise ConfigError(
            "PREFIX_CACHE_CONSUMER: found --enable-prompt-embeds, under which a prompt may have no token ids; "
            "turn it off or set no consumer"
        )


def engine_layout(vllm_config: Any, kv_cache_config: Any) -> EngineLayout:
    """The facts that decide whether slots can be followed, of a `VllmConfig` and a `KVCacheConfig`."""
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    # One group may hold layers of one kind and different widths.
    layers = [layer for spec in specs for layer in getattr(spec, "kv_cache_specs", {"": spec}).values()]
    parallel = vllm_config.parallel_config
    speculative = vllm_config.speculative_config
    return EngineLayout(
        block_size=specs[0].block_size if specs else vllm_config.cache_config.block_size,
        kv_groups=len(specs),
        full_attention=all(type(layer).__name__ in _EVERY_TOKEN for layer in layers),
        match_tokens=kv_cache_config.cache_hit_alignment_tokens,
        speculative_tokens=0 if speculative is None else max(1, speculative.num_speculative_tokens or 0),
        decode_context_parallel=parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size,
        kv_transfer=vllm_config.kv_transfer_config is not None,
    )
