"""The payload: one request body, serialised before the bench starts."""

from __future__ import annotations

import json
from typing import Any

from harness.errors import UsageError
from harness.scenario import RESERVED_BODY, Bench
from harness.workloads.prompt import Prompt

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def build_payload(bench: Bench, prompt: Prompt, model: str) -> bytes:
    """The body of one streaming request, as `vllm bench serve` sends it with `--temperature 0`, in UTF-8 JSON.

    `modalities` is always stated for chat, for text too: vLLM-Omni speaks when it is not told otherwise.
    `extra_body` is merged last, key by key at the top level, and wins.

    Raises:
        UsageError: `extra_body` holds a reserved key.
    """
    if taken := sorted(RESERVED_BODY & bench.extra_body.keys()):
        raise UsageError(
            f"bench {bench.name}: extra_body: found {', '.join(taken)}; "
            f"allowed: any key but {', '.join(sorted(RESERVED_BODY))}"
        )
    body: dict[str, Any] = {"model": model}
    if bench.endpoint == "chat":
        body["messages"] = [{"role": "user", "content": [{"type": "text", "text": prompt.text}]}]
        body["max_completion_tokens"] = prompt.output_len
        body["modalities"] = list(bench.modalities)
    else:
        body["prompt"] = prompt.text
        body["max_tokens"] = prompt.output_len
    body["temperature"] = 0.0
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    if bench.ignore_eos:
        body["ignore_eos"] = True
    body.update(bench.extra_body)
    return json.dumps(body).encode()
