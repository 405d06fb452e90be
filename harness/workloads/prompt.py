"""The prompt: what a workload generates and the client sends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
class Prompt:
    """One request's input.

    Parameters:
        text: the prompt as text.
        prompt_len: tokens of `text` by the workload's tokenizer, without the chat template (as vLLM counts it).
        output_len: tokens to ask for.
        system: the chat's system message, None for none.
        voice: the voice to answer in, None for the server's own. It travels beside the chat, not in it.
        heard: a recording that the chat holds ahead of the text, None for none.
    """

    text: str
    prompt_len: int
    output_len: int
    system: str | None = None
    voice: Recording | None = None
    heard: Recording | None = None
