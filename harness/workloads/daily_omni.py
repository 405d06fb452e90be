"""Dataset `daily_omni`: multiple-choice questions about videos and their sound, in Daily-Omni's form.

The set is not part of this project (https://github.com/Lliar-liar/Daily-Omni). Its `qa.json` is a list of objects with
`Question`, `Choice` (the options, `A. ...` to `D. ...`), `Answer` (a letter) and `video_id`. With `media: ADDRESS` an
item refers to `ADDRESS/ID/ID_video.mp4` and `ADDRESS/ID/ID_audio.wav`, where the set has them; `video_url` and
`audio_url` in an item stand for themselves. Addresses are passed on to the server: it must be able to reach them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import UsageError
from harness.scenario import Bench
from harness.workloads.conversation import LETTERS
from harness.workloads.prompt import MediaPart, Part, Prompt, TextPart, Turn
from harness.workloads.tokenizer import Tokenizer

WHERE = "https://github.com/Lliar-liar/Daily-Omni"

INSTRUCTION = "Answer with the letter of the right option alone."
"""Ours: the set prescribes no wording."""

_LETTERED = re.compile(r"^\s*\(?([A-Da-d])\)?\s*[.:、)]\s*")


class _Entry(BaseModel):
    """One question; other keys of the set (`Type`, `video_duration`, ...) are of no account here."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    question: Annotated[str, Field(alias="Question", min_length=1)]
    choice: Annotated[list[str], Field(alias="Choice", min_length=2, max_length=len(LETTERS))]
    answer: Annotated[str, Field(alias="Answer")]
    video_id: str | None = None
    video_url: str | None = None
    audio_url: str | None = None


def daily_omni_prompts(bench: Bench, tokenizer: Tokenizer) -> tuple[Prompt, ...]:
    """The first `prompts` questions of the bench's file: media first, then the question, its options, what to answer.

    Raises:
        UsageError: the file is not there, has too few questions, or one that is no such question.
    """
    path = Path(bench.path or "")
    entries = _read(path)
    if len(entries) < bench.prompts:
        raise UsageError(f"{path}: found {len(entries)} items; allowed: {bench.prompts} or more (bench {bench.name})")
    return tuple(
        _prompt(path, position, entry, bench, tokenizer) for position, entry in enumerate(entries[: bench.prompts])
    )


def _read(path: Path) -> list[Any]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}; allowed: Daily-Omni's qa.json, from {WHERE}") from error
    if not isinstance(entries, list):
        raise UsageError(f"{path}: found a {type(entries).__name__}; allowed: a JSON list of questions")
    return entries


def _prompt(path: Path, position: int, given: object, bench: Bench, tokenizer: Tokenizer) -> Prompt:
    where = f"{path}: item {position}"
    try:
        entry = _Entry.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the item"
        raise UsageError(f"{where}: {key}: {first['msg']}; allowed: Question, Choice, Answer, video_id") from None
    letters = LETTERS[: len(entry.choice)]
    gold = entry.answer.strip()
    if len(gold) != 1 or gold not in letters:
        raise UsageError(f"{where}: Answer: found {entry.answer!r}; allowed: one of {', '.join(letters)}")
    media = _media(where, entry, bench)
    options = tuple(_LETTERED.sub("", option) for option in entry.choice)
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip(letters, options, strict=True))
    text = f"{entry.question}\n{listed}\n{INSTRUCTION}"
    return Prompt(
        text=text,
        prompt_len=len(tokenizer.encode(text)),
        output_len=bench.output,
        turns=(Turn("user", (*media, TextPart(text))),),
        id=f"{entry.video_id or 'item'}-{position}",
        options=options,
        gold=gold,
    )


def _media(where: str, entry: _Entry, bench: Bench) -> tuple[Part, ...]:
    if entry.video_url or entry.audio_url:
        video = (MediaPart("video_url", entry.video_url),) if entry.video_url else ()
        audio = (MediaPart("audio_url", entry.audio_url),) if entry.audio_url else ()
        return (*video, *audio)
    if entry.video_id and bench.media:
        base = f"{bench.media.rstrip('/')}/{entry.video_id}/{entry.video_id}"
        return (MediaPart("video_url", f"{base}_video.mp4"), MediaPart("audio_url", f"{base}_audio.wav"))
    raise UsageError(
        f"{where}: found no video_url or audio_url, and no media: in bench {bench.name}; allowed: one of them"
    )
