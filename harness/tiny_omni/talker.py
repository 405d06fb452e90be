"""The Talker: speaks from the prompt's rows it is handed, and from nothing else.

It never sees the prompt's text. It recovers each token from its row (nearest token embedding), finds the words to say
in the recovered text and takes the voice from the head of a second key's rows. So a wrong row is a wrong word or a
wrong voice, and speech recognition and speaker similarity measure whether the rows were right.

What is said:

* in a prompt that opens with a reference (`harness.tiny_omni.reference`): the words of the last user turn, where it has
  any, the first `max_words` of them;
* after the last `say:` in the last user turn: the words up to the end of that turn, the first `max_words` of them;
* without either: the words of the system and user turns (never the template or the assistant's turns); when there are
  more than `max_words`, that many taken evenly over the whole prompt, so that rows from anywhere in it are heard; of
  the words the vocabulary knows as one token where there are enough of them, since pieces of words are no speech.

A word is English letters, apostrophes between them allowed, said in lower case; anything else is passed over. A
prompt without a word has no speech: `NothingToSay`, never a made-up sentence.

The voice is the one named by `voice NAME` within the first `VOICE_ROWS` rows after the template's head, else a checksum
of the tokens recovered there, modulo the clear voices.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from harness.tiny_omni.errors import TinyOmniError
from harness.tiny_omni.reference import has_reference
from harness.tiny_omni.speech import CLEAR_VOICES, VOICES, Speech, Voice, synthesise
from harness.tiny_omni.tokenizer import IM_END, IM_START

SCRIPT_KEY = "hidden"
VOICE_KEY = "layer.2"
VOICE_ROWS = 32
PIECE_WORDS = 8
"""Words of one piece of speech: the first packet does not wait for the last word."""
ROWS_PER_MATMUL = 512
KNOWN_LETTERS = 3
"""Shorter tokens are letters and syllables as often as words."""

_WORD = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*")
_EDGES = re.compile(r"^[\W_]+|[\W_]+$")
_SAY = re.compile(r"(?:(?<=\s)|^)say:", re.IGNORECASE)
_VOICE = re.compile(rf"\bvoice\s+({'|'.join(VOICES)})\b")


class NothingToSay(TinyOmniError):
    pass


@dataclass(frozen=True, slots=True)
class Script:
    """What one request's Talker says: pieces of at most `PIECE_WORDS` words, in a voice."""

    voice: Voice
    pieces: tuple[str, ...]


@torch.inference_mode()
def recover_tokens(rows: torch.Tensor, embedding: torch.Tensor) -> list[int]:
    """The token of each row: the one whose embedding is nearest by cosine.

    Parameters:
        rows: float32 [L, H].
        embedding: [V, H].
    """
    directions = torch.nn.functional.normalize(embedding.detach().float(), dim=1).T
    ids: list[int] = []
    for chunk in torch.split(rows, ROWS_PER_MATMUL):
        # A row's own length does not change which cosine is largest.
        ids.extend((chunk.float() @ directions).argmax(dim=1).tolist())
    return ids


def choose_voice(ids: Sequence[int], tokenizer: Tokenizer) -> Voice:
    """The voice of a prompt, from the tokens recovered at its start."""
    head = content_head(ids, tokenizer)
    named = _VOICE.findall(tokenizer.decode(head, skip_special_tokens=False))
    if named:
        return next(voice for voice in VOICES if voice == named[0])
    return CLEAR_VOICES[zlib.crc32(np.asarray(head, dtype="<i4").tobytes()) % len(CLEAR_VOICES)]


def content_head(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The first `VOICE_ROWS` tokens after the template's head (`<|im_start|>role` and a newline), if there is one."""
    opening = tokenizer.encode(f"{IM_START}user\n").ids
    start = len(opening) if len(ids) > 2 and (ids[0], ids[2]) == (opening[0], opening[2]) else 0
    return list(ids[start : start + VOICE_ROWS])


def script_words(ids: Sequence[int], tokenizer: Tokenizer, max_words: int) -> list[str]:
    """The words to say, by the rule at the top of this module; empty when there is none."""
    text = tokenizer.decode(list(ids), skip_special_tokens=False)
    turns = [turn for turn in _turns(text) if turn[0] != "assistant"]
    last_user = next((content for role, content in reversed(turns) if role == "user"), "")
    if has_reference(text) and (answer := _words(last_user)):
        return answer[:max_words]
    said = list(_SAY.finditer(last_user))
    if said:
        return _words(last_user[said[-1].end() :])[:max_words]
    words = [word for _, content in turns for word in _words(content)]
    if len(words) > max_words:
        known = _known(words, tokenizer)
        words = known if len(known) >= max_words else words
    return evenly(words, max_words)


def evenly(words: Sequence[str], count: int) -> list[str]:
    """At most `count` of the words in order, the first and the last among them, evenly spaced between."""
    if len(words) <= count:
        return list(words)
    if count == 1:
        return [words[0]]
    return [words[index * (len(words) - 1) // (count - 1)] for index in range(count)]


def write_script(
    rows: Mapping[str, torch.Tensor], embedding: torch.Tensor, tokenizer: Tokenizer, max_words: int
) -> Script:
    """The script of one prompt, from its rows.

    Parameters:
        rows: of the whole prompt, by key, each float32 [prompt_len, H]; `hidden` and `layer.2` are used.
        embedding: the Thinker's token embedding [V, H].
        max_words: most words to say, at least 1.

    Raises:
        NothingToSay: the recovered prompt has no word.
    """
    words = script_words(recover_tokens(rows[SCRIPT_KEY], embedding), tokenizer, max_words)
    if not words:
        raise NothingToSay("the Talker found no word to say in the prompt: speech needs words made of letters")
    # The template's head may come before the rows that count.
    voice_rows = rows[VOICE_KEY][: VOICE_ROWS + 3]
    pieces = (words[start : start + PIECE_WORDS] for start in range(0, len(words), PIECE_WORDS))
    return Script(
        voice=choose_voice(recover_tokens(voice_rows, embedding), tokenizer),
        pieces=tuple(" ".join(piece) for piece in pieces),
    )


def _turns(text: str) -> list[tuple[str, str]]:
    """(role, content) of each turn; text outside the template is a user's."""
    before, *rest = text.split(IM_START)
    turns = [("user", before)] if before.strip() else []
    for turn in rest:
        role, newline, content = turn.partition("\n")
        if newline and role in ("system", "user", "assistant"):
            turns.append((role, content.partition(IM_END)[0]))
        else:
            # Not the template's own: a prompt may contain anything.
            turns.append(("user", turn))
    return turns


def _words(text: str) -> list[str]:
    trimmed = (_EDGES.sub("", chunk) for chunk in text.split())
    return [chunk.lower() for chunk in trimmed if _WORD.fullmatch(chunk)]


def _known(words: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    encoded = tokenizer.encode_batch([f" {word}" for word in words], add_special_tokens=False)
    return [word for word, one in zip(words, encoded, strict=True) if len(one.ids) == 1 and len(word) >= KNOWN_LETTERS]


class Talker:
    """Speaks for many requests at once, off the event loop, with at most `workers` pieces in the making.

    Parameters:
        tokenizer: the Thinker's.
        embedding: the Thinker's token embedding [V, H].
        say: text and voice to samples.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        embedding: torch.Tensor,
        *,
        say: Callable[[str, Voice], npt.NDArray[np.int16]] = synthesise,
        workers: int = 2,
    ) -> None:
        self._tokenizer, self._embedding, self._say = tokenizer, embedding, say
        self._pool = ThreadPoolExecutor(
            max_workers=workers,
            thread_name_prefix="talker",
            # torch counts threads per calling thread: a Talker must not take the cores the Thinker computes on.
            initializer=torch.set_num_threads,
            initargs=(1,),
        )

    async def speak(self, rows: Mapping[str, torch.Tensor], max_words: int) -> AsyncIterator[Speech]:
        """Say what the rows say, piece by piece, in order.

        Raises:
            NothingToSay: no word in the rows.
            SpeechFailed: the synthesiser failed.
        """
        loop = asyncio.get_running_loop()
        script = await loop.run_in_executor(self._pool, write_script, rows, self._embedding, self._tokenizer, max_words)
        for number, piece in enumerate(script.pieces):
            pcm = await loop.run_in_executor(self._pool, self._say, piece, script.voice)
            yield Speech(f" {piece}" if number else piece, pcm)

    def close(self) -> None:
        """Finish the pieces in the making and drop the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)
