"""The Thinker against a dense one-sequence oracle that knows no pages, chunks or batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from harness.errors import UsageError
from harness.tiny_omni.config import EngineConfig, ModelConfig
from harness.tiny_omni.model import NORM_EPS, ROW_KEYS, Thinker
from harness.tiny_omni.step import PADDED_KEYS_BUDGET, build_input, positions_of

BLOCK = 4
SMALL = ModelConfig(hidden_size=64, num_layers=4, num_heads=4, intermediate_size=96, vocab_size=200)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny operators on a busy machine wait for their sibling threads longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def thinker(config: ModelConfig = SMALL, *, slots: int = 512, tokens: int = 256) -> Thinker:
    model = Thinker(config, num_slots=slots, max_tokens=tokens, max_positions=slots)
    for cache in (*model.k_cache, *model.v_cache):
        cache.fill_(math.nan)
    return model


def oracle(model: Thinker, token_ids: Sequence[int]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Rows [n, H] per key and logits [n, V] in float64, by the textbook formulas."""
    config = model.config
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    count = len(token_ids)
    angles = torch.arange(count).double()[:, None] / config.rope_theta ** (torch.arange(0, dim, 2).double()[None] / dim)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None, :]

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + NORM_EPS).sqrt() * weight.double()

    def rotate(x: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(x[..., : dim // 2], x[..., dim // 2 :]) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)

    x = model.embedding[list(token_ids)].double()
    rows: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(model.layers):
        if index == 2:
            rows["layer.2"] = x.clone()
        qkv = norm(x, layer.attn_norm) @ layer.qkv.double()
        q, k, v = torch.split(qkv, [heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
        q, k = rotate(q.view(count, heads, dim)), rotate(k.view(count, kv_heads, dim))
        v = v.view(count, kv_heads, dim)
        attended = torch.empty(count, heads, dim, dtype=torch.float64)
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, shared].T / math.sqrt(dim)
            scores[torch.ones(count, count).triu(1).bool()] = -math.inf
            attended[:, head] = scores.softmax(-1) @ v[:, shared]
        x = x + norm(attended.flatten(1) @ layer.attn_out.double(), layer.attn_out_norm)
        gate, up = (norm(x, layer.mlp_norm) @ layer.gate_up.double()).chunk(2, dim=1)
        x = x + norm((gate * gate.sigmoid() * up) @ layer.down.double(), layer.mlp_out_norm)
    rows["hidden"] = x
    return rows, norm(x, model.final_norm) @ model.lm_head.double()


class Pages:
    """Runs steps of several sequences, each with its own scattered blocks."""

    def __init__(self, model: Thinker, blocks: int = 128, seed: int = 0) -> None:
        self.model = model
        self.tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.free = np.random.default_rng(seed).permutation(blocks).tolist()

    def share(self, name: str, other: str, tokens: int) -> None:
        """Start a sequence on the first `tokens` tokens of another one's blocks."""
        assert tokens % BLOCK == 0
        self.tables[name] = self.tables[other][: tokens // BLOCK]
        self.computed[name] = tokens

    def step(self, work: dict[str, Sequence[int]]) -> tuple[dict[str, dict[str, torch.Tensor]], torch.Tensor]:
        """Feed each sequence's next tokens in one step: rows per sequence and key, last-token logits [R, V]."""
        counts = np.array([len(tokens) for tokens in work.values()])
        computed = np.array([self.computed.get(name, 0) for name in work])
        table = np.full((len(work), 64), 10**6, dtype=np.int32)
        slots: list[int] = []
        for row, (name, tokens) in enumerate(work.items()):
            blocks = self.tables.setdefault(name, [])
            start = self.computed.get(name, 0)
            while len(blocks) * BLOCK < start + len(tokens):
                blocks.append(self.free.pop())
            table[row, : len(blocks)] = blocks
            slots += [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(start, start + len(tokens))]
            self.computed[name] = start + len(tokens)
        ends = np.cumsum(counts)
        logits = self.model.forward(
            build_input(
                token_ids=np.concatenate([np.asarray(tokens) for tokens in work.values()]),
                positions=positions_of(computed, counts),
                block_tables=table,
                computed=computed,
                counts=counts,
                slots=np.array(slots),
                sample_rows=ends - 1,
                block_size=BLOCK,
            )
        )
        rows = {
            name: {key: self.model.outputs[key][end - count : end].clone() for key in ROW_KEYS}
            for name, end, count in zip(work, ends.tolist(), counts.tolist(), strict=True)
        }
        return rows, logits


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-4)


def random_tokens(count: int, seed: int, vocab: int = SMALL.vocab_size) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return tokens


@pytest.mark.parametrize("sizes", [[37], [1] * 9, [16, 21], [5, 1, 1, 30], [1, 2, 3, 4, 5]])
def test_any_chunking_equals_the_oracle(sizes: list[int]) -> None:
    """However a prompt is cut into steps, its rows and logits are those of the uncut sequence."""
    tokens = random_tokens(sum(sizes), seed=1)
    model = thinker()
    pages = Pages(model)
    pieces: dict[str, list[torch.Tensor]] = {key: [] for key in ROW_KEYS}
    expected, logits = oracle(model, tokens)
    start = 0
    for size in sizes:
        rows, last = pages.step({"a": tokens[start : start + size]})
        start += size
        close(last[0], logits[start - 1])
        for key in ROW_KEYS:
            pieces[key].append(rows["a"][key])
    for key in ROW_KEYS:
        close(torch.cat(pieces[key]), expected[key])


def test_a_suffix_over_anothers_blocks_equals_the_oracle() -> None:
    """A request that finds its prefix in another one's blocks computes only its suffix, with the same result."""
    model = thinker()
    pages = Pages(model)
    prefix, mine = random_tokens(24, seed=2), random_tokens(11, seed=3)
    pages.step({"first": prefix + random_tokens(6, seed=4)})
    pages.share("second", "first", 24)
    rows, logits = pages.step({"second": mine})
    expected, expected_logits = oracle(model, prefix + mine)
    close(logits[0], expected_logits[-1])
    for key in ROW_KEYS:
        close(rows["second"][key], expected[key][24:])


def test_a_mixed_step_equals_the_oracle() -> None:
    """Decodes, a chunk over a cached prefix, a fresh prompt and a hit on rows of this very step share one step."""
    model = thinker()
    pages = Pages(model)
    texts = {name: random_tokens(n, seed=n) for name, n in {"a": 30, "b": 7, "c": 41, "d": 18, "e": 3}.items()}
    texts["f"] = texts["d"][:16] + random_tokens(5, seed=99)
    pages.step({"a": texts["a"][:29], "b": texts["b"][:6]})
    pages.step({"c": texts["c"][:20], "e": texts["e"][:2]})
    pages.tables["d"] = [pages.free.pop() for _ in range(5)]
    pages.share("f", "d", 16)
    done = {name: pages.computed.get(name, 0) for name in texts}
    rows, logits = pages.step({name: tokens[done[name] :] for name, tokens in texts.items()})
    for index, (name, tokens) in enumerate(texts.items()):
        expected, expected_logits = oracle(model, tokens)
        close(logits[index], expected_logits[-1])
        for key in ROW_KEYS:
            close(rows[name][key], expected[key][done[name] :])


def test_decode_groups_cover_every_row_once_within_the_budget() -> None:
    """One long context does not pad all the others: groups split where the padded keys would pass the budget."""
    computed = np.array([100, 8000, 50, 60, 0, 70, 20000, 3], dtype=np.int64)
    counts = np.array([1, 1, 1, 1, 6, 1, 1, 1], dtype=np.int64)
    table = np.tile(np.arange(20001 // BLOCK + 1, dtype=np.int32), (8, 1))
    step = build_input(
        token_ids=np.zeros(13, dtype=np.int64),
        positions=positions_of(computed, counts),
        block_tables=table,
        computed=computed,
        counts=counts,
        slots=np.arange(13),
        sample_rows=np.array([0]),
        block_size=BLOCK,
    )
    spans = [range(group.rows.start, group.rows.stop) for group in step.decodes]
    covered = [row for span in spans for row in span]
    assert covered == [0, 1, 2, 3, 10, 11, 12]
    assert [chunk.rows for chunk in step.chunks] == [slice(4, 10)]
    assert all(group.kv_slots.numel() <= PADDED_KEYS_BUDGET for group in step.decodes)
    assert step.positions.tolist() == [100, 8000, 50, 60, 0, 1, 2, 3, 4, 5, 70, 20000, 3]


def test_outputs_are_overwritten_by_the_next_step() -> None:
    """The per-token outputs live in reused buffers, as in real engines: whoever wants rows must copy them."""
    pages = Pages(thinker())
    first = {key: buffer[:8] for key, buffer in pages.model.outputs.items()}
    rows, _ = pages.step({"a": random_tokens(8, seed=5)})
    assert all(torch.equal(first[key], rows["a"][key]) for key in ROW_KEYS)
    pages.step({"b": random_tokens(8, seed=6)})
    assert not any(torch.equal(first[key], rows["a"][key]) for key in ROW_KEYS)


@pytest.mark.parametrize("length", [1, 7, 300, 3000])
def test_the_nearest_embedding_of_a_row_is_its_token(length: int) -> None:
    """Every row of both keys lies nearest, by a wide margin in cosine, to the embedding of the token it stands for."""
    config = ModelConfig()
    model = thinker(config, slots=3072, tokens=3072)
    tokens = random_tokens(length, seed=length, vocab=config.vocab_size)
    pages = Pages(model, blocks=768)
    count = np.array([length])
    table = np.array([pages.free[: -(-length // BLOCK)]], dtype=np.int32)
    positions = positions_of(np.array([0]), count)
    model.forward(
        build_input(
            token_ids=np.array(tokens),
            positions=positions,
            block_tables=table,
            computed=np.array([0]),
            counts=count,
            slots=table[0, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK,
            sample_rows=count - 1,
            block_size=BLOCK,
        )
    )
    unit = torch.nn.functional.normalize(model.embedding)
    own = torch.arange(length), torch.tensor(tokens)
    for key in ROW_KEYS:
        cosine = torch.nn.functional.normalize(model.outputs[key][:length]) @ unit.T
        mine = cosine[own].clone()
        cosine[own] = -1.0
        assert (mine - cosine.amax(dim=1)).min() > 0.25


def test_context_moves_every_later_row() -> None:
    """Another first token changes all rows after it by far more than rounding: a row tells its context."""
    config = ModelConfig()
    model = thinker(config)
    pages = Pages(model)
    tokens = random_tokens(64, seed=7, vocab=config.vocab_size)
    before, _ = pages.step({"a": tokens})
    after, _ = pages.step({"b": [(tokens[0] + 1) % config.vocab_size, *tokens[1:]]})
    for key in ROW_KEYS:
        moved = (before["a"][key] - after["b"][key]).pow(2).mean(dim=1).sqrt()
        assert moved.min() > 0.05


def test_weights_follow_the_seed() -> None:
    """Equal seeds are equal models, other seeds are others."""
    tokens = random_tokens(5, seed=8)
    logits = [
        Pages(thinker(ModelConfig(hidden_size=64, vocab_size=200, seed=seed))).step({"a": tokens})[1]
        for seed in (3, 3, 4)
    ]
    assert torch.equal(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"hidden_size": 60}, "hidden_size: found 60; allowed: multiples of 2"),
        ({"num_kv_heads": 3}, "num_kv_heads: found 3; allowed: divisors of num_heads = 4"),
        ({"num_layers": 2}, "num_layers: found 2; allowed: more than 2"),
        ({"vocab_size": 0}, "vocab_size: found 0; allowed: more than 0"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(setting: dict[str, int], message: str) -> None:
    """A bad model setting is one message with the key, what was found and what is allowed."""
    with pytest.raises(UsageError, match=message):
        ModelConfig(**setting)


def test_an_engine_setting_that_cannot_be_is_refused() -> None:
    """The engine's own settings are checked in the same words."""
    with pytest.raises(UsageError, match="block_size: found 0; allowed: more than 0"):
        EngineConfig(block_size=0)
    with pytest.raises(UsageError, match="eos_token_id: found 4096; allowed: 0 to 4095"):
        EngineConfig(eos_token_id=4096)
