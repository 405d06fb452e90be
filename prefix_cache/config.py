"""What the cache must know before its first step."""

from __future__ import annotations

from dataclasses import dataclass

from prefix_cache.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Sizes and bounds of one cache.

    Parameters:
        num_blocks: blocks of the engine's paged KV cache.
        block_size: tokens per block; must be the engine's own.
        required: keys whose rows every token has; a hit over an absent one is an error, never zeros.
        staging_rows: rows the decode buffer parks before it must write them.
        staging_bytes: bound on all copies not yet in the store, parked and in flight together.
        max_inflight_steps: bound on operations waiting in the log.
        wait_timeout: seconds any wait may take before it is an error that names what it waited for.
        threaded: False executes every operation in the calling thread, at once.

    Raises:
        ConfigError: a size that cannot work.
    """

    num_blocks: int
    block_size: int
    required: frozenset[str] = frozenset({"hidden"})
    staging_rows: int = 1024
    staging_bytes: int = 512 << 20
    max_inflight_steps: int = 64
    wait_timeout: float = 30.0
    threaded: bool = True

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "staging_rows", "staging_bytes", "max_inflight_steps"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name}: found {value}; allowed: a whole number of at least 1")
        if self.wait_timeout <= 0:
            raise ConfigError(f"wait_timeout: found {self.wait_timeout}; allowed: seconds above 0")

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size
