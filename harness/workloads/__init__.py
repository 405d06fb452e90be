"""Workloads: from a bench to the prompts it sends, and what a cache could hit on them."""

from __future__ import annotations

from harness.scenario import Bench
from harness.workloads.ideal import ideal_hit_rates, served_ids
from harness.workloads.prefix_repetition import prefix_repetition_prompts
from harness.workloads.prompt import Prompt
from harness.workloads.random_prompts import random_prompts
from harness.workloads.tokenizer import Tokenizer, find_tokenizer

__all__ = ["Prompt", "Tokenizer", "find_tokenizer", "generate", "ideal_hit_rates", "served_ids"]


def generate(bench: Bench, tokenizer: Tokenizer) -> tuple[Prompt, ...]:
    """The prompts of a bench, in the order to send them; equal arguments give equal prompts."""
    if bench.dataset == "random":
        return random_prompts(bench, tokenizer)
    return prefix_repetition_prompts(bench, tokenizer)
