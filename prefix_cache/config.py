"""What the cache must know before its first step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from prefix_cache.errors import ConfigError

_SIZES = ("num_blocks", "block_size", "staging_rows", "device_bytes", "retain_bytes", "max_inflight_steps")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Sizes and bounds of one cache.

    Parameters:
        num_blocks: blocks of the engine's paged KV cache.
        block_size: tokens per block; must be the engine's own.
        required: keys whose rows every token has; a hit over an absent one is an error, never zeros.
        staging_rows: rows the decode buffer parks before it must write them.
        device_bytes: bound on all copies not yet in the store, parked and in flight together. On an engine with a
            device that is device memory.
        warm_bytes: staging memory whose pages are touched at construction, so that the first steps are not slower.
        retain_bytes: idle host memory kept for reuse.
        max_inflight_steps: bound on operations waiting in the log.
        wait_timeout: seconds any wait may take before it is an error that names what it waited for.
        threaded: False executes every operation in the calling thread, at once.

    Raises:
        ConfigError: a size that cannot work.
    """

    num_blocks: int
    block_size: int
    required: frozenset[str] = frozenset({"hidden"})
    staging_rows: int = 4096
    device_bytes: int = 512 << 20
    warm_bytes: int = 32 << 20
    retain_bytes: int = 512 << 20
    max_inflight_steps: int = 64
    wait_timeout: float = 30.0
    threaded: bool = True

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name}: found {value}; allowed: a whole number of at least 1")
        if self.warm_bytes < 0:
            raise ConfigError(f"warm_bytes: found {self.warm_bytes}; allowed: 0 or more")
        if not 0 < self.wait_timeout < math.inf:
            raise ConfigError(f"wait_timeout: found {self.wait_timeout}; allowed: seconds above 0")

    @classmethod
    def from_env(
        cls, num_blocks: int, block_size: int, required: frozenset[str], environ: Mapping[str, str]
    ) -> CacheConfig:
        """The engine's sizes, with bounds from `PREFIX_CACHE_DEVICE_BYTES` and its like where they are set.

        Raises:
            ConfigError: a variable that is no whole number, or a size that cannot work.
        """
        bounds: dict[str, int] = {}
        for name in ("staging_rows", "device_bytes", "warm_bytes", "retain_bytes", "max_inflight_steps"):
            variable = f"PREFIX_CACHE_{name.upper()}"
            if variable not in environ:
                continue
            try:
                bounds[name] = int(environ[variable])
            except ValueError:
                raise ConfigError(f"{variable}: found {environ[variable]!r}; allowed: a whole number") from None
        return replace(cls(num_blocks, block_size, required), **bounds)  # type: ignore[arg-type]  # names of ints only

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size
