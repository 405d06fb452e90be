"""Our prompts are vLLM's: compared with a golden file that its own code wrote (scripts/make_golden_prompts.py)."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.scenario import Bench
from harness.workloads import Tokenizer, generate, served_ids

GOLDEN_FILE = Path(__file__).parents[1] / "golden" / "prompts.json"
GOLDEN: dict[str, Any] = json.loads(GOLDEN_FILE.read_text(encoding="utf-8"))
CONFIGURATIONS = sorted(GOLDEN["configurations"])


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(Path(harness.__file__).parent / "tiny_omni" / "assets")


@pytest.fixture(params=CONFIGURATIONS)
def configuration(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = GOLDEN["configurations"][request.param]
    return found


def bench_of(configuration: dict[str, Any]) -> Bench:
    return Bench(name="golden", dataset=configuration["dataset"], concurrency=1, **configuration["arguments"])


def test_the_golden_file_belongs_to_the_committed_tokenizer() -> None:
    """A changed tokenizer makes the golden file meaningless: run scripts/make_golden_prompts.py again."""
    assert tokenizer().sha256 == GOLDEN["tokenizer_sha256"], "run scripts/make_golden_prompts.py with vLLM again"


def test_the_tokenizer_counts_as_vllms_does() -> None:
    """Vocabulary size, special ids and added specials decide what is drawn."""
    assert tokenizer().vocab_size == GOLDEN["vocab_size"]
    assert sorted(tokenizer().special_ids) == GOLDEN["special_ids"]
    assert tokenizer().num_special_tokens_to_add == GOLDEN["num_special_tokens_to_add"]


def test_every_prompt_is_the_one_vllm_sends(configuration: dict[str, Any]) -> None:
    """Text, prompt length and output length agree for each prompt, in order."""
    prompts = generate(bench_of(configuration), tokenizer())

    assert [prompt.text for prompt in prompts[:2]] == configuration["first_texts"]
    digests = [hashlib.sha256(prompt.text.encode()).hexdigest() for prompt in prompts]
    assert digests == configuration["text_sha256"]
    assert [prompt.prompt_len for prompt in prompts] == configuration["prompt_len"]
    assert [prompt.output_len for prompt in prompts] == configuration["output_len"]


def test_every_chat_is_the_one_a_vllm_server_sees(configuration: dict[str, Any]) -> None:
    """The rendered chat encodes to the ids that transformers' template and tokenizer give."""
    bench = bench_of(configuration)
    ids = served_ids(bench, generate(bench, tokenizer()), tokenizer())

    assert ids[0] == configuration["first_chat_ids"]
    assert [len(request) for request in ids] == configuration["chat_lens"]


def test_the_golden_file_covers_the_hard_cases() -> None:
    """Both datasets, drawn lengths, lengths that refuse to fit, and texts cut by the alignment all occur in it."""
    cases = GOLDEN["configurations"].values()
    assert {case["dataset"] for case in cases} == {"random", "prefix_repetition"}
    assert any(case["changed_by_alignment"] for case in cases)
    assert any(len(set(case["output_len"])) > 1 for case in cases)
    asked = [case["arguments"] for case in cases if case["arguments"].get("range_ratio") == 0.0]
    lengths = [case["prompt_len"] for case in cases if case["arguments"].get("range_ratio") == 0.0]
    assert any(
        length != arguments["shared_prefix"] + arguments["random_len"]
        for arguments, case in zip(asked, lengths, strict=True)
        for length in case
    )
