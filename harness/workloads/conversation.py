"""Dataset `conversation`: whole chats out of a file of JSON lines, one request a line, sent as they are written.

A line holds `id`, `messages` (turns of `system`, `user` and `assistant`, the last of them the user's) and, where the
answer is scored, `expected` (the words that should be said) or `options` and `gold` (the letter of the right one).
The content of a turn is a text, or parts in OpenAI's form: `text`, and `audio_url`, `image_url` or `video_url` whose
address is passed on. An address without a scheme is a file beside the set, which travels as a data URL.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import UsageError
from harness.scenario import Bench
from harness.workloads.prompt import MediaPart, Part, Prompt, TextPart, Turn
from harness.workloads.tokenizer import Tokenizer

LETTERS = "ABCD"
"""Of the options, in their order."""


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Address(_Form):
    url: Annotated[str, Field(min_length=1)]


class _Text(_Form):
    type: Literal["text"]
    text: str


class _Audio(_Form):
    type: Literal["audio_url"]
    audio_url: _Address


class _Image(_Form):
    type: Literal["image_url"]
    image_url: _Address


class _Video(_Form):
    type: Literal["video_url"]
    video_url: _Address


class _Message(_Form):
    role: Literal["system", "user", "assistant"]
    content: str | list[Annotated[_Text | _Audio | _Image | _Video, Field(discriminator="type")]]


class _Line(_Form):
    id: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[_Message], Field(min_length=1)]
    expected: Annotated[str, Field(min_length=1)] | None = None
    options: list[str] = []
    gold: str | None = None


def conversation_prompts(bench: Bench, tokenizer: Tokenizer) -> tuple[Prompt, ...]:
    """The first `prompts` lines of the bench's file, in its order; `prompt_len` counts the text of all turns.

    Raises:
        UsageError: the file is not there, has too few lines, or a line that is no conversation.
    """
    path = Path(bench.path or "")
    try:
        with path.open(encoding="utf-8") as file:
            lines = list(islice(file, bench.prompts))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}; allowed: a file of JSON lines") from error
    if len(lines) < bench.prompts:
        raise UsageError(f"{path}: found {len(lines)} lines; allowed: {bench.prompts} or more (bench {bench.name})")
    prompts = [_prompt(path, number, line, bench, tokenizer) for number, line in enumerate(lines, 1)]
    seen: dict[str, int] = {}
    for number, prompt in enumerate(prompts, 1):
        assert prompt.id is not None
        if (first := seen.setdefault(prompt.id, number)) != number:
            raise UsageError(f"{path}:{number}: id: found {prompt.id!r} as on line {first}; allowed: an id a line")
    return tuple(prompts)


def _prompt(path: Path, number: int, line: str, bench: Bench, tokenizer: Tokenizer) -> Prompt:
    where = f"{path}:{number}"
    try:
        item = _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the line"
        raise UsageError(f"{where}: {key}: {first['msg']}; allowed: one conversation as JSON") from None
    if item.messages[-1].role != "user":
        raise UsageError(f"{where}: messages: found {item.messages[-1].role} last; allowed: user")
    if item.options and not 2 <= len(item.options) <= len(LETTERS):
        raise UsageError(f"{where}: options: found {len(item.options)}; allowed: 2 to {len(LETTERS)}")
    letters = LETTERS[: len(item.options)] if item.options else LETTERS
    if item.gold is not None and (len(item.gold) != 1 or item.gold not in letters):
        raise UsageError(f"{where}: gold: found {item.gold!r}; allowed: one of {', '.join(letters)}")
    turns = tuple(Turn(message.role, _parts(path, number, message)) for message in item.messages)
    return Prompt(
        text=turns[-1].text,
        prompt_len=len(tokenizer.encode("\n".join(turn.text for turn in turns))),
        output_len=bench.output,
        turns=turns,
        id=item.id,
        expected=item.expected,
        options=tuple(item.options),
        gold=item.gold,
    )


def _parts(path: Path, number: int, message: _Message) -> tuple[Part, ...]:
    if isinstance(message.content, str):
        return (TextPart(message.content),)
    return tuple(_part(path, number, part) for part in message.content)


def _part(path: Path, number: int, part: _Text | _Audio | _Image | _Video) -> Part:
    if isinstance(part, _Text):
        return TextPart(part.text)
    address = getattr(part, part.type).url
    if ":" in address:
        return MediaPart(part.type, address)
    file = path.parent / address
    if not file.is_file():
        raise UsageError(f"{path}:{number}: {part.type}: found no file {file}; allowed: a file or an address")
    return MediaPart(part.type, file)
