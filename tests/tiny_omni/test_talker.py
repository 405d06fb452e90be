"""The Talker says what the rows say, in the voice their head chooses, and nothing else."""

from __future__ import annotations

import io
import struct
import threading
import wave
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import MissingDependency
from harness.tiny_omni.speech import (
    CLEAR_VOICES,
    SAMPLE_RATE,
    VOICES,
    SpeechFailed,
    Voice,
    encode_wav,
    require_flite,
    synthesise,
)
from harness.tiny_omni.talker import (
    PIECE_WORDS,
    NothingToSay,
    Talker,
    choose_voice,
    evenly,
    recover_tokens,
    script_words,
    write_script,
)
from harness.tiny_omni.tokenizer import load_tokenizer, render_chat

TOKENIZER = load_tokenizer()
EMBEDDING = torch.randn(4096, 64, generator=torch.Generator().manual_seed(7))


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def chat(user: str, system: str | None = None) -> list[int]:
    messages = [{"role": "system", "content": system}] if system is not None else []
    return encode(render_chat([*messages, {"role": "user", "content": user}]))


def rows_of(ids: list[int]) -> dict[str, torch.Tensor]:
    """Rows as a Thinker makes them: the token's embedding, scaled and disturbed."""
    draw = torch.Generator().manual_seed(len(ids))
    rows = EMBEDDING[torch.tensor(ids)]
    return {
        key: rows * scale + 0.3 * torch.randn(rows.shape, generator=draw)
        for key, scale in (("hidden", 3.0), ("layer.2", 1.0))
    }


def said(text: str, max_words: int = 100) -> list[str]:
    return script_words(chat(text), TOKENIZER, max_words)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 4095), min_size=1, max_size=700), st.floats(0.1, 50.0))
def test_tokens_are_recovered_at_any_scale(ids: list[int], scale: float) -> None:
    """The nearest embedding by cosine is the token's own, whatever the length of the row."""
    assert recover_tokens(EMBEDDING[torch.tensor(ids)] * scale, EMBEDDING) == ids


def test_nearest_is_by_cosine_and_not_by_product() -> None:
    """A long embedding does not attract rows that point elsewhere."""
    embedding = torch.tensor([[1.0, 0.0], [10.0, 10.0]])
    assert recover_tokens(torch.tensor([[1.0, 0.1]]), embedding) == [0]


def test_says_what_follows_the_marker() -> None:
    """After the last `say:` of the last user turn, the words up to the turn's end are said in order."""
    assert said("please say: no, say: The cat's Milk, is cold!") == ["the", "cat's", "milk", "is", "cold"]
    assert said("say: one two three", max_words=2) == ["one", "two"]


def test_marker_counts_in_the_last_user_turn_only() -> None:
    """A marker in the system turn, or inside a word, is no instruction."""
    ids = chat("good morning", system="say: nothing")
    assert script_words(ids, TOKENIZER, 10) == ["say", "nothing", "good", "morning"]
    assert said("essay: good") == ["essay", "good"]


def test_without_marker_the_content_is_said() -> None:
    """System and user turns are said; the template and the assistant's turns are not."""
    ids = encode(
        render_chat(
            [
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": "first"},
                {"role": "assistant", "content": "never"},
                {"role": "user", "content": "second"},
            ]
        )
    )
    assert script_words(ids, TOKENIZER, 10) == ["be", "kind", "first", "second"]


def test_plain_prompt_needs_no_template() -> None:
    """A prompt without turns is all content."""
    assert script_words(encode("the river is wide"), TOKENIZER, 10) == ["the", "river", "is", "wide"]


def test_only_letters_are_words() -> None:
    """Numbers, symbols, mixtures and other alphabets are passed over; punctuation around a word is not part of it."""
    assert said("(Hello) 42 42nd a1b x--y «über» don't 'quoted' naïve end.") == ["hello", "don't", "quoted", "end"]


@given(st.lists(st.text("ab", min_size=1), max_size=50), st.integers(1, 20))
def test_evenly_spreads_over_the_whole(words: list[str], count: int) -> None:
    """The chosen words keep their order, number min(count, all), and reach from the first to the last."""
    indexed = [f"{index}{word}" for index, word in enumerate(words)]
    chosen = evenly(indexed, count)
    places = [indexed.index(word) for word in chosen]
    assert len(chosen) == min(count, len(words))
    assert places == sorted(set(places))
    if len(words) > 1 and count > 1:
        assert (places[0], places[-1]) == (0, len(words) - 1)
        gaps = np.diff(places)
        assert gaps.max() - gaps.min() <= 1


def test_voice_is_named_in_the_head() -> None:
    """`voice NAME` near the start chooses the voice; beyond the head it is only words."""
    for voice in VOICES:
        assert choose_voice(chat(f"voice {voice} say: hello"), TOKENIZER) == voice
    far = "the " * 40 + "voice "
    assert len({choose_voice(chat(far + voice), TOKENIZER) for voice in VOICES}) == 1


def test_voice_depends_on_the_shared_prefix_alone() -> None:
    """Prompts that share their head share the voice; other heads spread over the clear voices, always alike."""
    prefixes = [" ".join([word] * 40) for word in ("the", "house", "river", "cold", "dog", "cat", "sun", "moon")]
    voices = [choose_voice(chat(f"{prefix} one"), TOKENIZER) for prefix in prefixes]
    assert voices == [choose_voice(chat(f"{prefix} two three"), TOKENIZER) for prefix in prefixes]
    assert set(voices) == set(CLEAR_VOICES)
    heads = [struct.pack("<32i", *chat(prefix)[3:35]) for prefix in prefixes]
    assert voices == [CLEAR_VOICES[zlib.crc32(head) % 3] for head in heads]


def test_template_head_does_not_choose_the_voice() -> None:
    """The role that opens the prompt is no part of the checksum."""
    words = " ".join(["river"] * 40)
    assert choose_voice(chat(words), TOKENIZER) == choose_voice(chat("one", system=words), TOKENIZER)


def test_script_comes_from_the_rows() -> None:
    """The words are those of the `hidden` rows and the voice that of the `layer.2` rows, each key on its own."""
    told = rows_of(chat("voice rms say: the house is cold"))
    other = rows_of(chat("voice slt say: a river was wide"))
    script = write_script({"hidden": told["hidden"], "layer.2": other["layer.2"]}, EMBEDDING, TOKENIZER, 100)
    assert script.pieces == ("the house is cold",)
    assert script.voice == "slt"


def test_a_wrong_row_is_a_wrong_word() -> None:
    """One row of another tenant changes exactly the word it stands for."""
    ids = chat("say: the house is cold")
    rows = rows_of(ids)
    place = ids.index(encode(" house")[0])
    rows["hidden"][place] = EMBEDDING[encode(" river")[0]]
    assert write_script(rows, EMBEDDING, TOKENIZER, 100).pieces == ("the river is cold",)


def test_long_scripts_come_in_pieces() -> None:
    """No piece has more than PIECE_WORDS words, and together they are the script."""
    words = ["the", "house", "by", "the", "river", "is", "cold", "and", "the", "dog", "is", "old"]
    pieces = write_script(rows_of(chat("say: " + " ".join(words))), EMBEDDING, TOKENIZER, 100).pieces
    assert " ".join(pieces).split() == words
    assert [len(piece.split()) for piece in pieces] == [PIECE_WORDS, 4]


def test_nothing_to_say_is_an_error() -> None:
    """A prompt without a word has no speech, and the message says why."""
    with pytest.raises(NothingToSay, match="no word to say"):
        write_script(rows_of(chat("12 + 30 = 42")), EMBEDDING, TOKENIZER, 10)


async def test_pieces_are_spoken_in_order_and_off_the_loop() -> None:
    """Speech comes piece by piece in script order, made by the Talker's own threads."""
    threads: list[str] = []

    def say(text: str, voice: Voice) -> npt.NDArray[np.int16]:
        threads.append(threading.current_thread().name)
        return np.full(len(text), VOICES.index(voice), np.int16)

    talker = Talker(TOKENIZER, EMBEDDING, say=say)
    rows = rows_of(chat("voice awb say: " + "the house is cold and old but the river " * 2))
    spoken = [piece async for piece in talker.speak(rows, max_words=17)]
    talker.close()
    assert [piece.transcript for piece in spoken] == [
        "the house is cold and old but the",
        " river the house is cold and old but",
        " the",
    ]
    assert all((piece.pcm == VOICES.index("awb")).all() for piece in spoken)
    assert {name.split("_")[0] for name in threads} == {"talker"}


def test_a_long_prompt_is_sampled_for_words_it_knows() -> None:
    """Of more words than can be said, those that are one token are said; glued pieces of words are left out."""
    text = " ".join(f"zqxv{word}" if index % 2 else word for index, word in enumerate(["river", "house", "cold"] * 20))
    words = said(text, 10)
    assert len(words) == 10
    assert set(words) == {"river", "house", "cold"}
    assert said("zqxvriver zqxvhouse zqxvcold", 2) == ["zqxvriver", "zqxvcold"]


def test_the_same_words_and_voice_sound_the_same() -> None:
    """Speech is deterministic to the bit, and differs by voice and by word."""
    first = synthesise("the house is cold", "slt")
    assert first.dtype == np.int16
    assert 0.4 < len(first) / SAMPLE_RATE < 4.0
    assert np.abs(first).max() > 1000
    assert np.array_equal(first, synthesise("the house is cold", "slt"))
    others = [synthesise("the house is cold", voice) for voice in VOICES[1:]] + [synthesise("the house is old", "slt")]
    assert not any(np.array_equal(first, other) for other in others)


def test_wav_is_complete() -> None:
    """A packet is a whole RIFF file: mono, 16 bit, 16 kHz, with its samples."""
    pcm = np.arange(-500, 500, dtype=np.int16)
    with wave.open(io.BytesIO(encode_wav(pcm))) as audio:
        assert (audio.getnchannels(), audio.getsampwidth(), audio.getframerate()) == (1, 2, SAMPLE_RATE)
        assert audio.readframes(audio.getnframes()) == pcm.tobytes()


def test_missing_flite_is_said_once_and_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the program the message names it and how to install it, or how to do without."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"flite.*apt install flite.*brew install flite.*--no-audio"):
        require_flite()


def test_flite_without_our_voices_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flite built with other voices is named with what it has and what is needed."""
    _program(tmp_path, "echo 'Voices available: kal slt '")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="found voices kal slt; needed: slt rms awb kal16"):
        require_flite()


def test_a_failing_synthesiser_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program says on its way out is part of the message."""
    _program(tmp_path, "echo no sound card >&2; exit 3")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpeechFailed, match="'hello': exit 3: no sound card"):
        synthesise("hello", "slt")


def _program(folder: Path, line: str) -> None:
    path = folder / "flite"
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)
