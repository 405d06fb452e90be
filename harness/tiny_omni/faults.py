"""Faults a test can ask the reference server for: `--fault NAME` or `--fault NAME=VALUE`, repeatable.

Generation requests (chat and plain completions that passed validation) are counted from 1 in order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from harness.errors import UsageError


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, on purpose; by default nothing.

    Parameters:
        slow_start: seconds for which /health answers 503 although everything is loaded.
        never_ready: /health answers 503 for ever.
        crash_after: the process ends with code 42, without any goodbye, at this generation request.
        fail_request: this generation request is answered with HTTP 500.
        stall_stream: this generation request's stream hangs after its first chunk of text or speech.
        missing_usage: no answer carries usage.
        wrong_model: served under this name instead of the one asked for.
        slow_step: share of its own time by which every engine step takes longer: 0.05 is 5 %, 10 eleven times as long.
        fail_step: the engine fails at this step, counted from 1; the server ends with code 1.
        drop_metric: the series of this name is absent from /metrics.
        stubborn: SIGTERM is ignored.
        rows_shift: the cache hands out the row of the next slot for every slot of a hit.
        rows_swap: the cache hands out the prefix of another request for a hit.
    """

    slow_start: float = 0.0
    never_ready: bool = False
    crash_after: int | None = None
    fail_request: int | None = None
    stall_stream: int | None = None
    missing_usage: bool = False
    wrong_model: str | None = None
    slow_step: float = 0.0
    fail_step: int | None = None
    drop_metric: str | None = None
    stubborn: bool = False
    rows_shift: bool = False
    rows_swap: bool = False


_VALUES: dict[str, tuple[str, Callable[[str], object]]] = {
    "float": ("a number of 0 to 1000000", lambda text: _within(float(text), 0.0, 1e6)),
    "int | None": ("a whole number of at least 1", lambda text: _within(int(text), 1, math.inf)),
    "str | None": ("a name", lambda text: text),
}


def _within(value: float, least: float, most: float) -> float:
    if not least <= value <= most:
        raise ValueError(value)
    return value


def parse_faults(given: Iterable[str]) -> Faults:
    """The faults named by `--fault` arguments; of one named twice the last counts.

    Raises:
        UsageError: an unknown name (the message lists the known ones), or a value that is absent, present or wrong
            against the name's form.
    """
    known = {field.name.replace("_", "-"): field for field in fields(Faults)}
    values: dict[str, object] = {}
    for argument in given:
        name, equals, text = argument.partition("=")
        field = known.get(name)
        if field is None:
            raise UsageError(f"--fault: found {argument!r}; allowed: {', '.join(fault_forms())}")
        if field.type == "bool":
            if equals:
                raise UsageError(f"--fault {name}: found value {text!r}; allowed: no value")
            values[field.name] = True
            continue
        allowed, convert = _VALUES[str(field.type)]
        try:
            if not text:
                raise ValueError(text)
            values[field.name] = convert(text)
        except ValueError:
            raise UsageError(f"--fault {name}: found {text!r}; allowed: {name}=VALUE with {allowed}") from None
    return Faults(**values)  # type: ignore[arg-type]  # each value was converted by its field's own type


def fault_forms() -> list[str]:
    """How each fault is asked for: `NAME`, or `NAME=VALUE`."""
    kinds = [(field.name.replace("_", "-"), str(field.type)) for field in fields(Faults)]
    return [name if kind == "bool" else f"{name}=VALUE" for name, kind in kinds]


class FailStep(Exception):
    """The engine's failure that the fault fail-step asks for."""


class StepFaults:
    """An engine's step hook: called with the step's index before each forward, on the engine's thread.

    Parameters:
        fail_step: of the fault fail-step.
    """

    def __init__(self, fail_step: int) -> None:
        self._fail_step = fail_step

    def __call__(self, step: int) -> None:
        if step + 1 == self._fail_step:
            raise FailStep(f"fault fail-step={self._fail_step}")


def step_faults(faults: Faults) -> StepFaults | None:
    """The step hook these faults need, if any."""
    return None if faults.fail_step is None else StepFaults(faults.fail_step)
