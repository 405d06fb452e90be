"""The answer: what one response stream says, read after the bench.

The stream forms are those of OpenAI's chat and text completions, and vLLM-Omni's chat, which marks each event with an
extra `modality` and puts base64 audio where text would stand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.client.sse import Event


@dataclass(frozen=True, slots=True)
class Usage:
    """The server's own token counts; None where it does not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One response.

    Parameters:
        text_ns: arrival of each event with text, reasoning or a tool call in it; the role event has none.
        text: the answer's text, joined.
        aside: reasoning and tool-call text, joined: tokens that `text` does not hold.
        audio_ns: arrival of each audio event, as long as `audio`.
        audio: base64, one per audio event; may be empty strings.
        transcript: what the server says it spoke; None where it does not say.
        usage: None when no event carried one.
        finish_reason: the last one given.
        error: the error the stream carried, or why it could not be read.
        done: `[DONE]` came.
    """

    text_ns: tuple[int, ...]
    text: str
    aside: str
    audio_ns: tuple[int, ...]
    audio: tuple[str, ...]
    transcript: str | None
    usage: Usage | None
    finish_reason: str | None
    error: str | None
    done: bool


@dataclass(slots=True)
class _Reader:
    text_ns: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    audio_ns: list[int] = field(default_factory=list)
    audio: list[str] = field(default_factory=list)
    transcript: list[str] = field(default_factory=list)
    usage: Usage | None = None
    finish_reason: str | None = None

    def take(self, at_ns: int, payload: dict[str, Any]) -> None:
        """Take one event's payload. Raises TypeError or AttributeError on a form it does not know."""
        if usage := payload.get("usage"):
            self.usage = _merge(self.usage, usage)
        for choice in payload.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta") or {}
            spoken = delta.get("audio") or {}
            data = _text(spoken.get("data"))
            if payload.get("modality") == "audio":
                self.audio_ns.append(at_ns)
                self.audio.append(_text(delta.get("content")) or data)
            else:
                if data:
                    self.audio_ns.append(at_ns)
                    self.audio.append(data)
                self._take_text(at_ns, choice, delta)
            if words := _text(spoken.get("transcript")):
                self.transcript.append(words)

    def _take_text(self, at_ns: int, choice: dict[str, Any], delta: dict[str, Any]) -> None:
        text = _text(choice.get("text")) or _text(delta.get("content"))
        aside = _text(delta.get("reasoning")) or _text(delta.get("reasoning_content"))
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            aside += _text(function.get("name")) + _text(function.get("arguments"))
        if text or aside:
            self.text_ns.append(at_ns)
            self.text.append(text)
            self.aside.append(aside)


def read_answer(events: Iterable[Event]) -> Answer:
    """Read a stream up to `[DONE]`, or up to the first event that is an error or cannot be read."""
    reader = _Reader()
    error: str | None = None
    done = False
    for number, event in enumerate(events):
        if event.data == b"[DONE]":
            done = True
            break
        try:
            payload = json.loads(event.data)
            error = _error_of(event, payload)
            if error is None:
                reader.take(event.at_ns, payload)
        except ValueError as exc:
            error = f"event {number} is not JSON ({exc}): {_excerpt(event.data)}"
        except (AttributeError, TypeError):
            error = f"event {number} is not a completion chunk: {_excerpt(event.data)}"
        if error is not None:
            break
    return Answer(
        text_ns=tuple(reader.text_ns),
        text="".join(reader.text),
        aside="".join(reader.aside),
        audio_ns=tuple(reader.audio_ns),
        audio=tuple(reader.audio),
        transcript="".join(reader.transcript) if reader.transcript else None,
        usage=reader.usage,
        finish_reason=reader.finish_reason,
        error=error,
        done=done,
    )


def _merge(seen: Usage | None, usage: dict[str, Any]) -> Usage:
    """Later counts win, except that output never shrinks: a later stage may report its own smaller count."""
    seen = seen or Usage()
    details = usage.get("prompt_tokens_details") or {}
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    cached = _count(details.get("cached_tokens"))
    return Usage(
        prompt_tokens=seen.prompt_tokens if prompt is None else prompt,
        completion_tokens=max((n for n in (seen.completion_tokens, completion) if n is not None), default=None),
        cached_tokens=seen.cached_tokens if cached is None else cached,
    )


def _error_of(event: Event, payload: dict[str, Any]) -> str | None:
    said = payload.get("error")
    if said is None and event.kind != "error" and payload.get("object") != "error":
        return None
    message = said.get("message") if isinstance(said, dict) else said
    return f"the stream carried an error: {message or payload.get('message') or _excerpt(event.data)}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def _count(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or value < 0):
        raise TypeError(f"expected a count, found {value!r}")
    return value


def _excerpt(data: bytes, limit: int = 200) -> str:
    return data[:limit].decode("utf-8", "replace")
