"""The reference server's tokenizer: loading it, rendering a chat, and turning a stream of tokens into text."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

ASSETS = Path(__file__).resolve().parent / "assets"
"""Holds `tokenizer.json` and `tokenizer_config.json`, built by scripts/build_tiny_tokenizer.py."""

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"


def load_tokenizer() -> Tokenizer:
    """The byte-level BPE of 4096 tokens; ids 0, 1, 2 are the special tokens above, in that order."""
    return Tokenizer.from_file(str(ASSETS / "tokenizer.json"))


def render_chat(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
    """The prompt text of a chat, by the template of `tokenizer_config.json`.

    Parameters:
        messages: each with `role` and `content`: a string, or a list of `{"type": "text", "text": ...}` parts,
            which are concatenated.
        add_generation_prompt: open the assistant's turn at the end.
    """
    return _chat_template().render(messages=messages, add_generation_prompt=add_generation_prompt)


@cache
def _chat_template() -> jinja2.Template:
    config = json.loads((ASSETS / "tokenizer_config.json").read_text(encoding="utf-8"))
    # transformers compiles chat templates with these two options.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(config["chat_template"])


def token_bytes(tokenizer: Tokenizer) -> tuple[bytes, ...]:
    """The bytes each token id stands for; a special token's are those of its name."""
    alphabet = _byte_of_symbol()
    special = {index: token.content for index, token in tokenizer.get_added_tokens_decoder().items()}
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    return tuple(
        special[index].encode() if index in special else bytes(alphabet[symbol] for symbol in tokens[index])
        for index in range(len(tokens))
    )


def _byte_of_symbol() -> dict[str, int]:
    """The byte-level alphabet, inverted: printable bytes stand for themselves, the others for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(0x100) if byte not in set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


class Detokenizer:
    """Text of one stream of tokens, piece by piece; never half a character.

    The pieces put together are the lossy UTF-8 decoding of all the tokens' bytes.

    Parameters:
        pieces: the bytes of every token id, from `token_bytes`.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that became certain with these tokens; the bytes of an unfinished character are kept back."""
        return self._decoder.decode(b"".join(self._pieces[token_id] for token_id in token_ids))

    def flush(self) -> str:
        """What was kept back, as a replacement character."""
        return self._decoder.decode(b"", final=True)
