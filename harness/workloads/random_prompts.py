"""Dataset `random`: one shared random prefix, then a run of tokens that differs per prompt.

Prompt for prompt what `vllm bench serve --dataset-name random` (0.32) sends for the same tokenizer, arguments and seed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.scenario import Bench
from harness.workloads.fit import fit
from harness.workloads.prompt import Prompt
from harness.workloads.tokenizer import Tokenizer


def random_prompts(bench: Bench, tokenizer: Tokenizer) -> tuple[Prompt, ...]:
    """The prompts of a bench of dataset `random`.

    Lengths are drawn uniformly from `random_len * (1 -+ range_ratio)` and `output * (1 -+ range_ratio)`; the prefix
    comes on top. All draws come from one generator in vLLM's order: input lengths, output lengths, offsets, prefix.

    Raises:
        UsageError: the tokenizer's own special tokens leave a prompt of no tokens.
    """
    if bench.shared_prefix is None or bench.random_len is None or bench.range_ratio is None:
        raise ValueError(f"bench {bench.name!r} is not of dataset random")
    own = max(0, bench.random_len - tokenizer.num_special_tokens_to_add)
    low, high = _bounds(own, bench.range_ratio, at_least=0)
    if bench.shared_prefix + low < 1:
        raise UsageError(
            f"bench {bench.name!r}: found a prompt of 0 tokens once the tokenizer's "
            f"{tokenizer.num_special_tokens_to_add} special tokens are left out; allowed: a longer random_len"
        )
    generator = np.random.default_rng(bench.seed)
    vocabulary = tokenizer.vocab_size
    out_low, out_high = _bounds(bench.output, bench.range_ratio, at_least=1)
    lengths = generator.integers(low, high + 1, size=bench.prompts)
    outputs = generator.integers(out_low, out_high + 1, size=bench.prompts)
    offsets = generator.integers(0, vocabulary, size=bench.prompts)
    allowed = _plain_ids(tokenizer)

    def draw(count: int) -> list[int]:
        return [int(drawn) for drawn in generator.integers(0, vocabulary, size=count)]

    prefix: list[int] = []
    if bench.shared_prefix:
        drawn = allowed[generator.integers(0, len(allowed), size=bench.shared_prefix)]
        prefix = fit(tokenizer, drawn.tolist(), bench.shared_prefix, draw)[1]

    prompts = []
    for index in range(bench.prompts):
        length = int(lengths[index])
        run = allowed[(int(offsets[index]) + index + np.arange(length)) % len(allowed)]
        text, ids = fit(tokenizer, prefix + run.tolist(), bench.shared_prefix + length, draw)
        prompts.append(Prompt(text, len(ids), int(outputs[index])))
    return tuple(prompts)


def _bounds(mean: int, ratio: float, *, at_least: int) -> tuple[int, int]:
    """Both ends, inclusive, of the lengths around `mean`."""
    return max(math.floor(mean * (1 - ratio)), at_least), max(math.ceil(mean * (1 + ratio)), at_least)


def _plain_ids(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Every id of the vocabulary that is not special, ascending."""
    special = tokenizer.special_ids
    return np.array([index for index in range(tokenizer.vocab_size) if index not in special], dtype=np.int64)
