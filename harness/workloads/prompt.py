"""The prompt: what a workload generates and the client sends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's input.

    Parameters:
        text: the prompt as text.
        prompt_len: tokens of `text` by the workload's tokenizer, without the chat template (as vLLM counts it).
        output_len: tokens to ask for.
    """

    text: str
    prompt_len: int
    output_len: int
