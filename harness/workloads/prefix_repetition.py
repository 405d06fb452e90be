"""Dataset `prefix_repetition`: several random prefixes, each shared by an equal number of prompts, shuffled.

Prompt for prompt what `vllm bench serve --dataset-name prefix_repetition` (0.32) sends to a server with the same
tokenizer, arguments and seed. That includes its alignment with the server's tokenizer: where prefix and suffix merge
into other tokens at their seam, it cuts a text that grew back to the intended length.
"""

from __future__ import annotations

import random

import numpy as np

from harness.scenario import Bench
from harness.workloads.fit import fit
from harness.workloads.prompt import Prompt
from harness.workloads.tokenizer import Tokenizer


def prefix_repetition_prompts(bench: Bench, tokenizer: Tokenizer) -> tuple[Prompt, ...]:
    """The prompts of a bench of dataset `prefix_repetition`: `prompts / num_prefixes` for each prefix."""
    if bench.prefix_len is None or bench.suffix_len is None or bench.num_prefixes is None:
        raise ValueError(f"bench {bench.name!r} is not of dataset prefix_repetition")
    # vLLM draws tokens from numpy's legacy generator and shuffles with the standard library's, both seeded alike.
    generator = np.random.RandomState(bench.seed)
    shuffler = random.Random(bench.seed)

    def draw(count: int) -> list[int]:
        return [int(drawn) for drawn in generator.randint(0, tokenizer.vocab_size, size=count)]

    def tokens(length: int) -> list[int]:
        return fit(tokenizer, draw(length), length, draw)[1]

    prompts = []
    for _ in range(bench.num_prefixes):
        prefix = tokens(bench.prefix_len)
        for _ in range(bench.prompts // bench.num_prefixes):
            ids = prefix + tokens(bench.suffix_len)
            prompts.append(Prompt(tokenizer.decode(ids), len(ids), bench.output))
    shuffler.shuffle(prompts)
    return align(prompts, tokenizer)


def align(prompts: list[Prompt], tokenizer: Tokenizer) -> tuple[Prompt, ...]:
    """Cut prompts whose text encodes to more tokens than intended, as `vllm bench serve` does before it sends.

    It looks at the first prompt alone to decide whether to look at the others.
    """
    if not prompts or len(tokenizer.encode(prompts[0].text)) == prompts[0].prompt_len:
        return tuple(prompts)
    aligned = []
    for prompt, ids in zip(prompts, tokenizer.encode_all([prompt.text for prompt in prompts]), strict=True):
        if len(ids) > prompt.prompt_len:
            text = tokenizer.decode(ids[: prompt.prompt_len])
            prompt = Prompt(text, prompt.prompt_len, prompt.output_len)
        aligned.append(prompt)
    return tuple(aligned)
