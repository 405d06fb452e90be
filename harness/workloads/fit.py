"""Texts of an exact token length, by the procedure of vLLM's benchmark datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.workloads.tokenizer import Tokenizer

Draw = Callable[[int], list[int]]
"""Draws that many random token ids."""

RETRIES = 10


def fit(tokenizer: Tokenizer, ids: Sequence[int], length: int, draw: Draw) -> tuple[str, list[int]]:
    """Decode and encode until the text has `length` tokens: ids that were drawn one by one need not survive as such.

    Too short a text is lengthened by drawn ids, too long a one cut, at most `RETRIES` times; then it stays as it is.
    The order of draws is vLLM's (`gen_prompt_decode_to_target_len`), so that equal seeds give equal prompts.

    Returns:
        The text, and the ids it encodes to.
    """
    sequence = list(ids)
    retries = RETRIES
    while True:
        text = tokenizer.decode(sequence)
        sequence = tokenizer.encode(text)
        if retries <= 0 or len(sequence) == length:
            return text, sequence
        if len(sequence) < length:
            sequence += draw(length - len(sequence))
        else:
            sequence = sequence[:length]
        retries -= 1
