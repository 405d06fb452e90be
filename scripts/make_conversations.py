"""Make the project's own conversations: `python scripts/make_conversations.py [--check] [FOLDER]`.

Four small sets, JSON lines in the form of dataset `conversation`, each a way in which prompts share a prefix:

* `facts.jsonl`: many multiple-choice questions over one long list of facts in the system message;
* `repeat.jsonl`: one request, sent again and again;
* `history.jsonl`: scripted chats of several turns, of which each request holds one turn more than the one before it;
* `recording.jsonl`: questions about a recording in the first user turn, asked in later turns.

Everything in them was made up for this project. They say nothing about a model's knowledge: they are for comparing a
server with itself. `--check` compares with what is there and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "datasets" / "conversations"
RECORDINGS = ("slt", "rms", "awb")
SEED = 20
FACTS, REPEATS, CHATS, TURNS = 64, 12, 6, 4
LETTERS = "ABCD"

Line = dict[str, Any]

_PLACES = ("Arden", "Bexley", "Calder", "Dunmore", "Elwick", "Farleigh", "Garston", "Holme")
_THINGS = ("mill", "bridge", "school", "harbour", "market", "library", "station", "garden")
_COLOURS = ("red", "blue", "green", "white", "yellow", "grey", "brown", "black")
_ASKED = (
    "Which of them would you show a visitor first?",
    "Why that one, and not another?",
    "How would you get from there to the next?",
    "Say it again in one sentence.",
)


def facts() -> Iterator[Line]:
    """One question for each fact; the three wrong options are colours that other facts have."""
    draw = random.Random(SEED)
    places = [(place, thing) for place in _PLACES for thing in _THINGS][:FACTS]
    colours = [draw.choice(_COLOURS) for _ in places]
    known = "\n".join(
        f"{number}. The {thing} of {place} is {colour}."
        for number, ((place, thing), colour) in enumerate(zip(places, colours, strict=True), 1)
    )
    system = f"Answer from these facts alone, with the letter of the right option and nothing else.\n{known}"
    for number, ((place, thing), colour) in enumerate(zip(places, colours, strict=True), 1):
        options = [colour, *draw.sample([other for other in _COLOURS if other != colour], 3)]
        draw.shuffle(options)
        listed = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=True))
        yield {
            "id": f"fact-{number:02d}",
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": f"What colour is the {thing} of {place}?\n{listed}"},
            ],
            "options": options,
            "gold": LETTERS[options.index(colour)],
        }


def repeat() -> Iterator[Line]:
    """Equal but for the id."""
    told = " ".join(f"In {place} the {thing} stands by the river." for place in _PLACES for thing in _THINGS[:4])
    for number in range(1, REPEATS + 1):
        yield {
            "id": f"repeat-{number:02d}",
            "messages": [{"role": "user", "content": f"{told}\nTell me what all these places have in common."}],
        }


def history() -> Iterator[Line]:
    """The assistant's turns are scripted, so that every server is sent the same."""
    for chat in range(CHATS):
        place, thing = _PLACES[chat], _THINGS[chat]
        opening = " ".join(f"The {one} of {place} is {_COLOURS[(chat + at) % 8]}." for at, one in enumerate(_THINGS))
        turns = [{"role": "system", "content": f"You guide visitors through {place}. {opening}"}]
        for turn in range(TURNS):
            turns.append({"role": "user", "content": _ASKED[turn]})
            yield {"id": f"chat-{chat + 1}-turn-{turn + 1}", "messages": list(turns)}
            turns.append({"role": "assistant", "content": f"The {thing}, for it is close to everything else there."})


def recording() -> Iterator[Line]:
    """The recording stays in the first user turn while the chat goes on."""
    questions = ("What is said in this recording?", "How many people speak?", "Where could this have been said?")
    for voice in RECORDINGS:
        media = {"type": "audio_url", "audio_url": {"url": f"../speech_set/en/prompt-wavs/{voice}.wav"}}
        turns: list[Line] = []
        for number, question in enumerate(questions, 1):
            content = question if turns else [media, {"type": "text", "text": question}]
            turns.append({"role": "user", "content": content})
            yield {"id": f"{voice}-{number}", "messages": list(turns)}
            turns.append({"role": "assistant", "content": "Somebody speaks about everyday things."})


def files() -> Iterator[tuple[str, bytes]]:
    """Name and content of every file this script writes."""
    for make in (facts, repeat, history, recording):
        lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in make())
        yield f"{make.__name__}.jsonl", lines.encode()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the project's own conversations.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="compare with the files that are there, write nothing")
    given = parser.parse_args(argv)
    stale = []
    for name, content in files():
        path = given.folder / name
        if not given.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        elif not path.is_file() or path.read_bytes() != content:
            stale.append(name)
    if stale:
        print(f"{given.folder}: {', '.join(stale)} differ from what this script makes")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
