"""The items of a check: what its prompts ask for, written down when a run starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.accuracy.normalise import language_of, languages_of, strange_letters
from harness.accuracy.records import Item
from harness.errors import UsageError
from harness.loads import Load
from harness.scenario import Check
from harness.workloads import Prompt


def items_of_loads(loads: Iterable[Load]) -> dict[str, tuple[tuple[Item, ...], dict[str, Path]]]:
    """What `items_of` finds, by the name of each check among the loads; raises as it does."""
    return {load.bench.name: items_of(load.bench, load.prompts) for load in loads if isinstance(load.bench, Check)}


def items_of(check: Check, prompts: Sequence[Prompt]) -> tuple[tuple[Item, ...], dict[str, Path]]:
    """The items of a check's prompts, and the recordings they refer to by the path each will have in the run.

    Raises:
        UsageError: a prompt without what the check needs to score its answer.
    """
    names: dict[Path, str] = {}
    items = []
    for index, prompt in enumerate(prompts):
        where = f"check {check.name}: item {prompt.id or index}"
        if check.measure == "speech" and check.wer is not None and not prompt.expected:
            raise UsageError(f"{where}: found nothing expected; allowed: `expected`, the words to be said")
        if check.measure == "choice" and prompt.gold is None:
            raise UsageError(f"{where}: found no gold; allowed: `gold`, the letter of the right option")
        language = language_of(prompt.expected or prompt.text)
        if check.wer is not None and language not in (allowed := languages_of(check.wer.normaliser)):
            raise UsageError(
                f"{where}: found language {language!r}; allowed: what the normaliser {check.wer.normaliser} has rules "
                f"for, {', '.join(allowed)} (seed-tts has them for {', '.join(languages_of('seed-tts'))})"
            )
        if check.wer is not None and (strange := strange_letters(prompt.expected or prompt.text)):
            raise UsageError(
                f"{where}: found letters like {strange[:3]!r}; allowed: English or Chinese, whose words can be compared"
            )
        reference = None
        if check.sim is not None and prompt.voice is not None:
            source = prompt.voice.path
            if source not in names:
                names[source] = f"accuracy/{check.name}.references/{len(names):03d}-{source.name}"
            reference = names[source]
        items.append(
            Item(
                id=prompt.id or f"{index:05d}",
                index=index,
                language=language,
                expected=prompt.expected,
                reference=reference,
                options=prompt.options,
                gold=prompt.gold,
            )
        )
    _refuse_twice(check, items)
    return tuple(items), {name: source for source, name in names.items()}


def _refuse_twice(check: Check, items: Sequence[Item]) -> None:
    seen: dict[str, int] = {}
    for item in items:
        if (first := seen.setdefault(item.id, item.index)) != item.index:
            raise UsageError(
                f"check {check.name}: found the id {item.id!r} at items {first} and {item.index}; "
                "allowed: an id an item, since arms are compared by it"
            )
