"""Puts the chosen cache where vLLM-Omni's runners look for theirs."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from prefix_cache.integrations.vllm_omni.choice import Choice
from prefix_cache.integrations.vllm_omni.engine import building_for, refuse_v2
from prefix_cache.integrations.vllm_omni.known import check_calls, check_release

logger = logging.getLogger("vllm.prefix_cache")

_MARK = "prefix_cache_installed"


def install(choice: Choice) -> None:
    """Replaces the class that `PrefixCacheRunnerMixin` constructs; its own gates stay in force. Idempotent.

    A manager is built on a worker's first step, so this is early enough in every process that loads the plug-in.

    Raises:
        ConfigError: another vLLM-Omni than the one this was written against.
    """
    release = check_release()
    from vllm_omni.core.prefix_cache import runner_mixin

    if getattr(runner_mixin, _MARK, False):
        return
    check_calls()
    manager = runner_mixin.OmniPrefixCacheManager
    if choice.bundled:
        from prefix_cache.integrations.vllm_omni.manager import BundledManager

        manager = BundledManager
        _refuse_v2_in_workers()
    if choice.timing is not None:
        from prefix_cache.integrations.vllm_omni.timed import timed

        manager = timed(manager, choice.timing)
    runner_mixin.OmniPrefixCacheManager = manager
    _name_the_runner(runner_mixin.PrefixCacheRunnerMixin)
    setattr(runner_mixin, _MARK, True)
    logger.info(
        "prefix_cache: plug-in loaded in process %d for vllm-omni %s: %s cache%s",
        os.getpid(),
        release,
        "bundled" if choice.bundled else "builtin",
        f", timings in {choice.timing}" if choice.timing is not None else "",
    )


def _name_the_runner(mixin: type[Any]) -> None:
    original = mixin._ensure_omni_prefix_cache

    @functools.wraps(original)
    def _ensure_omni_prefix_cache(self: Any) -> None:
        with building_for(self):
            original(self)

    mixin._ensure_omni_prefix_cache = _ensure_omni_prefix_cache


def _refuse_v2_in_workers() -> None:
    from vllm_omni.worker.mixins import OmniWorkerMixin

    original = OmniWorkerMixin.initialize_from_config

    @functools.wraps(original)
    def initialize_from_config(self: Any, kv_cache_config: Any) -> None:
        refuse_v2(self.vllm_config)
        original(self, kv_cache_config)

    OmniWorkerMixin.initialize_from_config = initialize_from_config
