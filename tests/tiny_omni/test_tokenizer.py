"""The reference server's tokenizer: exact size, words for tokens, and text that survives."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from harness.tiny_omni.config import EngineConfig
from harness.tiny_omni.tokenizer import ASSETS, Detokenizer, load_tokenizer, render_chat, token_bytes

TOKENIZER = load_tokenizer()
PIECES = token_bytes(TOKENIZER)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "build_tiny_tokenizer.py"
    spec = importlib.util.spec_from_file_location("build_tiny_tokenizer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_vocabulary_fits_the_model() -> None:
    """The vocabulary has exactly as many tokens as the model has embeddings, special tokens first."""
    assert TOKENIZER.get_vocab_size(with_added_tokens=True) == EngineConfig().model.vocab_size == 4096
    assert TOKENIZER.get_vocab_size(with_added_tokens=False) == 4096
    assert [TOKENIZER.token_to_id(token) for token in SPECIAL] == [0, 1, 2]
    assert EngineConfig().eos_token_id == 0


def test_most_tokens_are_whole_words() -> None:
    """At least five of six tokens are a listed word with a leading space, in any run of consecutive ids too."""
    words = {f"Ġ{word}" for word in _listed_forms()}
    is_word = [TOKENIZER.id_to_token(index) in words for index in range(4096)]
    assert sum(is_word) > 4096 * 5 / 6
    assert min(sum(is_word[start : start + 128]) for start in range(3, 4096 - 128)) > 128 * 2 / 3


def _listed_forms() -> list[str]:
    text = (ASSETS / "words.txt").read_text(encoding="utf-8")
    stems = [word for line in text.splitlines() if not line.startswith("#") for word in line.split()[1:]]
    return [*stems, *(stem + ending for stem in stems for ending in ("s", "es", "ed", "ing", "ly"))]


def test_committed_files_are_what_the_script_builds(builder: ModuleType) -> None:
    """Vocabulary, merges and configuration in the repository are those the script makes from the word list."""
    built = builder.files()
    committed = {name: (ASSETS / name).read_text(encoding="utf-8") for name in built}
    assert json.loads(committed["tokenizer_config.json"]) == json.loads(built["tokenizer_config.json"])
    for part in ("vocab", "merges", "ignore_merges"):
        assert (
            json.loads(committed["tokenizer.json"])["model"][part] == json.loads(built["tokenizer.json"])["model"][part]
        )


@pytest.mark.parametrize(
    ("kind", "stem", "forms"),
    [
        ("plain", "children", ("children",)),
        ("noun", "box", ("box", "boxes")),
        ("noun", "city", ("city", "cities")),
        ("noun", "boy", ("boy", "boys")),
        ("verb", "carry", ("carry", "carries", "carried", "carrying")),
        ("verb", "agree", ("agree", "agrees", "agreed", "agreeing")),
        ("verb", "bake", ("bake", "bakes", "baked", "baking")),
        ("verb", "tie", ("tie", "ties", "tied", "tying")),
        ("double", "stop", ("stop", "stops", "stopped", "stopping")),
        ("adjective", "gentle", ("gentle", "gently")),
        ("adjective", "happy", ("happy", "happily")),
        ("adjective", "basic", ("basic", "basically")),
    ],
)
def test_forms_are_english(builder: ModuleType, kind: str, stem: str, forms: tuple[str, ...]) -> None:
    """Each kind of word inflects by the regular rules of English spelling."""
    assert builder.forms(kind, stem) == forms


@given(st.text())
def test_text_survives(text: str) -> None:
    """Any text decodes to itself, bytes standing in for what is no word."""
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text
    assert b"".join(PIECES[index] for index in ids).decode() == text


@given(st.lists(st.integers(0, 4095), max_size=60), st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_pieces_make_the_whole(ids: list[int], steps: list[int]) -> None:
    """However tokens arrive, the pieces put together are the lossy UTF-8 decoding of all their bytes."""
    detokenizer, pieces, start = Detokenizer(PIECES), [], 0
    while start < len(ids):
        step = steps[len(pieces) % len(steps)]
        pieces.append(detokenizer.push(ids[start : start + step]))
        start += step
    whole = "".join(pieces) + detokenizer.flush()
    assert whole == b"".join(PIECES[index] for index in ids).decode(errors="replace")


def test_no_half_characters() -> None:
    """The bytes of an unfinished character are kept back until it is whole, and flushed as U+FFFD when it never is."""
    ids = TOKENIZER.encode("😀", add_special_tokens=False).ids
    assert len(ids) == 4
    detokenizer = Detokenizer(PIECES)
    assert [detokenizer.push([index]) for index in ids] == ["", "", "", "😀"]
    assert detokenizer.push(ids[:3]) == ""
    assert detokenizer.flush() == "�"


def test_byte_table_agrees_with_the_library() -> None:
    """Every token whose bytes are text has the text the library decodes it to."""
    for index, piece in enumerate(PIECES):
        decoded = TOKENIZER.decode([index], skip_special_tokens=False)
        assert piece.decode(errors="replace") == decoded


def test_chat_in_the_template_of_the_configuration() -> None:
    """Turns are wrapped as in Qwen's template; parts are concatenated; the assistant's turn is opened on request."""
    messages = [
        {"role": "system", "content": [{"type": "text", "text": " be "}, {"type": "text", "text": "kind\n"}]},
        {"role": "user", "content": "{{ say }} <b>"},
    ]
    turns = "<|im_start|>system\n be kind\n<|im_end|>\n<|im_start|>user\n{{ say }} <b><|im_end|>\n"
    assert render_chat(messages) == turns + "<|im_start|>assistant\n"
    assert render_chat(messages, add_generation_prompt=False) == turns


def test_template_head_is_three_tokens() -> None:
    """Marker, role and newline are one token each, so every turn starts at a known place."""
    for role in ("system", "user", "assistant"):
        assert len(TOKENIZER.encode(f"<|im_start|>{role}\n", add_special_tokens=False).ids) == 3


def test_special_tokens_in_config() -> None:
    """The end of text is the token the engine stops at."""
    config = json.loads((ASSETS / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["eos_token"] == SPECIAL[0]
    assert tuple(config["additional_special_tokens"]) == SPECIAL[1:]
    assert isinstance(Tokenizer.from_file(str(ASSETS / "tokenizer.json")), Tokenizer)
