"""A prefix cache for a stage's per-token outputs, in step with the engine's paged KV cache.

    cache = PrefixCache(CacheConfig(num_blocks=4096, block_size=16))
    cache.begin_step({"a": 7}, new=[NewRequest("a", computed=0, blocks=[3])])
    ...                                                      # the forward
    handle = cache.save_step(["a"], counts, slots, {"hidden": hidden})
    outputs = cache.materialize(handle, ["a"])               # or cache.discard(handle)

The core knows no engine's types and imports only torch and numpy.
"""

from prefix_cache.cache import PrefixCache
from prefix_cache.config import CacheConfig
from prefix_cache.copier import Copier, CudaCopier, InlineCopier
from prefix_cache.errors import (
    AbsentRow,
    CacheFailed,
    CacheTimeout,
    ConfigError,
    PrefixCacheError,
    StepError,
)
from prefix_cache.layout import EngineLayout
from prefix_cache.slots import block_slots, slots_of
from prefix_cache.stats import CacheStats
from prefix_cache.step import NewRequest, StepHandle, StepOutputs

__all__ = [
    "AbsentRow",
    "CacheConfig",
    "CacheFailed",
    "CacheStats",
    "CacheTimeout",
    "ConfigError",
    "Copier",
    "CudaCopier",
    "EngineLayout",
    "InlineCopier",
    "NewRequest",
    "PrefixCache",
    "PrefixCacheError",
    "StepError",
    "StepHandle",
    "StepOutputs",
    "block_slots",
    "slots_of",
]
