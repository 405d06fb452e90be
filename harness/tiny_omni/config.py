"""Settings of the reference server, validated once."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from harness.errors import UsageError

MID_LAYER = 2
"""The residual stream that enters this layer is the second per-token output (`layer.2`)."""

_LONGEST_STEP_MS = 1000
"""A stop waits for the step that runs."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of the Thinker. Weights are random, drawn from `seed`: equal seeds are equal models."""

    hidden_size: int = 256
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    intermediate_size: int = 768
    vocab_size: int = 4096
    rope_theta: float = 10_000.0
    seed: int = 0

    def __post_init__(self) -> None:
        _require_positive(self, except_for={"seed"})
        if self.hidden_size % (2 * self.num_heads):
            raise UsageError(
                f"hidden_size: found {self.hidden_size}; allowed: multiples of 2 * num_heads = {2 * self.num_heads}"
            )
        if self.num_heads % self.num_kv_heads:
            raise UsageError(
                f"num_kv_heads: found {self.num_kv_heads}; allowed: divisors of num_heads = {self.num_heads}"
            )
        if self.num_layers <= MID_LAYER:
            raise UsageError(f"num_layers: found {self.num_layers}; allowed: more than {MID_LAYER}")

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Stage 0. Names are vLLM's; `enable_prefix_caching` turns on KV reuse and, with it, the output cache.

    `min_step_ms` is ours: a step lasts at least so many milliseconds, as a device's would, so that what the host does
    meanwhile costs nothing and its noise does not show. That time is simulated.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    enable_prefix_caching: bool = False
    block_size: int = 16
    num_blocks: int = 4096
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 1024
    max_model_len: int = 8192
    eos_token_id: int = 0
    num_threads: int = 1
    min_step_ms: int = 0

    def __post_init__(self) -> None:
        _require_positive(self, except_for={"model", "enable_prefix_caching", "eos_token_id", "min_step_ms"})
        if not 0 <= self.min_step_ms <= _LONGEST_STEP_MS:
            raise UsageError(f"min_step_ms: found {self.min_step_ms}; allowed: 0 to {_LONGEST_STEP_MS}")
        if not 0 <= self.eos_token_id < self.model.vocab_size:
            raise UsageError(f"eos_token_id: found {self.eos_token_id}; allowed: 0 to {self.model.vocab_size - 1}")

    @property
    def num_slots(self) -> int:
        """Slots of the paged KV cache."""
        return self.num_blocks * self.block_size

    @property
    def max_blocks_per_seq(self) -> int:
        """Columns of the block table."""
        return -(-self.max_model_len // self.block_size)


def _require_positive(config: ModelConfig | EngineConfig, *, except_for: set[str]) -> None:
    for setting in fields(config):
        value = getattr(config, setting.name)
        if setting.name not in except_for and not value > 0:
            raise UsageError(f"{setting.name}: found {value!r}; allowed: more than 0")
