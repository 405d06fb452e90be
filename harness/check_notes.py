"""Notes of a check: what several arms or benches have in common is said once."""

from __future__ import annotations

from collections.abc import Mapping

_GAP = "\0"


def grouped(label: str, told: Mapping[str, str | None]) -> list[str]:
    """One note for each text, however many it is told of.

    Parameters:
        label: what stands before the name in the texts, such as `arms.`.
        told: text by name, None for nothing to say.
    """
    names: dict[str, list[str]] = {}
    for name, text in told.items():
        if text is not None:
            names.setdefault(text.replace(f"{label}{name}", f"{label}{_GAP}", 1), []).append(name)
    return [text.replace(_GAP, ", ".join(about)) for text, about in names.items()]
