"""The prompt: what a workload generates and the client sends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Recording:
    """Somebody's speech, by the file it lies in: it is read when a request body is made of it.

    Parameters:
        path: a WAV file.
        transcript: what is said there.
        language: `English` or `Chinese`.
    """

    path: Path
    transcript: str
    language: str


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text in a turn."""

    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """Something to hear or see in a turn: an address that the server reads, or a file that travels as a data URL."""

    kind: Literal["audio_url", "image_url", "video_url"]
    source: str | Path


Part: TypeAlias = TextPart | MediaPart


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """Its texts, a line each."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def has_media(self) -> bool:
        return any(isinstance(part, MediaPart) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's input.

    Parameters:
        text: the prompt as text.
        prompt_len: tokens of `text` by the workload's tokenizer, without the chat template (as vLLM counts it).
        output_len: tokens to ask for.
        system: the chat's system message, None for none.
        voice: the voice to answer in, None for the server's own. It travels beside the chat, not in it.
        heard: a recording that the chat holds ahead of the text, None for none.
        turns: a whole chat, in place of `system`, `heard` and `text`, which is then that of its last turn.
        id: of the item that it was made of, None for what is made up here.
        expected: the words that should be said or written, where that is known.
        options: of a multiple-choice question, without their letters.
        gold: the letter of its right option.
    """

    text: str
    prompt_len: int
    output_len: int
    system: str | None = None
    voice: Recording | None = None
    heard: Recording | None = None
    turns: tuple[Turn, ...] | None = None
    id: str | None = None
    expected: str | None = None
    options: tuple[str, ...] = ()
    gold: str | None = None

    @property
    def chat(self) -> tuple[Turn, ...]:
        """The chat without a recording that is heard ahead of its text."""
        if self.turns is not None:
            return self.turns
        user = Turn("user", (TextPart(self.text),))
        return (user,) if self.system is None else (Turn("system", (TextPart(self.system),)), user)
