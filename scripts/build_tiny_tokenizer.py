"""Build the reference server's tokenizer: `python scripts/build_tiny_tokenizer.py [--check]`.

A byte-level BPE of exactly `VOCAB_SIZE` tokens: three special tokens (ids 0, 1, 2), the 256 bytes, every word of
`assets/words.txt` in all its forms with a leading space, and as many merges learned from those words as are needed
to fill the rest. Whole words are looked up before merges (`ignore_merges`), so they need no chain of merges of their
own, and nearly every token is a word that a Talker can say.

Ids after the special ones are shuffled with a fixed seed: `random` prompts are runs of consecutive ids, and a run
must not be all bytes or all one letter of the alphabet. The output is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

ASSETS = Path(__file__).resolve().parent.parent / "harness" / "tiny_omni" / "assets"
VOCAB_SIZE = 4096
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# These open a turn of the chat template, directly after <|im_start|>, hence without a leading space.
BARE_WORDS = ("system", "user", "assistant")
SHUFFLE_SEED = 4096
MODEL_MAX_LENGTH = 8192

CHAT_TEMPLATE = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string %}
{{ message['content'] }}
{%- else %}
{% for part in message['content'] %}
{{ part['text'] }}
{%- endfor %}
{% endif %}
{{ '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def plural(noun: str) -> str:
    """Regular plural, which is also the regular third person of a verb."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def past(verb: str) -> str:
    """Regular past form."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + "ed"


def present_participle(verb: str) -> str:
    """Regular -ing form."""
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith(("ee", "ye", "oe")):
        return verb[:-1] + "ing"
    return verb + "ing"


def adverb(adjective: str) -> str:
    """Regular -ly form."""
    if adjective.endswith("ic"):
        return adjective + "ally"
    if adjective.endswith("le") and adjective[-3] not in "aeiou":
        return adjective[:-1] + "y"
    if adjective.endswith("y"):
        return adjective[:-1] + "ily"
    if adjective.endswith("ll"):
        return adjective + "y"
    return adjective + "ly"


def forms(kind: str, word: str) -> tuple[str, ...]:
    """Every form of `word` that becomes a token, itself first."""
    match kind:
        case "plain":
            return (word,)
        case "noun":
            return (word, plural(word))
        case "verb":
            return (word, plural(word), past(word), present_participle(word))
        case "double":
            return (word, plural(word), f"{word}{word[-1]}ed", f"{word}{word[-1]}ing")
        case "adjective":
            return (word, adverb(word))
    raise SystemExit(f"words.txt: found kind {kind!r}; allowed: plain, noun, verb, double, adjective")


def read_words(path: Path) -> list[str]:
    """All forms of all words of `path`, each once, in file order."""

    def every() -> Iterator[str]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                kind, _, words = line.partition(":")
                for word in words.split():
                    yield from forms(kind, word)

    return list(dict.fromkeys(every()))


def byte_symbols() -> list[str]:
    """The 256 printable characters that stand for the 256 bytes in a byte-level vocabulary."""
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def learn_merges(words: list[str], size: int) -> list[tuple[str, str]]:
    """The first `size` merges a BPE trainer learns from the words, with and without a leading space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + size, initial_alphabet=byte_symbols(), show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator([*words, *(f" {word}" for word in words)], trainer)
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]


def build() -> Tokenizer:
    """The tokenizer, complete."""
    words = read_words(ASSETS / "words.txt")
    whole = [*BARE_WORDS, *(f"Ġ{word}" for word in words)]
    fixed = {*SPECIAL_TOKENS, *byte_symbols(), *whole}
    if len(fixed) >= VOCAB_SIZE:
        raise SystemExit(f"words.txt: {len(words)} word forms leave no room for merges in {VOCAB_SIZE} tokens")
    tokens, merges = dict.fromkeys(fixed), []
    for left, right in learn_merges(words, VOCAB_SIZE):
        if len(tokens) == VOCAB_SIZE:
            break
        merges.append((left, right))
        tokens[left + right] = None
    if len(tokens) != VOCAB_SIZE:
        raise SystemExit(f"words.txt: only {len(tokens)} tokens can be made, {VOCAB_SIZE} are needed")

    ordinary = sorted(set(tokens) - set(SPECIAL_TOKENS))
    random.Random(SHUFFLE_SEED).shuffle(ordinary)
    vocab = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *ordinary))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def files() -> dict[str, str]:
    """Name and text of every file this script writes."""
    config = {
        "add_prefix_space": False,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL_TOKENS[0],
        "model_max_length": MODEL_MAX_LENGTH,
        "pad_token": SPECIAL_TOKENS[0],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return {
        "tokenizer.json": build().to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the reference server's tokenizer.")
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    check = parser.parse_args().check
    stale = []
    for name, text in files().items():
        path = ASSETS / name
        if check:
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{ASSETS}: {', '.join(stale)} differ from what this script builds", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
