"""The loads of a scenario: every bench with its prompts, and what an unbounded cache would hit of them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.scenario import Bench
from harness.workloads import Prompt, Tokenizer, generate, ideal_hit_rates, prompt_tokens, served_ids


@dataclass(frozen=True, slots=True)
class Load:
    """A bench with its prompts.

    Parameters:
        cost: tokens to compute with the cache off, what its running time goes by.
    """

    bench: Bench
    prompts: tuple[Prompt, ...]
    cost: float


class Loads:
    """All loads of a scenario, in file order.

    Parameters:
        voice_in_prompt: whether the server writes a reference voice into the chat.

    Raises:
        UsageError: a data set that a bench needs is not on this machine, or no prompt can be made as asked.
    """

    def __init__(self, benches: Sequence[Bench], tokenizer: Tokenizer, *, voice_in_prompt: bool = False) -> None:
        loads = []
        served: list[tuple[str, Sequence[array[int]] | None]] = []
        for bench in benches:
            prompts = generate(bench, tokenizer)
            ids = served_ids(bench, prompts, tokenizer, voice_in_prompt=voice_in_prompt)
            cost = prompt_tokens(prompts, ids) + sum(prompt.output_len for prompt in prompts)
            loads.append(Load(bench, prompts, float(cost)))
            # Kept for the whole run: as machine words they take a tenth of what lists take.
            served.append((bench.name, None if ids is None else [array("i", each) for each in ids]))
        self.all = tuple(loads)
        self._ideal = lru_cache(lambda block_size: ideal_hit_rates(served, block_size))

    @property
    def cost(self) -> float:
        return sum(load.cost for load in self.all)

    def ideal(self, block_size: int | None) -> Mapping[str, float | None]:
        """Hit rate of each bench, by name; None where it cannot be known.

        Parameters:
            block_size: tokens per KV block of the server; None where that is not known.
        """
        if block_size is None:
            return {load.bench.name: None for load in self.all}
        return self._ideal(block_size)
