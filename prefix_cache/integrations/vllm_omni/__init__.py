"""The cache inside vLLM-Omni: a plug-in of the entry point group `vllm_omni.general_plugins`.

    PREFIX_CACHE=bundled vllm serve MODEL --omni ...

vLLM-Omni loads the plug-in in the API server, before any stage starts, and in each stage's worker. What goes wrong
while an entry point is *imported* it only logs, and goes on with its own cache; what `register` raises stops the
process. So nothing is imported here, and everything is checked in `register`.

    PREFIX_CACHE          bundled: this cache; unset, empty or builtin: vLLM-Omni's own
    PREFIX_CACHE_<BOUND>  bounds of this cache; see CacheConfig
    PREFIX_CACHE_INLINE   1: no thread of its own, every operation in the calling one
    PREFIX_CACHE_TIMING   a folder for the timings of every call, of either cache; see integrations.timing
"""

from __future__ import annotations


def register() -> None:
    """Puts the cache that `PREFIX_CACHE` names into this process. Idempotent.

    Raises:
        ConfigError: a value that is not known, or a vLLM-Omni that is not.
    """
    import os

    from prefix_cache.integrations.vllm_omni.choice import Choice

    choice = Choice.from_env(os.environ)
    if choice.bundled or choice.timing is not None:
        from prefix_cache.integrations.vllm_omni.install import install

        install(choice)
