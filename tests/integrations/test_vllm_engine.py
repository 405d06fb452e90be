"""Which vLLM the worker follows, and which it refuses before a step is run."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from prefix_cache import ConfigError, EngineLayout
from prefix_cache.errors import ContextParallelism, HybridLayout, KVTransfer, SpeculativeDecoding, UnalignedMatching
from prefix_cache.integrations.vllm.engine import check_engine, check_version, engine_layout
from prefix_cache.layout import check_layout


class FullAttentionSpec:
    """Named like vLLM's; a class of another name is one that the cache does not know."""

    def __init__(self, block_size: int = 32) -> None:
        self.block_size = block_size


class RSWASpec(FullAttentionSpec):
    """To vLLM a full attention, but of a window."""


def config(**changes: Any) -> SimpleNamespace:
    facts: dict[str, Any] = {
        "use_v2_model_runner": False,
        "model_config": SimpleNamespace(runner_type="generate", enable_prompt_embeds=False),
        "cache_config": SimpleNamespace(block_size=32),
        "parallel_config": SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        "speculative_config": None,
        "kv_transfer_config": None,
        "ec_transfer_config": None,
    }
    return SimpleNamespace(**facts | changes)


def kv_cache(*specs: object, alignment: int | None = 32) -> SimpleNamespace:
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    return SimpleNamespace(kv_cache_groups=groups, cache_hit_alignment_tokens=alignment)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu", "0.32.1rc1"])
def test_the_known_series_is_followed(version: str) -> None:
    """Every release of the series, whatever it was built for."""
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.3.2", "1.32.0", "dev"])
def test_another_version_is_refused_by_name(version: str) -> None:
    """The message says what was found and what is allowed."""
    with pytest.raises(ConfigError, match=rf"found vLLM {version}; allowed: 0\.32\.x"):
        check_version(version)


@pytest.mark.parametrize(
    ("changes", "consumer", "message"),
    [
        ({"use_v2_model_runner": True}, False, "set VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"model_config": SimpleNamespace(runner_type="pooling")}, False, "found --runner pooling; allowed: generate"),
        ({"ec_transfer_config": SimpleNamespace(is_encode_only=True)}, False, "encode-only"),
        (
            {"model_config": SimpleNamespace(runner_type="generate", enable_prompt_embeds=True)},
            True,
            "found --enable-prompt-embeds",
        ),
    ],
)
def test_an_engine_whose_rows_never_reach_the_worker_is_refused(
    changes: dict[str, Any], consumer: bool, message: str
) -> None:
    """Before its model is loaded, with the setting to change."""
    check_engine(config(), consumer=consumer)
    with pytest.raises(ConfigError, match=message):
        check_engine(config(**changes), consumer=consumer)


def test_prompt_embeddings_are_no_matter_without_a_consumer() -> None:
    """Nobody is given token ids then."""
    check_engine(
        config(model_config=SimpleNamespace(runner_type="generate", enable_prompt_embeds=True)), consumer=False
    )


def test_a_plain_engine_is_followed() -> None:
    """One group of full attention, its blocks, nothing shared."""
    layout = engine_layout(config(), kv_cache(FullAttentionSpec()))
    assert layout == EngineLayout(block_size=32, match_tokens=32)
    check_layout(layout, 32)


def test_layers_of_several_widths_in_one_group_are_followed() -> None:
    """A slot names one token's rows in all of them."""
    uniform = SimpleNamespace(block_size=32, kv_cache_specs={"a": FullAttentionSpec(), "b": FullAttentionSpec()})
    check_layout(engine_layout(config(), kv_cache(uniform)), 32)


@pytest.mark.parametrize(
    ("changes", "cache", "refusal"),
    [
        ({}, kv_cache(FullAttentionSpec(), FullAttentionSpec()), HybridLayout),
        ({}, kv_cache(RSWASpec()), HybridLayout),
        (
            {},
            kv_cache(SimpleNamespace(block_size=32, kv_cache_specs={"a": FullAttentionSpec(), "b": RSWASpec()})),
            HybridLayout,
        ),
        ({}, kv_cache(), HybridLayout),
        ({}, kv_cache(FullAttentionSpec(), alignment=16), UnalignedMatching),
        (
            {"speculative_config": SimpleNamespace(num_speculative_tokens=3)},
            kv_cache(FullAttentionSpec()),
            SpeculativeDecoding,
        ),
        (
            {"parallel_config": SimpleNamespace(decode_context_parallel_size=2, prefill_context_parallel_size=1)},
            kv_cache(FullAttentionSpec()),
            ContextParallelism,
        ),
        (
            {"parallel_config": SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=2)},
            kv_cache(FullAttentionSpec()),
            ContextParallelism,
        ),
        (
            {"kv_transfer_config": SimpleNamespace(is_kv_consumer=True)},
            kv_cache(FullAttentionSpec()),
            KVTransfer,
        ),
        (
            # Connectors may load for a producer too.
            {"kv_transfer_config": SimpleNamespace(is_kv_consumer=False)},
            kv_cache(FullAttentionSpec()),
            KVTransfer,
        ),
    ],
)
def test_a_layout_that_slots_do_not_follow_is_refused(
    changes: dict[str, Any], cache: SimpleNamespace, refusal: type[ConfigError]
) -> None:
    """Each with the error of its kind, from the engine's own configuration."""
    with pytest.raises(refusal):
        check_layout(engine_layout(config(**changes), cache), 32)


def test_the_package_is_imported_without_vllm() -> None:
    """Only the worker class needs it, when it is asked for."""
    code = (
        "import sys, prefix_cache.integrations.vllm as package\n"
        "assert 'vllm' not in sys.modules\n"
        "assert not hasattr(package, 'Worker')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
