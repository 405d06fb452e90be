"""Generated prompts: their shape, apart from being vLLM's."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import harness
from harness.errors import UsageError
from harness.scenario import Bench
from harness.workloads import Tokenizer, generate
from harness.workloads.fit import RETRIES, fit
from harness.workloads.random_prompts import random_prompts


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(Path(harness.__file__).parent / "tiny_omni" / "assets")


def bench(dataset: str, **settings: object) -> Bench:
    base = {"name": "b", "dataset": dataset, "concurrency": 1, "prompts": 8, "seed": 3, "output": 10}
    return Bench.model_validate({**base, **settings})


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4095), min_size=1, max_size=40), st.integers(1, 40), st.randoms(use_true_random=False))
def test_a_fitted_text_encodes_to_the_ids_returned(ids: list[int], length: int, random: Random) -> None:
    """Whatever was drawn, the ids are those of the text, and almost always as many as asked."""
    draws = []

    def draw(count: int) -> list[int]:
        draws.append(count)
        return [random.randrange(4096) for _ in range(count)]

    text, fitted = fit(tokenizer(), ids, length, draw)
    assert tokenizer().encode(text) == fitted
    assert len(fitted) == length or len(draws) <= RETRIES
    assert all(count > 0 for count in draws)


def test_a_text_that_never_fits_is_given_up_after_ten_retries() -> None:
    """As in vLLM, whose `max_retry` is 10: the first attempt and ten more, then the text stays as it is."""
    attempts = []

    class Growing(Tokenizer):
        def encode(self, text: str, *, specials: bool = False) -> list[int]:
            attempts.append((text, specials))
            return [1, 1, 1, 1]

    text, ids = fit(Growing(tokenizer().folder), [1, 1, 1], 3, lambda count: [1] * count)
    assert len(attempts) == 11
    assert attempts[-1] == (text, False)
    assert ids == [1, 1, 1, 1]


def test_a_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    """Dataset random: all prompts begin alike, and no two are equal."""
    prompts = generate(bench("random", shared_prefix=64, random_len=32, range_ratio=0.0), tokenizer())
    ids = [tokenizer().encode(prompt.text) for prompt in prompts]
    common = next(place for place, column in enumerate(zip(*ids, strict=False)) if len(set(column)) > 1)
    assert 60 <= common <= 68
    assert len({prompt.text for prompt in prompts}) == len(prompts)


def test_a_range_ratio_spreads_both_lengths_within_its_bounds() -> None:
    """Dataset random: floor and ceil of mean * (1 -+ ratio) are reached and not passed."""
    drawn = generate(bench("random", shared_prefix=0, random_len=20, range_ratio=0.5, prompts=200), tokenizer())
    assert {prompt.output_len for prompt in drawn} == set(range(5, 16))
    lengths = [prompt.prompt_len for prompt in drawn]
    assert min(lengths) in (9, 10, 11)
    assert max(lengths) in (29, 30, 31)


def test_prefixes_repeat_as_often_as_asked_and_are_shuffled() -> None:
    """Dataset prefix_repetition: each of the prefixes begins prompts/num_prefixes prompts, not one after the other."""
    prompts = generate(bench("prefix_repetition", prefix_len=48, suffix_len=8, num_prefixes=4, prompts=16), tokenizer())
    starts = [prompt.text[:20] for prompt in prompts]
    assert sorted(starts.count(start) for start in set(starts)) == [4, 4, 4, 4]
    assert starts != sorted(starts, key=starts.index)


def test_equal_seeds_are_equal_prompts_and_other_seeds_are_not() -> None:
    """A prompt depends on nothing but its bench and the tokenizer."""
    shape = {"shared_prefix": 8, "random_len": 8, "range_ratio": 0.0}
    first = generate(bench("random", **shape), tokenizer())
    assert generate(bench("random", **shape), tokenizer()) == first
    assert generate(bench("random", **shape, seed=4), tokenizer()) != first


def test_special_tokens_that_use_up_the_prompt_are_a_usage_error() -> None:
    """A tokenizer that adds as many tokens as the prompt has leaves nothing to send."""

    class Adding(Tokenizer):
        @property
        def num_special_tokens_to_add(self) -> int:
            return 2

    adding = Adding(tokenizer().folder)
    with pytest.raises(UsageError, match="found a prompt of 0 tokens once the tokenizer's 2 special tokens"):
        generate(bench("random", shared_prefix=0, random_len=2, range_ratio=0.0), adding)
    (first, *_) = generate(bench("random", shared_prefix=0, random_len=10, range_ratio=0.0), adding)
    assert first.prompt_len == 8


def test_a_bench_of_another_dataset_is_refused() -> None:
    """Generators say so rather than guess."""
    other = bench("prefix_repetition", prefix_len=4, suffix_len=4, num_prefixes=4)
    with pytest.raises(ValueError, match="not of dataset random"):
        random_prompts(other, tokenizer())
