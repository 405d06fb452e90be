"""What clients get: the OpenAI forms as vLLM and vLLM-Omni speak them, plain JSON values."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from harness.tiny_omni.protocol import Json
from harness.tiny_omni.speech import SAMPLE_RATE, Speech, encode_wav


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; `cached` are the prompt tokens found in the prefix cache."""

    prompt: int
    completion: int
    cached: int

    def body(self) -> Json:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every message of one response carries."""

    id: str
    model: str
    created: int

    @classmethod
    def open(cls, request_id: str, model: str) -> Envelope:
        return cls(request_id, model, int(time.time()))

    def wrap(self, kind: str, choices: list[Json], **more: Any) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices, **more}


class Form(Protocol):
    """How one endpoint writes an answer. A method that returns None has nothing to send."""

    def opening(self) -> Json | None: ...

    def text(self, text: str, finish_reason: str | None) -> Json | None: ...

    def speech(self, piece: Speech) -> Json: ...

    def finish(self, reason: str) -> Json | None: ...

    def usage(self, usage: Usage) -> Json: ...

    def whole(self, text: str | None, speech: Sequence[Speech] | None, reason: str, usage: Usage | None) -> Json: ...


@dataclass(frozen=True, slots=True)
class ChatForm:
    """The messages of `/v1/chat/completions`."""

    envelope: Envelope

    def opening(self) -> Json:
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, text: str, finish_reason: str | None) -> Json | None:
        # Speech may still follow the last text, so the reason has its own message.
        del finish_reason
        return self._chunk({"content": text}, modality="text") if text else None

    def speech(self, piece: Speech) -> Json:
        """`content` is a complete base64 WAV file, as vLLM-Omni sends it; `audio` says what is spoken in it."""
        data = base64.b64encode(encode_wav(piece.pcm)).decode()
        about = {"transcript": piece.transcript, "sample_rate": SAMPLE_RATE}
        return self._chunk({"content": data, "audio": about}, modality="audio")

    def finish(self, reason: str) -> Json:
        return self._chunk({}, reason)

    def usage(self, usage: Usage) -> Json:
        return self.envelope.wrap("chat.completion.chunk", [], usage=usage.body())

    def whole(self, text: str | None, speech: Sequence[Speech] | None, reason: str, usage: Usage | None) -> Json:
        """One message: a choice of text, then a choice of audio, each where asked for."""
        messages: list[Json] = []
        if text is not None:
            messages.append({"role": "assistant", "content": text})
        if speech is not None:
            pcm = np.concatenate([piece.pcm for piece in speech]) if speech else np.zeros(0, np.int16)
            audio = {
                "id": f"audio-{self.envelope.id}",
                "data": base64.b64encode(encode_wav(pcm)).decode(),
                "transcript": "".join(piece.transcript for piece in speech),
                "sample_rate": SAMPLE_RATE,
                # Nothing is kept for a later turn to refer to.
                "expires_at": self.envelope.created,
            }
            messages.append({"role": "assistant", "content": None, "audio": audio})
        choices = [
            {"index": index, "message": message, "logprobs": None, "finish_reason": reason}
            for index, message in enumerate(messages)
        ]
        return self.envelope.wrap("chat.completion", choices, usage=usage.body() if usage else None)

    def _chunk(self, delta: Json, finish_reason: str | None = None, **more: Any) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self.envelope.wrap("chat.completion.chunk", [choice], **more)


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """The messages of `/v1/completions`: text alone, and the finish reason with the last of it, as vLLM sends it."""

    envelope: Envelope

    def opening(self) -> None:
        return None

    def text(self, text: str, finish_reason: str | None) -> Json | None:
        if not text and finish_reason is None:
            return None
        return self.envelope.wrap("text_completion", [self._choice(text, finish_reason)])

    def speech(self, piece: Speech) -> Json:
        raise NotImplementedError(f"/v1/completions has no form for speech ({piece.transcript!r})")

    def finish(self, reason: str) -> None:
        del reason

    def usage(self, usage: Usage) -> Json:
        return self.envelope.wrap("text_completion", [], usage=usage.body())

    def whole(self, text: str | None, speech: Sequence[Speech] | None, reason: str, usage: Usage | None) -> Json:
        del speech
        choices = [self._choice(text or "", reason)]
        return self.envelope.wrap("text_completion", choices, usage=usage.body() if usage else None)

    @staticmethod
    def _choice(text: str, finish_reason: str | None) -> Json:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
