"""The vLLM-Omni this plug-in was written against, and the refusal of any other."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from prefix_cache.errors import ConfigError

RELEASE = "0.30"

# Names and parameters of the calls that this plug-in takes over.
_CALLS = {
    "__init__": ["self", "config", "view", "eager"],
    "new_step_starts": ["self", "scheduler_output"],
    "save_outputs": ["self", "hidden_states", "mm_outputs", "num_tokens_unpadded", "num_tokens_padded"],
    "materialize": ["self", "step_id", "req_ids"],
    "discard_step": ["self", "step_id"],
    "register_policy": ["self", "policy"],
    "shutdown": ["self"],
}
# Who makes those calls, and with what.
_CALLERS = {
    "_ensure_omni_prefix_cache": ["self"],
    "_prefix_cache_step_begin": ["self", "scheduler_output"],
    "_prefix_cache_save_step": [
        "self",
        "hidden_states",
        "multimodal_outputs",
        "num_tokens_unpadded",
        "num_tokens_padded",
    ],
    "_prefix_cache_materialize": ["self", "step_id", "req_ids"],
}
_PAYLOAD = ["element", "idx", "start", "end", "pass_lists_through", "seq_len", "scheduled_seq_len"]
# What is read of a step.
_STEP = {"scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens", "finished_req_ids"}
_STEP |= {"kv_cache_block_copies", "preempted_req_ids"}
_NEW_REQUEST = {"req_id", "num_computed_tokens", "block_ids"}
_CACHED_REQUESTS = {"resumed_req_ids"}
_CONFIG = {"num_blocks", "block_size"}
_POLICY = {"needs_full_hidden_states"}


def check_release() -> str:
    """The release of vLLM-Omni that is installed.

    Raises:
        ConfigError: it, or the vLLM under it, is another than this plug-in knows.
    """
    import vllm

    omni = importlib.metadata.version("vllm-omni")
    # vLLM's CPU build goes by another distribution name, so its own word is asked for.
    for name, found in (("vllm-omni", omni), ("vllm", vllm.__version__)):
        if found.split("+")[0].split(".")[:2] != RELEASE.split("."):
            raise ConfigError(
                f"prefix_cache: found {name} {found}; allowed: {RELEASE}.x "
                "(with neither PREFIX_CACHE=bundled nor PREFIX_CACHE_TIMING, any)"
            )
    return omni


def check_calls() -> None:
    """Refuses a vLLM-Omni of the right number whose insides are not those that were read.

    Raises:
        ConfigError: names everything that differs.
    """
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
    from vllm_omni.core.prefix_cache import interface, manager, runner_mixin
    from vllm_omni.utils.mm_outputs import to_payload_element
    from vllm_omni.worker.mixins import OmniWorkerMixin

    differences = [
        *_signatures(manager.OmniPrefixCacheManager, _CALLS),
        *_signatures(runner_mixin.PrefixCacheRunnerMixin, _CALLERS),
        *_signatures(OmniWorkerMixin, {"initialize_from_config": ["self", "kv_cache_config"]}),
        *_compare("to_payload_element", _parameters(to_payload_element), _PAYLOAD),
        *_lacking("SchedulerOutput", (each.name for each in fields(SchedulerOutput)), _STEP),
        *_lacking("NewRequestData", (each.name for each in fields(NewRequestData)), _NEW_REQUEST),
        *_lacking("CachedRequestData", (each.name for each in fields(CachedRequestData)), _CACHED_REQUESTS),
        *_lacking("PrefixCacheConfig", (each.name for each in fields(interface.PrefixCacheConfig)), _CONFIG),
        *_lacking("ModelCachePolicy", (each.name for each in fields(interface.ModelCachePolicy)), _POLICY),
        *_compare("StageCacheOutputs", list(interface.StageCacheOutputs._fields), ["hidden_states", "mm_outputs"]),
    ]
    if runner_mixin.OmniPrefixCacheManager is not manager.OmniPrefixCacheManager:
        differences.append("another plug-in has replaced OmniPrefixCacheManager")
    if differences:
        raise ConfigError(f"prefix_cache: this vllm-omni is not the one it knows: {'; '.join(differences)}")


def _signatures(owner: type[Any], wanted: dict[str, list[str]]) -> Iterable[str]:
    for name, parameters in wanted.items():
        if name not in vars(owner):
            yield f"{owner.__name__}.{name} is gone"
        else:
            yield from _compare(f"{owner.__name__}.{name}", _parameters(vars(owner)[name]), parameters)


def _parameters(function: Any) -> list[str]:
    inner = inspect.unwrap(function)
    names = list(inspect.signature(inner).parameters)
    if names == ["self", "args", "kwargs"]:
        # A decorator that says nothing of what it wraps; its closure does.
        wrapped = inspect.getclosurevars(inner).nonlocals.get("fn")
        if callable(wrapped):
            return _parameters(wrapped)
    return names


def _compare(name: str, found: list[str], wanted: list[str]) -> Iterable[str]:
    if found != wanted:
        yield f"{name} takes {', '.join(found)}, not {', '.join(wanted)}"


def _lacking(name: str, found: Iterable[str], wanted: set[str]) -> Iterable[str]:
    missing = wanted - set(found)
    if missing:
        yield f"{name} has no {', '.join(sorted(missing))}"
