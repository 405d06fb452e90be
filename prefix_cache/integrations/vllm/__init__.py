"""The cache inside plain vLLM: a worker class, chosen on vLLM's own command line.

    PREFIX_CACHE_CONSUMER=my_module:receive \\
    vllm serve MODEL --worker-cls prefix_cache.integrations.vllm.PrefixCacheWorker

`receive(request_id, prompt_token_ids, hit_tokens, rows)` is called once for each prompt, in the worker process, with
the hidden states of the *whole* prompt, whatever part of it vLLM found in its KV cache; see
`prefix_cache.integrations.vllm.consumer.Consumer`. Without a consumer the cache runs all the same, and its outputs
are discarded.

Only `PrefixCacheWorker` imports vLLM, when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefix_cache.integrations.vllm.worker import PrefixCacheWorker

__all__ = ["PrefixCacheWorker"]


def __getattr__(name: str) -> Any:
    if name == "PrefixCacheWorker":
        from prefix_cache.integrations.vllm.worker import PrefixCacheWorker

        return PrefixCacheWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
