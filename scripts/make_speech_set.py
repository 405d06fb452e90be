"""Make the project's own speech set: `python scripts/make_speech_set.py [--check] [FOLDER]`.

From `texts.yaml` in the folder it writes the set in the layout of Seed-TTS: `en/meta.lst`, one utterance a line as
`id|transcript of the recording|recording|text to speak`, and one recording a voice under `en/prompt-wavs/`. Voices take
turns, so that neighbours never share one.

The recordings are made with `flite` and are the same on every machine with the same version of it. `--check` compares
with what is there and writes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import yaml

from harness.errors import BenchError, UsageError
from harness.tiny_omni.speech import Voice, encode_wav, require_flite, synthesise

FOLDER = Path(__file__).resolve().parent.parent / "datasets" / "speech_set"
META = "en/meta.lst"


@dataclass(frozen=True, slots=True)
class Speaker:
    """One voice: what its recording says, and what it is to speak."""

    voice: Voice
    recorded: str
    targets: tuple[str, ...]


def read_texts(path: Path) -> tuple[Speaker, ...]:
    """The speakers of `texts.yaml`: voice -> `recorded`, a text, and `targets`, as many texts as the others have.

    Raises:
        UsageError: the file cannot be read or has another form.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    if not isinstance(document, Mapping) or not document:
        raise UsageError(f"{path}: found {document!r}; allowed: a mapping of voices")
    speakers = tuple(_speaker(path, voice, said) for voice, said in document.items())
    if len({len(speaker.targets) for speaker in speakers}) > 1:
        found = ", ".join(f"{speaker.voice} {len(speaker.targets)}" for speaker in speakers)
        raise UsageError(f"{path}: found targets {found}; allowed: as many for each voice")
    return speakers


def _speaker(path: Path, voice: object, said: object) -> Speaker:
    known = next((known for known in get_args(Voice) if known == voice), None)
    if known is None:
        raise UsageError(f"{path}: found voice {voice!r}; allowed: {', '.join(get_args(Voice))}")
    if not isinstance(said, Mapping) or set(said) != {"recorded", "targets"} or not isinstance(said["targets"], list):
        raise UsageError(f"{path}: {voice}: found {said!r}; allowed: recorded: a text, targets: a list of texts")
    for text in (said["recorded"], *said["targets"]):
        if not isinstance(text, str) or not text.strip() or "|" in text or "\n" in text:
            raise UsageError(f"{path}: {voice}: found {text!r}; allowed: one line of text without |")
    return Speaker(known, said["recorded"], tuple(said["targets"]))


def lines_of(speakers: Sequence[Speaker]) -> Iterator[str]:
    """The lines of `meta.lst`."""
    for number, targets in enumerate(zip(*(speaker.targets for speaker in speakers), strict=True), 1):
        for speaker, target in zip(speakers, targets, strict=True):
            yield f"{speaker.voice}-{number:02d}|{speaker.recorded}|prompt-wavs/{speaker.voice}.wav|{target}"


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file this script writes into `folder`.

    Raises:
        UsageError: `texts.yaml` is wrong, or `flite` is missing.
        SpeechFailed: `flite` failed.
    """
    speakers = read_texts(folder / "texts.yaml")
    yield META, "".join(f"{line}\n" for line in lines_of(speakers)).encode()
    require_flite()
    for speaker in speakers:
        yield f"en/prompt-wavs/{speaker.voice}.wav", encode_wav(synthesise(speaker.recorded, speaker.voice))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the project's own speech set.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="holds texts.yaml (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="compare with the files that are there, write nothing")
    given = parser.parse_args(argv)
    stale = []
    try:
        for name, content in files(given.folder):
            path = given.folder / name
            if given.check:
                if not path.is_file() or path.read_bytes() != content:
                    stale.append(name)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    except BenchError as error:
        print(f"make_speech_set: {error}", file=sys.stderr)
        return error.exit_code
    if stale:
        print(f"{given.folder}: {', '.join(stale)} differ from what this script makes", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
