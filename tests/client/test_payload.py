"""A body is what `vllm bench serve` sends, with the bench's extra body merged in."""

from __future__ import annotations

import json

import pytest
from client_bench import make_bench

from harness.client.payload import build_payload
from harness.errors import UsageError
from harness.workloads.prompt import Prompt

PROMPT = Prompt("héllo", prompt_len=2, output_len=7)


def test_chat_body() -> None:
    """Chat: one user message of one text part, greedy, streamed with usage, the output length fixed."""
    assert json.loads(build_payload(make_bench(modalities=("text", "audio")), PROMPT, "m")) == {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "héllo"}]}],
        "max_completion_tokens": 7,
        "modalities": ["text", "audio"],
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_completions_body() -> None:
    """Completions: the prompt as text, and no key of chat's."""
    assert json.loads(build_payload(make_bench(endpoint="completions", ignore_eos=False), PROMPT, "m")) == {
        "model": "m",
        "prompt": "héllo",
        "max_tokens": 7,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_text_is_stated() -> None:
    """A text bench says so: vLLM-Omni speaks when it is not told otherwise."""
    assert json.loads(build_payload(make_bench(), PROMPT, "m"))["modalities"] == ["text"]


def test_extra_body_wins() -> None:
    """`extra_body` adds keys and replaces ours."""
    body = json.loads(
        build_payload(make_bench(extra_body={"temperature": 0.7, "chat_template_kwargs": {"a": 1}}), PROMPT, "m")
    )
    assert (body["temperature"], body["chat_template_kwargs"]) == (0.7, {"a": 1})


@pytest.mark.parametrize("key", ["model", "messages", "prompt", "stream", "n"])
def test_extra_body_may_not_change_what_is_measured(key: str) -> None:
    """A reserved key is refused with a message that names the bench and the key."""
    with pytest.raises(UsageError, match=rf"bench b: extra_body: found {key}; allowed"):
        build_payload(make_bench(extra_body={key: 1}), PROMPT, "m")
