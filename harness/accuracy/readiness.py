"""What this machine lacks to score a scenario's answers, looked up without opening any of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.accuracy.models import expanded
from harness.accuracy.packages import INSTALL
from harness.errors import UsageError
from harness.scenario import Check


def cannot_score(checks: Iterable[Check]) -> tuple[str, ...]:
    """One sentence for each thing that is missing. What is broken shows only when it is opened."""
    found: dict[str, list[str]] = {}
    for check in checks:
        for lack in _lacks(check):
            found.setdefault(lack, []).append(check.name)
    return tuple(
        f"accuracy {', '.join(names)}: {lack}; without it the answers are kept, and `bench score` scores them later"
        for lack, names in found.items()
    )


def _lacks(check: Check) -> Iterator[str]:
    if check.wer is not None:
        needed = ["jiwer"]
        if "whisper" in (check.wer.recogniser, check.wer.normaliser.partition("-")[0]):
            needed.append("whisper")
        for package in needed:
            if importlib.util.find_spec(package) is None:
                yield f"found no {package} here: {INSTALL[package]}"
        yield from _model("wer.model", check.wer.model)
    if check.sim is not None:
        yield from _model("sim.model", check.sim.model)


def _model(key: str, model: str | None) -> Iterator[str]:
    if model is None:
        return
    try:
        path = expanded(model, key)
    except UsageError as error:
        yield str(error)
        return
    # Without a slash it is a name, which only the package can look up.
    if "/" in path and not Path(path).expanduser().exists():
        yield f"{key}: found no {path}"
