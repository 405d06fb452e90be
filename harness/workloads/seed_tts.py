"""Dataset `seed_tts`: sentences to speak and recorded voices to speak them in, from a copy of seed-tts-eval.

The set is not part of this project. Its layout is `{path}/{locale}/meta.lst`, one utterance a line as
`id|transcript of the recording|recording|text to speak`, recordings relative to the folder of `meta.lst`. Line by line
the requests are those of `vllm bench serve --omni --disable-shuffle --no-oversample` (vLLM-Omni 0.30) with
`--dataset-name seed-tts` (task `clone`) or `seed-tts-text` (task `speak`) on a file of the same lines. Task
`transcribe` turns a set around: its recordings are the input and their transcripts what should come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from harness.errors import UsageError
from harness.scenario import Bench
from harness.workloads.prompt import Prompt, Recording
from harness.workloads.tokenizer import Tokenizer

WHERE = "https://github.com/BytedanceSpeech/seed-tts-eval"

SYSTEM = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech.\nFor this request you act as a text-to-speech engine with "
    "zero-shot voice cloning: the API provides reference audio and its transcript (ref_audio, ref_text) and task_type "
    "Base. The user message is the exact text you must speak. Synthesize natural speech in the same language as that "
    "user text, matching the timbre, prosody, and speaking style of the reference audio while reading the new content "
    "clearly."
)
"""The system message of vLLM-Omni's own bench, to the letter: it is the prefix that all these prompts share."""

TRANSCRIBE = "Write down what is said in the recording."

_LANGUAGES = {"en": "English", "zh": "Chinese"}


@dataclass(frozen=True, slots=True)
class Utterance:
    """One line of the set."""

    name: str
    recording: Recording
    text: str


def seed_tts_prompts(bench: Bench, tokenizer: Tokenizer) -> tuple[Prompt, ...]:
    """The prompts of a bench of dataset `seed_tts`, in the order of the file.

    In a chat, `prompt_len` counts the system message and the text, joined by a newline, as vLLM-Omni counts it. The
    speech endpoint takes no system message.

    Raises:
        UsageError: the set is not there, has too few lines, or has one that cannot be read.
    """
    utterances = read_utterances(bench)
    if bench.task == "transcribe":
        asked = len(tokenizer.encode(TRANSCRIBE))
        return tuple(
            Prompt(
                TRANSCRIBE,
                asked,
                bench.output,
                heard=said.recording,
                id=said.name,
                expected=said.recording.transcript,
            )
            for said in utterances
        )
    system = SYSTEM if bench.endpoint == "chat" else None
    sent = [said.text if system is None else f"{system}\n{said.text}" for said in utterances]
    return tuple(
        Prompt(
            said.text,
            len(ids),
            bench.output,
            system,
            voice=said.recording if bench.task == "clone" else None,
            id=said.name,
            expected=said.text,
        )
        for said, ids in zip(utterances, tokenizer.encode_all(sent), strict=True)
    )


def read_utterances(bench: Bench) -> tuple[Utterance, ...]:
    """The lines `first` to `first + prompts - 1` of the bench's set.

    Raises:
        UsageError: see `seed_tts_prompts`.
    """
    if bench.first is None:
        raise ValueError(f"bench {bench.name!r} is not of dataset seed_tts")
    meta = meta_of(bench)
    start = bench.first - 1
    try:
        with meta.open(encoding="utf-8") as file:
            lines = list(islice(file, start, start + bench.prompts))
    except (OSError, ValueError) as error:
        raise UsageError(f"{meta}: cannot be read: {error}") from error
    if len(lines) < bench.prompts:
        raise UsageError(
            f"{meta}: found {start + len(lines) if lines else 'fewer than ' + str(bench.first)} lines; allowed: "
            f"{start + bench.prompts} or more (bench {bench.name} takes {bench.prompts} from line {bench.first} on)"
        )
    return tuple(_utterance(bench, meta, number, line) for number, line in enumerate(lines, bench.first))


def meta_of(bench: Bench) -> Path:
    """The file that lists the set's utterances."""
    return Path(bench.path or "") / (bench.locale or "") / "meta.lst"


def _utterance(bench: Bench, meta: Path, number: int, line: str) -> Utterance:
    parts = [part.strip() for part in line.split("|")]
    if len(parts) < 4 or not all(parts[:4]):
        raise UsageError(f"{meta}:{number}: found {line.strip()[:80]!r}; allowed: id|transcript|recording|text")
    name, transcript, recording, text = parts[:4]
    path = meta.parent / recording
    # A bench that sends no recording needs none.
    if bench.task != "speak" and not path.is_file():
        raise UsageError(f"{meta}:{number}: found no recording {path}; allowed: a whole copy of the set, from {WHERE}")
    return Utterance(name, Recording(path, transcript, _LANGUAGES[bench.locale or ""]), text)
