"""A request: what a caller submits, what it gets back, and what the engine keeps of it in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from harness.tiny_omni.block_pool import ROOT_HASH, hash_block

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What one engine step produced for one request.

    Parameters:
        request_id: whose it is.
        new_token_ids: tokens of this step; an end-of-sequence token that stops the request is among them.
        finish_reason: None while the request goes on; exactly one output of a request carries a reason.
        cached_tokens: prompt tokens found in the prefix cache when the request was first scheduled.
        prompt_rows: with the output that brings the first token, when the request needs rows: per output key
            the whole prompt's rows, float32 [prompt_len, H], cached prefix included. To be read, not written to.
        error: what went wrong, with finish_reason "error".
    """

    request_id: str
    new_token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    cached_tokens: int
    prompt_rows: Mapping[str, torch.Tensor] | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One prompt to continue.

    Parameters:
        request_id: unique among the requests that have not finished.
        prompt_token_ids: at least one token.
        max_tokens: most tokens to generate, at least 1.
        ignore_eos: go on to `max_tokens` whatever is generated.
        needs_rows: hand over the whole prompt's per-token outputs, as a request that returns audio needs.
        on_output: called once per output on a thread of the engine's; must not block.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool = False
    needs_rows: bool = False
    on_output: Callable[[EngineOutput], None] = field(kw_only=True)


@dataclass(slots=True, eq=False)
class Request:
    """The scheduler's record of a request that has not finished.

    Parameters:
        num_computed: tokens whose KV is in `blocks`, those of the step in flight included.
        row: its row of the input batch while it runs.
        block_hashes: of the full blocks of `token_ids`; empty with caching off.
        num_published: leading blocks whose hash is published.
        cached_tokens: hit at first scheduling; None before that.
        rows_complete: the prompt's last row has been scheduled for a consumer.
    """

    id: str
    prompt_len: int
    token_ids: list[int]
    max_tokens: int
    ignore_eos: bool
    needs_rows: bool
    blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_published: int = 0
    num_computed: int = 0
    row: int | None = None
    cached_tokens: int | None = None
    rows_complete: bool = False

    @classmethod
    def of(cls, request: EngineRequest) -> Request:
        return cls(
            id=request.request_id,
            prompt_len=len(request.prompt_token_ids),
            token_ids=list(request.prompt_token_ids),
            max_tokens=request.max_tokens,
            ignore_eos=request.ignore_eos,
            needs_rows=request.needs_rows,
        )

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens so far."""
        return len(self.token_ids)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.prompt_len

    def extend_hashes(self, block_size: int) -> None:
        """Hash the blocks of `token_ids` that have become full."""
        for index in range(len(self.block_hashes), len(self.token_ids) // block_size):
            parent = self.block_hashes[-1] if self.block_hashes else ROOT_HASH
            block = self.token_ids[index * block_size : (index + 1) * block_size]
            self.block_hashes.append(hash_block(parent, block))

    def finish_reason(self, eos_token_id: int) -> Literal["stop", "length"] | None:
        """Why the last generated token ends the request, or None."""
        if not self.ignore_eos and self.token_ids[-1] == eos_token_id:
            return "stop"
        return "length" if self.num_generated >= self.max_tokens else None
