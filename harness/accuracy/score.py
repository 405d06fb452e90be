"""Scoring a run's answers, after its servers have stopped: from texts and WAVs to scores by item, to a summary.

Whatever did not come is scored as wrong and counted: a failed request, an answer without audio, silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.accuracy.choice import ChoiceItem
from harness.accuracy.choice import score as score_choice
from harness.accuracy.letter import LETTERS
from harness.accuracy.models import Ear, Instead, Models, Voices
from harness.accuracy.normalise import Normaliser, normaliser
from harness.accuracy.records import CheckSummary, Item, ItemScore, Language
from harness.accuracy.speech_file import pcm_sha256
from harness.accuracy.summary import TrialScores, summary_of
from harness.accuracy.wer import item_wer
from harness.errors import RecordError
from harness.recorded import scenario_of
from harness.records import RequestRecord, TrialRecord
from harness.scenario import Check
from harness.store import RunStore

Tell = Callable[[str], None]
"""Told what is being scored."""


def score_run(store: RunStore, instead: Instead = Instead(), tell: Tell = lambda _: None) -> tuple[CheckSummary, ...]:  # noqa: B008 - frozen
    """Score every check of a run and write what comes of it; what was scored before is replaced.

    Raises:
        MissingDependency, UsageError: a model or a package is not here; nothing was written.
        RecordError: a record of the run is missing or unreadable.
    """
    scenario = scenario_of(store.manifest())
    checks = scenario.checks
    arms = (scenario.baseline, *(arm for arm in scenario.arms if arm != scenario.baseline))
    models = Models(instead)
    # All are opened first: a missing model costs a message, not the scores before it.
    tools = {check.name: _tools(store, check, models) for check in checks}
    summaries = []
    for check in checks:
        own = tools[check.name]
        answered = tuple(trial for trial in store.trials() if check.name in trial.benches)
        scored = [_score_trial(store, check, trial, own, tell) for trial in answered]
        summary = summary_of(check, own.items, scored, own.labels, arms, tuple(_problems(store, check, answered)))
        for one in scored:
            store.write_lines(f"{check.name}/{one.slug}.jsonl", one.scores)
        store.write_summary(check.name, summary)
        summaries.append(summary)
    return tuple(summaries)


def _problems(store: RunStore, check: Check, answered: Sequence[TrialRecord]) -> Iterable[str]:
    """Why the answers of a run prove nothing: some were never given, or the cache was not what its arm claims."""
    slugs = {trial.slug for trial in answered}
    yield from (f"{planned.slug}: never asked" for planned in store.manifest().plan if planned.slug not in slugs)
    for trial in answered:
        yield from (f"{trial.slug}: {reason}" for reason in store.cell(trial, check.name).cell.invalid)


@dataclass(frozen=True, slots=True)
class _Tools:
    """What one check is scored with."""

    items: tuple[Item, ...]
    ears: Mapping[Language, Ear]
    normalisers: Mapping[Language, Normaliser]
    voices: Voices | None
    labels: Mapping[str, str | None]


def _tools(store: RunStore, check: Check, models: Models) -> _Tools:
    items = store.read_lines(f"{check.name}.items.jsonl", Item)
    if [item.index for item in items] != list(range(check.prompts)):
        raise RecordError(
            f"{store.accuracy_path(check.name)}.items.jsonl: found {len(items)} items; allowed: all "
            f"{check.prompts}, in order"
        )
    seen = Counter(item.id for item in items)
    for item in items:
        if problem := _problem_of(item, check, seen[item.id]):
            raise RecordError(f"{store.accuracy_path(check.name)}.items.jsonl:{item.index + 1}: {problem}")
    languages = dict.fromkeys(item.language for item in items)
    wer = None if check.wer is None else models.instead.wer(check.wer)
    sim = None if check.sim is None else models.instead.sim(check.sim)
    ears: dict[Language, Ear] = {} if wer is None else {language: models.ear(wer, language) for language in languages}
    voices = None if sim is None else models.voices(sim)
    return _Tools(
        items=items,
        ears=ears,
        normalisers={} if wer is None else {language: normaliser(wer.normaliser, language) for language in languages},
        voices=voices,
        labels={
            "recogniser": "; ".join(str(ear.recogniser.label) for ear in ears.values()) or None,
            "normaliser": None if wer is None else wer.normaliser,
            "encoder": None if voices is None else str(voices.similarity.encoder.label),
        },
    )


def _problem_of(item: Item, check: Check, times: int) -> str | None:
    if times > 1:
        return f"found the id {item.id!r} more than once; allowed: one item each"
    letters = LETTERS[: len(item.options) or None]
    if check.measure == "choice" and (item.gold is None or item.gold not in letters):
        return f"gold: found {item.gold!r} for {len(item.options)} options; allowed: the letter of one"
    if check.sim is not None and item.reference is None:
        return "reference: found none; allowed: the WAV of the voice to compare with"
    return None


def _score_trial(store: RunStore, check: Check, trial: TrialRecord, tools: _Tools, tell: Tell) -> TrialScores:
    requests = {request.index: request for request in store.requests(trial, check.name)}
    if absent := [item.id for item in tools.items if item.index not in requests]:
        raise RecordError(f"trial {trial.slug}: found no record of {check.name} {', '.join(absent[:5])}")
    answers = [_answer(store, check, trial, item, requests[item.index]) for item in tools.items]
    scores: list[ItemScore] = []
    for answer in answers:
        tell(f"scoring {check.name} of {trial.slug}: {len(scores)} of {len(answers)}")
        scores.append(_score(store, check, answer, tools))
    return TrialScores(
        trial.slug, trial.round, trial.arm, tuple(scores), tuple(requests[item.index] for item in tools.items)
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    item: Item
    request: RequestRecord
    wav: Path | None

    @property
    def arrived(self) -> bool:
        return self.request.status == "ok"


def _answer(store: RunStore, check: Check, trial: TrialRecord, item: Item, request: RequestRecord) -> _Answer:
    path = store.audio_path(trial, check.name, item.index)
    if request.status != "ok" or request.audio_sha256 is None:
        return _Answer(item, request, None)
    if (found := pcm_sha256(path)) != request.audio_sha256:
        raise RecordError(
            f"{path}: found {'no speech that can be read' if found is None else f'speech of digest {found[:12]}'}; "
            f"allowed: what was received, {request.audio_sha256[:12]}"
        )
    return _Answer(item, request, path)


def _score(store: RunStore, check: Check, answer: _Answer, tools: _Tools) -> ItemScore:
    item, request = answer.item, answer.request
    score = ItemScore(
        id=item.id,
        index=item.index,
        status=request.status,
        error=request.error,
        text=request.text,
        audio=None if answer.wav is None else str(answer.wav.relative_to(store.path)),
        audio_seconds=request.audio_seconds,
        flags=tuple(_flags(check, answer)),
    )
    if tools.ears:
        score = _with_wer(score, answer, tools)
    if tools.voices is not None and item.reference is not None:
        similarity = tools.voices.score(store.path / item.reference, answer.wav, request.audio_sha256)
        score = score.model_copy(update={"sim": similarity})
    if check.measure == "choice":
        score = _with_letter(score, answer)
    return score


def _flags(check: Check, answer: _Answer) -> list[str]:
    if not answer.arrived:
        return ["failed request"]
    return ["no audio"] if "audio" in check.modalities and answer.wav is None else []


def _with_wer(score: ItemScore, answer: _Answer, tools: _Tools) -> ItemScore:
    item, request = answer.item, answer.request
    heard = None
    if answer.wav is not None:
        heard = tools.ears[item.language].hear(answer.wav, request.audio_sha256)
    # Where nothing particular was to be said, the audio should say what the server says it says.
    said = item.expected if item.expected is not None else request.audio_transcript or request.text
    one = item_wer(said, heard, tools.normalisers[item.language])
    return score.model_copy(
        update={
            "heard": heard,
            "reference": one.reference,
            "hypothesis": one.hypothesis,
            "substitutions": one.substitutions,
            "deletions": one.deletions,
            "insertions": one.insertions,
            "edits": one.edits,
            "words": one.words,
            "wer": one.wer,
            "flags": (*score.flags, *(["empty transcript"] if one.hypothesis == "" else [])),
        }
    )


def _with_letter(score: ItemScore, answer: _Answer) -> ItemScore:
    item = answer.item
    assert item.gold is not None
    letters = LETTERS[: len(item.options)] if item.options else LETTERS
    one: ChoiceItem = score_choice(item.id, item.gold, answer.request.text if answer.arrived else None, letters)
    return score.model_copy(
        update={
            "letter": one.letter,
            "how": one.extraction.how.value,
            "gold": one.gold,
            "correct": one.correct,
            "flags": (*score.flags, *(["no letter"] if answer.arrived and one.letter is None else [])),
        }
    )
