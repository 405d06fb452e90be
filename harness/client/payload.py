"""The payload: one request body, serialised before the bench starts."""

from __future__ import annotations

import base64
import json
import mimetypes
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.scenario import RESERVED_BODY, Bench
from harness.workloads.prompt import Part, Prompt, TextPart

_WAV = "audio/wav"  # mimetypes says audio/x-wav
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "speech": "/v1/audio/speech"}


def build_payload(bench: Bench, prompt: Prompt, model: str) -> bytes:
    """The body of one streaming request, as `vllm bench serve` sends it with `--temperature 0`, in UTF-8 JSON.

    `modalities` is always stated for chat, for text too: vLLM-Omni speaks when it is not told otherwise.
    `extra_body` is merged key by key at the top level and wins over all but a prompt's own voice, which travels in the
    keys of vLLM-Omni (`ref_audio`, `ref_text`, ...) with its recording as a data URL. Speech is asked for as a WAV
    stream: its header says what vLLM-Omni's client, which asks for bare samples, takes for granted.

    Raises:
        UsageError: `extra_body` holds a reserved key, or a recording cannot be read.
    """
    if taken := sorted(RESERVED_BODY & bench.extra_body.keys()):
        raise UsageError(
            f"bench {bench.name}: extra_body: found {', '.join(taken)}; "
            f"allowed: any key but {', '.join(sorted(RESERVED_BODY))}"
        )
    body: dict[str, Any] = {"model": model}
    if bench.endpoint == "speech":
        body |= {"input": prompt.text, "stream": True, "stream_format": "audio", "response_format": "wav"}
    else:
        body |= _completion(bench, prompt)
    body.update(bench.extra_body)
    if prompt.voice is not None:
        body |= {
            "ref_audio": _data_url(prompt.voice.path),
            "ref_text": prompt.voice.transcript,
            "task_type": "Base",
            "language": prompt.voice.language,
            "max_new_tokens": prompt.output_len,
        }
    return json.dumps(body).encode()


def _completion(bench: Bench, prompt: Prompt) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if bench.endpoint == "chat":
        body["messages"] = _messages(prompt)
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
    return body


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": turn.role, "content": [_part(part) for part in turn.parts]} for turn in prompt.chat
    ]
    if prompt.heard is not None:
        messages[-1]["content"].insert(0, {"type": "audio_url", "audio_url": {"url": _data_url(prompt.heard.path)}})
    return messages


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    address = part.source if isinstance(part.source, str) else _data_url(part.source)
    return {"type": part.kind, part.kind: {"url": address}}


def _data_url(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    kind = _WAV if path.suffix.lower() == ".wav" else mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
