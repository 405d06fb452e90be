"""What an unbounded prefix cache would hit: the yardstick for a measured hit rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.scenario import Bench
from harness.workloads.prompt import Prompt
from harness.workloads.tokenizer import Tokenizer


def ideal_hit_rates(
    token_ids_by_bench: Sequence[tuple[str, Sequence[Sequence[int]] | None]], block_size: int
) -> dict[str, float | None]:
    """The hit rate of each bench on one server whose cache never evicts, benches and prompts in the order given.

    A request hits the longest prefix of full blocks that some earlier request held, and at most
    `floor((L - 1) / block_size)` blocks of its L tokens: the last token is always computed, since its logits are
    needed. The rate is the sum of hit tokens over the sum of prompt tokens, as `prefix_cache_hits` over
    `prefix_cache_queries` counts them.

    Parameters:
        token_ids_by_bench: for each bench its name and, per request, the ids the server sees; None where they are
            known to the server only. Such a bench has no rate, and is taken to leave nothing that others could hit.
        block_size: tokens per KV block.

    Raises:
        ValueError: a block size under 1, a bench twice, or a bench without tokens.
    """
    if block_size < 1:
        raise ValueError(f"block_size: found {block_size}; allowed: 1 or more")
    cache = _Cache(block_size)
    rates: dict[str, float | None] = {}
    for name, requests in token_ids_by_bench:
        if name in rates:
            raise ValueError(f"bench {name!r}: found it twice")
        if requests is None:
            rates[name] = None
            continue
        total = sum(len(ids) for ids in requests)
        if total == 0:
            raise ValueError(f"bench {name!r}: found no tokens")
        rates[name] = sum(cache.serve(ids) for ids in requests) / total
    return rates


def served_ids(
    bench: Bench, prompts: Sequence[Prompt], tokenizer: Tokenizer, *, voice_in_prompt: bool = False
) -> list[list[int]] | None:
    """The ids the server sees for each prompt; None where it makes them of more than text.

    At the chat endpoint: the chat template over the system message, if any, and one user message, with the request's
    `chat_template_kwargs`. A recording in the chat becomes as many tokens as the model makes of it. At the completions
    endpoint: the text with the tokenizer's own special tokens around it, the server's default there. At the speech
    endpoint the model's own code writes the prompt.

    Parameters:
        voice_in_prompt: whether the server writes a reference voice into the chat, so that it alone knows the ids.
    """
    if bench.endpoint == "speech" or any(_only_the_server_knows(prompt, voice_in_prompt) for prompt in prompts):
        return None
    if bench.endpoint == "completions":
        return tokenizer.encode_all([prompt.text for prompt in prompts], specials=True)
    variables = bench.extra_body.get("chat_template_kwargs") or {}
    chats = [tokenizer.render_chat(_messages(prompt), **variables) for prompt in prompts]
    return tokenizer.encode_all(chats)


def prompt_tokens(prompts: Sequence[Prompt], served: Sequence[Sequence[int]] | None) -> int:
    """Tokens of all prompts together: of what `served_ids` found, else of their texts alone."""
    return sum(prompt.prompt_len for prompt in prompts) if served is None else sum(len(ids) for ids in served)


def _only_the_server_knows(prompt: Prompt, voice_in_prompt: bool) -> bool:
    return (
        prompt.heard is not None
        or (voice_in_prompt and prompt.voice is not None)
        or any(turn.has_media for turn in prompt.chat)
    )


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.text} for turn in prompt.chat]


class _Cache:
    """Every full block ever seen, as chains: a block is known by its tokens and the chain before it."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._chains: dict[tuple[int, bytes], int] = {}

    def serve(self, ids: Sequence[int]) -> int:
        """Hit tokens of a request, which then leaves all its full blocks behind."""
        size = self._block_size
        data = np.asarray(ids, dtype=np.int64).tobytes()
        step = size * 8
        chain, hits, hitting = 0, 0, True
        for start in range(0, len(ids) // size * step, step):
            key = (chain, data[start : start + step])
            known = self._chains.get(key)
            if known is None:
                hitting = False
                known = self._chains[key] = len(self._chains) + 1
            elif hitting:
                hits += 1
            chain = known
        return min(hits, (len(ids) - 1) // size) * size if ids else 0
