"""The sets: files that benches take their prompts from, and that a machine may lack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.scenario import Bench
from harness.workloads import daily_omni, seed_tts


def missing_set(bench: Bench) -> Path | None:
    """The file of a set that a bench needs and this machine lacks; None where it is here or none is needed."""
    path = set_of(bench)
    return None if path is None or path.is_file() else path.resolve()


def set_of(bench: Bench) -> Path | None:
    """The file of the set that a bench takes its prompts from; None where they are made up."""
    if bench.dataset == "seed_tts":
        return seed_tts.meta_of(bench)
    return None if bench.path is None else Path(bench.path)


def how_to_mend(path: Path, benches: Sequence[Bench]) -> str:
    """What a person is told of a set that is missing."""
    names = ", ".join(bench.name for bench in benches)
    wanted = {
        "seed_tts": f"a copy of the Seed-TTS set, which is at {seed_tts.WHERE}",
        "daily_omni": f"the questions of Daily-Omni, which are at {daily_omni.WHERE}",
    }.get(benches[0].dataset, "a file of conversations, a JSON object a line")
    return f"bench {names}: found no {path}; allowed: {wanted}"


def require_set(bench: Bench) -> None:
    """Raises UsageError where this machine lacks the set that a bench needs."""
    if (missing := missing_set(bench)) is not None:
        raise UsageError(how_to_mend(missing, [bench]))
