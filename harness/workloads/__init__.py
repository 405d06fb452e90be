"""Workloads: from a bench to the prompts it sends, and what a cache could hit on them."""

from __future__ import annotations

from collections.abc import Callable

from harness.scenario import Bench, Dataset
from harness.workloads.conversation import conversation_prompts
from harness.workloads.daily_omni import daily_omni_prompts
from harness.workloads.ideal import ideal_hit_rates, prompt_tokens, served_ids
from harness.workloads.prefix_repetition import prefix_repetition_prompts
from harness.workloads.prompt import Prompt
from harness.workloads.random_prompts import random_prompts
from harness.workloads.seed_tts import seed_tts_prompts
from harness.workloads.sets import how_to_mend, missing_set, require_set
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
    require_set(bench)
    return _MAKERS[bench.dataset](bench, tokenizer)


_MAKERS: dict[Dataset, Callable[[Bench, Tokenizer], tuple[Prompt, ...]]] = {
    "random": random_prompts,
    "prefix_repetition": prefix_repetition_prompts,
    "seed_tts": seed_tts_prompts,
    "conversation": conversation_prompts,
    "daily_omni": daily_omni_prompts,
}
