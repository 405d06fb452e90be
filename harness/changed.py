"""What differs between two pieces of JSON data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Changed:
    """A dotted key, such as `arms.cache_on.args.block-size` or `benches[2].seed`, and both values as JSON text."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key}: was {self.before}, is {self.after}"


def changed(before: object, after: object, at: str = "") -> Iterator[Changed]:
    """The innermost keys whose values differ; of a list whose length changed, the whole list."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from changed(before.get(key), after.get(key), f"{at}.{key}" if at else str(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from changed(old, new, f"{at}[{index}]")
    elif before != after:
        yield Changed(at, json.dumps(before), json.dumps(after))
