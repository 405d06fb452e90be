"""What clients send: the OpenAI forms as vLLM and vLLM-Omni speak them.

Requests are validated objects. Unknown fields are ignored, as vLLM does; a field that would change the answer and is
not implemented is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness.tiny_omni.errors import TinyOmniError

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


class AudioUrl(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    url: str


class AudioPart(BaseModel):
    """A recording as a data URL, vLLM's form."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    type: Literal["audio_url"]
    audio_url: AudioUrl


class InputAudio(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    data: str
    format: Literal["wav"]


class InputAudioPart(BaseModel):
    """A recording in base64, OpenAI's form."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    type: Literal["input_audio"]
    input_audio: InputAudio


Part = TextPart | AudioPart | InputAudioPart


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    role: Literal["system", "user", "assistant"]
    content: str | list[Annotated[Part, Field(discriminator="type")]]

    @property
    def has_recording(self) -> bool:
        return not isinstance(self.content, str) and not all(isinstance(part, TextPart) for part in self.content)


@dataclass(frozen=True, slots=True)
class Reference:
    """A recorded voice, as a data URL, and what is said there."""

    audio: str
    text: str


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`. `modalities` absent means text alone, as at OpenAI.

    With `ref_audio` and `ref_text` the last user turn is spoken in the recorded voice: vLLM-Omni's form of a request
    to clone a voice, `task_type` Base. There `max_new_tokens` is the limit of last resort.
    """

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Positive | None = None
    modalities: Annotated[list[Modality], Field(min_length=1)] | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    task_type: Literal["Base"] | None = None
    max_new_tokens: Positive | None = None

    @model_validator(mode="after")
    def _whole_reference(self) -> ChatBody:
        if (self.ref_audio is None) != (self.ref_text is None):
            raise ValueError("ref_audio, ref_text: found one of them; allowed: both or none")
        if self.task_type is not None and self.ref_audio is None:
            raise ValueError(f"task_type: found {self.task_type!r}; allowed: with ref_audio only")
        return self

    @property
    def reference(self) -> Reference | None:
        if self.ref_audio is None or self.ref_text is None:
            return None
        return Reference(self.ref_audio, self.ref_text)

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens or self.max_new_tokens

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
