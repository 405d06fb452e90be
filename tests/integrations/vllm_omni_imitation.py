# ruff: noqa: ARG002 - signatures are what is imitated
"""SIMULATED: the objects that vLLM-Omni 0.30 hands to the plug-in, by the names it reads; none of its code.

The real ones are met in tests/real/test_real_vllm_omni.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

HIDDEN_KEY = "__hidden_states__"


@dataclass
class NewRequestData:
    req_id: str
    num_computed_tokens: int
    block_ids: tuple[list[int], ...]


@dataclass
class CachedRequestData:
    resumed_req_ids: set[str] = field(default_factory=set)
    req_ids: list[str] = field(default_factory=list)
    new_block_ids: list[Any] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)


@dataclass
class SchedulerOutput:
    num_scheduled_tokens: dict[str, int]
    scheduled_new_reqs: Sequence[NewRequestData] = ()
    finished_req_ids: set[str] = field(default_factory=set)
    scheduled_cached_reqs: CachedRequestData = field(default_factory=CachedRequestData)
    kv_cache_block_copies: Any = None
    preempted_req_ids: set[str] | None = None


@dataclass(frozen=True)
class PrefixCacheConfig:
    num_blocks: int
    block_size: int


@dataclass(frozen=True)
class ModelCachePolicy:
    needs_full_hidden_states: bool = True
    deferred_keys: frozenset[str] = frozenset()


class StageCacheOutputs(NamedTuple):
    hidden_states: Any
    mm_outputs: Any


class FullAttentionSpec: ...


class SlidingWindowSpec: ...


class Batch:
    """An input batch of `requests`: (id, computed tokens, blocks)."""

    def __init__(self, requests: Sequence[tuple[str, int, Sequence[int]]] = (), width: int = 64) -> None:
        self.req_ids = [request for request, _, _ in requests]
        self.num_computed_tokens_cpu = np.array([computed for _, computed, _ in requests], dtype=np.int32)
        table = np.zeros((max(1, len(requests)), width), dtype=np.int32)
        for row, (_, _, blocks) in enumerate(requests):
            table[row, : len(blocks)] = blocks
        self.block_table = [SimpleNamespace(block_table=SimpleNamespace(np=table))]


class Runner:
    """A model runner after its KV cache has been initialised; keyword arguments change one fact each."""

    def __init__(self, block_size: int = 2, **facts: Any) -> None:
        speculative, transfer = facts.get("speculative"), facts.get("kv_consumer")
        self.device = torch.device(facts.get("device", "cpu"))
        self.input_batch: Any = Batch()
        self.kv_cache_config = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in facts.get("specs", [FullAttentionSpec()])]
        )
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(stage_id=facts.get("stage", 0), use_v2_model_runner=facts.get("v2", False)),
            cache_config=SimpleNamespace(
                block_size=facts.get("engine_block_size", block_size),
                prefix_match_unit=facts.get("match"),
                enable_prefix_caching=facts.get("caching", True),
            ),
            parallel_config=SimpleNamespace(
                decode_context_parallel_size=facts.get("dcp", 1), prefill_context_parallel_size=1, rank=0
            ),
            speculative_config=None if speculative is None else SimpleNamespace(num_speculative_tokens=speculative),
            kv_transfer_config=None if transfer is None else SimpleNamespace(is_kv_consumer=transfer),
        )
        self._omni_cache_policy = ModelCachePolicy(facts.get("hidden", True))


def to_payload_element(
    element: Any,
    idx: int,
    start: int,
    end: int,
    pass_lists_through: bool = False,
    seq_len: int | None = None,
    scheduled_seq_len: int | None = None,
) -> Any:
    """One request's part: its tokens of a tensor as long as the step, else a copy of the whole."""
    assert pass_lists_through
    assert scheduled_seq_len is None
    if isinstance(element, torch.Tensor):
        return element[start:end] if element.shape[0] == seq_len else element.clone()
    if isinstance(element, list):
        return [each.clone() if isinstance(each, torch.Tensor) else each for each in element]
    if isinstance(element, dict):
        return {
            key: to_payload_element(each, idx, start, end, pass_lists_through, seq_len) for key, each in element.items()
        }
    return element


def _locked(fn: Any) -> Any:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(self, *args, **kwargs)

    return wrapper


class OmniPrefixCacheManager:
    """Its calls, which note that they were made."""

    def __init__(self, config: Any, view: Any, *, eager: bool | None = None) -> None:
        self.calls: list[str] = []

    def new_step_starts(self, scheduler_output: Any) -> None:
        self.calls.append("new_step_starts")

    def save_outputs(
        self, hidden_states: Any, mm_outputs: Any, *, num_tokens_unpadded: int, num_tokens_padded: int
    ) -> int:
        self.calls.append("save_outputs")
        return 1

    def materialize(self, step_id: int, req_ids: list[str]) -> Any:
        self.calls.append("materialize")
        return StageCacheOutputs(None, {})

    @_locked
    def discard_step(self, step_id: int) -> None:
        self.calls.append("discard_step")

    def register_policy(self, policy: Any) -> None: ...

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def modules(release: str = "0.30.0") -> Mapping[str, ModuleType]:
    """A fresh set of modules, with classes of their own where the plug-in replaces something."""

    class PrefixCacheRunnerMixin:
        omni_prefix_cache: Any = None

        def _ensure_omni_prefix_cache(self) -> None:
            self.omni_prefix_cache = made["vllm_omni.core.prefix_cache.runner_mixin"].OmniPrefixCacheManager(
                PrefixCacheConfig(8, 2), None
            )

        def _prefix_cache_step_begin(self, scheduler_output: Any) -> None: ...

        def _prefix_cache_save_step(
            self, hidden_states: Any, multimodal_outputs: Any, *, num_tokens_unpadded: int, num_tokens_padded: int
        ) -> None: ...

        def _prefix_cache_materialize(self, step_id: Any, req_ids: Any) -> None: ...

    class OmniWorkerMixin:
        def initialize_from_config(self, kv_cache_config: Any) -> None:
            self.initialized = kv_cache_config

    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": release},
        "vllm.v1.core.sched.output": {
            each.__name__: each for each in (SchedulerOutput, NewRequestData, CachedRequestData)
        },
        "vllm_omni": {},
        "vllm_omni.core.prefix_cache.interface": {
            "HIDDEN_KEY": HIDDEN_KEY,
            **{each.__name__: each for each in (PrefixCacheConfig, ModelCachePolicy, StageCacheOutputs)},
        },
        "vllm_omni.core.prefix_cache.manager": {"OmniPrefixCacheManager": OmniPrefixCacheManager},
        "vllm_omni.core.prefix_cache.runner_mixin": {
            "OmniPrefixCacheManager": OmniPrefixCacheManager,
            "PrefixCacheRunnerMixin": PrefixCacheRunnerMixin,
        },
        "vllm_omni.utils.mm_outputs": {"to_payload_element": to_payload_element},
        "vllm_omni.worker.mixins": {"OmniWorkerMixin": OmniWorkerMixin},
    }
    made: dict[str, ModuleType] = {}
    for name, attributes in contents.items():
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            made.setdefault(path, ModuleType(path))
            if depth > 1:
                setattr(made[".".join(parts[: depth - 1])], parts[depth - 1], made[path])
        vars(made[name]).update(attributes)
    return made


def pretend_installed(monkeypatch: pytest.MonkeyPatch, release: str = "0.30.0") -> Mapping[str, ModuleType]:
    """Makes the imitation what `import vllm_omni` finds, and its release what the package metadata says."""
    made = modules(release)
    for name, module in made.items():
        monkeypatch.setitem(__import__("sys").modules, name, module)
    import importlib.metadata

    real = importlib.metadata.version

    @functools.wraps(real)
    def version(name: str) -> str:
        return release if name == "vllm-omni" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    return made
