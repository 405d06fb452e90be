"""The Thinker: a small decoder-only transformer over a paged KV cache, with seeded random weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  the name every torch reader knows

from harness.tiny_omni.config import MID_LAYER, ModelConfig
from harness.tiny_omni.step import DecodeGroup, ModelInput, PrefillChunk
from prefix_cache.pages import lazy_pages

ROW_KEYS = ("hidden", f"layer.{MID_LAYER}")
"""Keys of the per-token outputs: the final residual stream, and the one that enters layer `MID_LAYER`."""

NORM_EPS = 1e-6
BRANCH_SCALE = 0.35
"""Root mean square of what one attention or MLP branch adds to a residual stream that starts at 1.

Eight branches of this size about match the token's embedding: context moves every row and the logits, and the
nearest embedding of a row is still the token's own.
"""
ATTENTION_GAIN = 1.5
"""Scale of queries and keys: attention scores spread enough to prefer a few tokens of a long context."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights; `*_out_norm` normalise a branch before it joins the residual stream."""

    attn_norm: torch.Tensor
    qkv: torch.Tensor
    attn_out: torch.Tensor
    attn_out_norm: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    mlp_out_norm: torch.Tensor


class Thinker:
    """Decoder-only transformer: RMSNorm, rotary embedding, grouped-query attention, SwiGLU; float32 on the CPU.

    Parameters:
        config: shape and seed.
        num_slots: slots of the KV cache (blocks times block size).
        max_tokens: most tokens of one step; the size of the output buffers.
        max_positions: longest context.

    Attributes:
        embedding: float32 [V, H], every row of root mean square 1.
        outputs: per key of ROW_KEYS a float32 [max_tokens, H] buffer; the first N rows belong to the last
            step of N tokens and are overwritten by the next.
        k_cache, v_cache: per layer float32 [num_slots, kv_heads, head_dim], unwritten until first use.
    """

    def __init__(self, config: ModelConfig, *, num_slots: int, max_tokens: int, max_positions: int) -> None:
        self.config = config
        draw = torch.Generator().manual_seed(config.seed)
        hidden, heads, kv_heads, dim = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim

        def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
            return torch.randn(rows, columns, generator=draw).mul_(gain / math.sqrt(rows))

        def norm() -> torch.Tensor:
            return 1 + 0.1 * torch.randn(hidden, generator=draw)

        embedding = torch.randn(config.vocab_size, hidden, generator=draw)
        self.embedding = embedding / embedding.square().mean(dim=1, keepdim=True).sqrt()
        self.layers = tuple(
            Layer(
                attn_norm=norm(),
                qkv=torch.cat(
                    [
                        matrix(hidden, heads * dim, ATTENTION_GAIN),
                        matrix(hidden, kv_heads * dim, ATTENTION_GAIN),
                        matrix(hidden, kv_heads * dim),
                    ],
                    dim=1,
                ),
                attn_out=matrix(heads * dim, hidden),
                attn_out_norm=BRANCH_SCALE * norm(),
                mlp_norm=norm(),
                gate_up=matrix(hidden, 2 * config.intermediate_size),
                down=matrix(config.intermediate_size, hidden),
                mlp_out_norm=BRANCH_SCALE * norm(),
            )
            for _ in range(config.num_layers)
        )
        self.final_norm = norm()
        self.lm_head = matrix(hidden, config.vocab_size)
        self.cos, self.sin = _rotary_tables(max_positions, dim, config.rope_theta)
        self.outputs = {key: torch.empty(max_tokens, hidden) for key in ROW_KEYS}
        shape = (num_slots, kv_heads, dim)
        self.k_cache = tuple(_resident(shape) for _ in self.layers)
        self.v_cache = tuple(_resident(shape) for _ in self.layers)

    @torch.inference_mode()
    def forward(self, step: ModelInput) -> torch.Tensor:
        """Run one step: fill the KV cache at the step's slots and `outputs` at its rows.

        Returns:
            Logits, float32 [S, V], of the step's sample rows.
        """
        x = F.embedding(step.token_ids, self.embedding)
        cos, sin = self.cos[step.positions], self.sin[step.positions]
        for index, layer in enumerate(self.layers):
            if index == MID_LAYER:
                self.outputs[ROW_KEYS[1]][: len(x)].copy_(x)
            attended = self._attention(index, layer, self._norm(x, layer.attn_norm), cos, sin, step)
            x += self._norm(attended @ layer.attn_out, layer.attn_out_norm)
            gate, up = (self._norm(x, layer.mlp_norm) @ layer.gate_up).chunk(2, dim=-1)
            x += self._norm((F.silu(gate) * up) @ layer.down, layer.mlp_out_norm)
        self.outputs[ROW_KEYS[0]][: len(x)].copy_(x)
        return self._norm(x[step.sample_rows], self.final_norm) @ self.lm_head

    def _attention(
        self,
        index: int,
        layer: Layer,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        step: ModelInput,
    ) -> torch.Tensor:
        heads, kv_heads, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        qkv = (x @ layer.qkv).view(len(x), heads + 2 * kv_heads, dim)
        query_key = _rotate(qkv[:, : heads + kv_heads], cos, sin)
        query, key, value = query_key[:, :heads], query_key[:, heads:], qkv[:, heads + kv_heads :]
        self.k_cache[index].index_copy_(0, step.slots, key)
        self.v_cache[index].index_copy_(0, step.slots, value)
        attended = torch.empty(len(x), heads, dim)
        for group in step.decodes:
            attended[group.rows] = self._attend_decodes(index, query[group.rows], group)
        for chunk in step.chunks:
            attended[chunk.rows] = self._attend_chunk(index, query, key, value, chunk)
        return attended.view(len(x), heads * dim)

    def _attend_decodes(self, index: int, query: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
        size, kv_heads, dim = len(query), self.config.num_kv_heads, self.config.head_dim
        keys = self.k_cache[index].index_select(0, group.kv_slots).view(size, -1, kv_heads, dim)
        values = self.v_cache[index].index_select(0, group.kv_slots).view(size, -1, kv_heads, dim)
        # The query heads that share a KV head stand as rows of one attention problem: no repeated keys.
        attended = F.scaled_dot_product_attention(
            query.reshape(size, kv_heads, -1, dim),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=group.mask,
        )
        return attended.reshape(size, self.config.num_heads, dim)

    def _attend_chunk(
        self, index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, chunk: PrefillChunk
    ) -> torch.Tensor:
        if chunk.kv_slots is None:
            keys, values = key[chunk.rows], value[chunk.rows]
        else:
            keys = self.k_cache[index].index_select(0, chunk.kv_slots)
            values = self.v_cache[index].index_select(0, chunk.kv_slots)
        attended = F.scaled_dot_product_attention(
            query[chunk.rows].transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.config.hidden_size,), weight, NORM_EPS)


def _resident(shape: tuple[int, ...]) -> torch.Tensor:
    """float32 zeros that are there from the start, in huge pages: memory as a device's KV cache is.

    In small ones a step of 16 requests took up to a tenth longer where hits had scattered the free blocks, and the
    first use of each block paid for its pages: a difference between arms that is not the cache's.
    """
    memory = lazy_pages(4 * math.prod(shape), huge=True).view(torch.float32).view(shape)
    return memory.fill_(0.0)


def _rotary_tables(positions: int, dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, float32 [positions, 1, dim / 2] each (Su et al., RoFormer), in the half-split layout."""
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies[None, :]
    return angles.cos().float()[:, None, :], angles.sin().float()[:, None, :]


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
