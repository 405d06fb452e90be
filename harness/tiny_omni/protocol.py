"""What clients send and get: the OpenAI forms as vLLM and vLLM-Omni speak them.

Requests are validated objects. Unknown fields are ignored, as vLLM does; a field that would change the answer and is
not implemented is refused. Responses are plain JSON values, built here and nowhere else.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness.tiny_omni.errors import TinyOmniError
from harness.tiny_omni.speech import SAMPLE_RATE, Speech, encode_wav

Json = dict[str, Any]
Modality = Literal["text", "audio"]
Positive = Annotated[int, Field(ge=1)]

# Fields of the OpenAI and vLLM forms that change what is generated, with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "stop": (None, "", []),
    "stop_token_ids": (None, []),
    "min_tokens": (None, 0),
    "logprobs": (None, False, 0),
    "prompt_logprobs": (None,),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "response_format": (None, {"type": "text"}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
}


class ApiError(TinyOmniError):
    """An answer other than 200: the OpenAI error object."""

    status = 400
    kind = "BadRequestError"

    def body(self) -> Json:
        return {"error": {"message": str(self), "type": self.kind, "param": None, "code": self.status}}


class NotFound(ApiError):
    status = 404
    kind = "NotFoundError"


class Unavailable(ApiError):
    status = 503
    kind = "ServiceUnavailableError"


class Internal(ApiError):
    status = 500
    kind = "InternalServerError"


class Body(BaseModel):
    """Base of every request body: no conversion of types."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    model: str | None = None


BodyT = TypeVar("BodyT", bound=Body)


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    include_usage: bool = False


class GenerationBody(Body):
    """What both ways of generating share. Decoding is greedy, so the only temperature is 0."""

    max_tokens: Positive | None = None
    temperature: float | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None

    @field_validator("temperature")
    @classmethod
    def _greedy(cls, value: float | None) -> float | None:
        if value not in (None, 0.0):
            raise ValueError(f"found {value}; allowed: 0 or absent, this server decodes greedily")
        return value

    @model_validator(mode="after")
    def _nothing_unimplemented(self) -> GenerationBody:
        for name, neutral in _NEUTRAL.items():
            found = (self.model_extra or {}).get(name)
            if found not in neutral:
                allowed = " or ".join("absent" if value is None else repr(value) for value in neutral)
                raise ValueError(f"{name}: found {found!r}; allowed: {allowed}, this server does not implement it")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: allowed with stream: true only")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`. `modalities` absent means text alone, as at OpenAI."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Positive | None = None
    modalities: Annotated[list[Modality], Field(min_length=1)] | None = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wanted(self) -> frozenset[Modality]:
        return frozenset(self.modalities or ("text",))


class CompletionBody(GenerationBody):
    """`POST /v1/completions`: one prompt, as text or token ids."""

    prompt: str | list[int]


class TokenizeBody(Body):
    """`POST /tokenize`: exactly one of `prompt` and `messages`."""

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_input(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages must be given")
        return self


def parse_body(form: type[BodyT], raw: bytes) -> BodyT:
    """The request body `raw` as a `form`.

    Raises:
        ApiError: status 400; the message names each wrong field and what is wrong with it.
    """
    try:
        return form.model_validate_json(raw)
    except ValidationError as error:
        wrong = (
            ".".join(str(part) for part in each["loc"])
            + (": " if each["loc"] else "")
            + each["msg"].removeprefix("Value error, ")
            for each in error.errors(include_url=False, include_context=False, include_input=False)
        )
        raise ApiError("; ".join(wrong)) from None


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
