"""What the cache must know of an engine to be sure that it can follow it."""

from __future__ import annotations

from dataclasses import dataclass

from prefix_cache.errors import (
    BlockSizeMismatch,
    ContextParallelism,
    HybridLayout,
    KVTransfer,
    SpeculativeDecoding,
    UnalignedMatching,
)


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """Facts of the engine that decide whether slots can be followed.

    Parameters:
        block_size: tokens per KV block.
        kv_groups: groups of layers with block tables of their own.
        full_attention: whether every layer keeps every token (no sliding window, no state-space layers).
        match_tokens: granularity of prefix matches; None: whole blocks.
        speculative_tokens: draft tokens a step may compute and reject.
        decode_context_parallel: ranks that share one request's KV cache.
        kv_transfer: whether the engine has a KV connector, by which blocks may arrive without a forward here. Its role
            does not say: some load whatever a producer finds.
    """

    block_size: int
    kv_groups: int = 1
    full_attention: bool = True
    match_tokens: int | None = None
    speculative_tokens: int = 0
    decode_context_parallel: int = 1
    kv_transfer: bool = False


def check_layout(layout: EngineLayout, block_size: int) -> None:
    """Refuses an engine whose rows the cache could not keep in step.

    Raises:
        ConfigError: of the kind that says what to change.
    """
    if layout.block_size != block_size:
        raise BlockSizeMismatch(
            f"the cache was configured with blocks of {block_size} tokens and the engine has {layout.block_size}; "
            "give it the engine's block_size"
        )
    if layout.kv_groups != 1 or not layout.full_attention:
        kind = "not all full attention" if not layout.full_attention else f"{layout.kv_groups} KV cache groups"
        raise HybridLayout(
            f"the engine's KV layout is hybrid ({kind}): a slot does not name one token's rows; "
            "turn prefix caching off for this stage"
        )
    if layout.match_tokens is not None and layout.match_tokens % block_size:
        raise UnalignedMatching(
            f"the engine matches prefixes by {layout.match_tokens} tokens, which are not whole blocks of {block_size}; "
            "turn sub-block matching off"
        )
    if layout.speculative_tokens:
        raise SpeculativeDecoding(
            f"speculative decoding is on ({layout.speculative_tokens} tokens): rejected rows would be stored; "
            "turn it or prefix caching off for this stage"
        )
    if layout.decode_context_parallel != 1:
        raise ContextParallelism(
            f"decode context parallelism is {layout.decode_context_parallel}: no rank has every token's row; "
            "set it to 1"
        )
    if layout.kv_transfer:
        raise KVTransfer(
            "the stage has a KV connector, by which blocks may arrive whose rows are never computed here; "
            "turn prefix caching off for this stage or the KV transfer off (kv_transfer_config)"
        )
