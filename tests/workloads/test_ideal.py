"""The ideal hit rate: what an unbounded cache of full blocks hits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness
from harness.scenario import Bench
from harness.workloads import Prompt, Tokenizer, ideal_hit_rates, served_ids

ASSETS = Path(harness.__file__).parent / "tiny_omni" / "assets"


def naive(benches: list[tuple[str, list[list[int]]]], block_size: int) -> dict[str, float]:
    """The definition, word for word: compare with every earlier request, token by token."""
    seen: list[list[int]] = []
    rates = {}
    for name, requests in benches:
        hits = 0
        for ids in requests:
            longest = 0
            for earlier in seen:
                # Only what fills blocks of the earlier request is in the cache.
                held = earlier[: len(earlier) // block_size * block_size]
                common = 0
                while common < min(len(ids), len(held)) and ids[common] == held[common]:
                    common += 1
                longest = max(longest, common // block_size * block_size)
            hits += min(longest, (len(ids) - 1) // block_size * block_size)
            seen.append(ids)
        rates[name] = hits / sum(len(ids) for ids in requests)
    return rates


requests = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=8)


@given(st.lists(requests, min_size=1, max_size=3), st.integers(1, 5))
def test_it_agrees_with_the_definition(benches: list[list[list[int]]], block_size: int) -> None:
    """The chains find exactly the longest common prefixes of full blocks."""
    named = [(f"bench{index}", bench) for index, bench in enumerate(benches)]
    assert ideal_hit_rates(named, block_size) == pytest.approx(naive(named, block_size))


def test_the_last_token_is_always_computed() -> None:
    """A repeated prompt of whole blocks hits all of them but the last."""
    prompt = list(range(64))
    assert ideal_hit_rates([("once", [prompt]), ("again", [prompt])], 16) == {"once": 0.0, "again": 0.75}


def test_a_partial_block_is_never_hit() -> None:
    """47 shared tokens are two blocks of 16."""
    shared = list(range(47))
    rates = ideal_hit_rates([("pair", [[*shared, 100], [*shared, 200]])], 16)
    assert rates == {"pair": pytest.approx(32 / 96)}


def test_equal_blocks_behind_different_ones_are_not_shared() -> None:
    """A block is known by everything before it, not by its own tokens."""
    assert ideal_hit_rates([("pair", [[1] * 16 + [9] * 16 + [5], [2] * 16 + [9] * 16 + [5]])], 16) == {"pair": 0.0}


def test_benches_on_one_server_see_what_earlier_ones_left() -> None:
    """The order of benches matters: the second finds the first one's blocks."""
    prompts = [[7] * 33]
    assert ideal_hit_rates([("a", prompts), ("b", prompts)], 16) == {"a": 0.0, "b": pytest.approx(32 / 33)}


def test_nothing_to_ask_is_an_error() -> None:
    """A rate over no tokens does not exist."""
    for benches, block_size in (([("a", [])], 16), ([("a", [[1]]), ("a", [[1]])], 16), ([("a", [[1]])], 0)):
        with pytest.raises(ValueError, match="found"):
            ideal_hit_rates(benches, block_size)


def bench(**settings: object) -> Bench:
    shape = {"shared_prefix": 0, "random_len": 8, "range_ratio": 0.0}
    base = {"name": "b", "dataset": "random", "concurrency": 1, "prompts": 1, "seed": 0, "output": 1}
    return Bench.model_validate({**base, **shape, **settings})


def test_the_server_sees_the_chat_template_or_the_bare_text() -> None:
    """The endpoint decides which ids count."""
    tokenizer = Tokenizer(ASSETS)
    prompt = Prompt("a licence to copy", 4, 1)
    (chat,) = served_ids(bench(), [prompt], tokenizer)
    (bare,) = served_ids(bench(endpoint="completions"), [prompt], tokenizer)
    assert bare == tokenizer.encode("a licence to copy")
    assert tokenizer.decode(chat) == "<|im_start|>user\na licence to copy<|im_end|>\n<|im_start|>assistant\n"
