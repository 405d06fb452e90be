"""From a validation error to the one message a person reads: where, found, allowed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness._scenario_yaml import Loc
from harness.errors import ScenarioError

Raise = Callable[[Loc, str, str], ScenarioError]
"""Makes the error for a place, what was found there and what is allowed."""

_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}


def first_error(
    error: ValidationError, model: type[BaseModel], data: Mapping[str, Any], at: Raise, order: Callable[[Loc], int]
) -> ScenarioError:
    """The error to show: an unknown key first (a typo also makes a key missing), else the earliest in the file.

    Parameters:
        error: what validating `data` as `model` raised.
        at: makes the error for a place in `data`.
        order: rank of a place, for instance its line.
    """
    details = [(_place(detail, data), detail) for detail in error.errors(include_url=False)]
    place, detail = min(details, key=lambda item: (item[1]["type"] != "extra_forbidden", order(item[0])))
    if detail["type"] == "extra_forbidden":
        keys = _allowed_keys(model, place[:-1])
        near = difflib.get_close_matches(str(place[-1]), keys, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        return at(place, f"an unknown key{hint}", ", ".join(keys))
    if detail["type"] == "missing":
        return at(place, "nothing", "a value: the key is required")
    *others, last = dict.fromkeys(_allowed(other) for other_place, other in details if other_place == place)
    return at(place, _found(detail), f"{', '.join(others)} or {last}" if others else last)


def describe(value: object) -> str:
    """A value as the person wrote it, with its kind."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return f"{str(value).lower()} (true or false)"
    if isinstance(value, int):
        return f"{value} (a whole number)"
    if isinstance(value, float):
        return f"{value} (a number)"
    if isinstance(value, str):
        return f"{value if len(value) <= 60 else value[:57] + '...'!r} (text)"
    return "a mapping" if isinstance(value, Mapping) else "a list"


def _place(detail: ErrorDetails, data: object) -> Loc:
    """The part of the location that exists in the file: what follows names branches of a union."""
    place: list[str | int] = []
    for part in (*detail["loc"], *detail.get("ctx", {}).get("where", ())):
        last = detail["type"] in ("missing", "extra_forbidden")
        if isinstance(data, Mapping) and isinstance(part, str) and (part in data or last):
            data = data.get(part)
        elif isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
            data = data[part]
        elif detail["type"] == "refused" and isinstance(part, str):
            data = None
        else:
            break
        place.append(part)
    return tuple(place)


def _found(detail: ErrorDetails) -> str:
    if detail["type"] == "refused":
        return str(detail["ctx"]["found"])
    if detail["type"] == "too_short":
        return "an empty list"
    return describe(detail["input"])


def _allowed(detail: ErrorDetails) -> str:
    kind, ctx = detail["type"], detail.get("ctx", {})
    if kind == "refused":
        return str(ctx["allowed"])
    if kind in _KINDS:
        return _KINDS[kind]
    if kind == "literal_error":
        return str(ctx["expected"])
    if kind == "greater_than_equal":
        return f"{ctx['ge']} or more"
    if kind == "greater_than":
        return f"more than {ctx['gt']}"
    if kind == "less_than_equal":
        return f"at most {ctx['le']}"
    if kind == "less_than":
        return f"less than {ctx['lt']}"
    if kind == "string_pattern_mismatch":
        return "letters, digits and . _ + - after a first letter or digit"
    if kind == "string_too_long":
        return f"at most {ctx['max_length']} characters"
    if kind == "too_short":
        return f"a list of at least {ctx['min_length']}"
    return detail["msg"]


def _allowed_keys(model: type[BaseModel], place: Loc) -> list[str]:
    """The keys of the model at `place` below `model`."""
    if not place:
        return [field.alias or name for name, field in model.model_fields.items()]
    head, *rest = place
    field = next(field for name, field in model.model_fields.items() if (field.alias or name) == head)
    below = _find_model(field.annotation)
    if below is None:
        return []
    # Between two models lies at most one mapping key or list position.
    return _allowed_keys(below, tuple(rest if below is field.annotation else rest[1:]))


def _find_model(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `Server` or `dict[str, Arm]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _find_model(part))), None)
