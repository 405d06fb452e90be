"""Workloads: from a bench to the prompts it sends, and what a cache could hit on them."""

from __future__ import annotations

from harness.scenario import Bench
from harness.workloads.ideal import ideal_hit_rates, prompt_tokens, served_ids
from harness.workloads.prefix_repetition import prefix_repetition_prompts
from harness.workloads.prompt import Prompt
from harness.workloads.random_prompts import random_prompts
from harness.workloads.seed_tts import how_to_mend, missing_set, seed_tts_prompts
from harness.workloads.tokenizer import Tokenizer, find_tokenizer

__all__ = [
    "Prompt",
    "Tokenizer",
    "find_tokenizer",
    "generate",
    "how_to_mend",
    "ideal_hit_rates",
    "missing_set",
    "prompt_tokens",
    "served_ids",
]


def generate(bench: Bench, tokenizer: Tokenizer) -> tuple[Prompt, ...]:
    """The prompts of a bench, in the order to send them; equal arguments give equal prompts.

    Raises:
        UsageError: a data set that the bench needs is not on this machine, or no prompt can be made as asked.
    """
    if bench.dataset == "random":
        return random_prompts(bench, tokenizer)
    if bench.dataset == "seed_tts":
        return seed_tts_prompts(bench, tokenizer)
    return prefix_repetition_prompts(bench, tokenizer)
