"""Known trouble in a server's log, as caveats to print beside the affected cells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from harness.errors import RecordError
from harness.records import Caveat

_MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Trouble:
    """One kind of trouble and the lines that show it."""

    kind: str
    pattern: re.Pattern[str]


def _lines(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


# Servers print their whole configuration on one line (`enforce_eager=False, ..., disable_fallback=False`), so words of
# one trouble must stand in one clause, and not as a part of a setting's name.
_FALLBACK = r"\bfall(?:ing|s|en)?[ -]?back\b"
_OOM = r"out of memory|\boom\b|OutOfMemoryError"
TROUBLES = (
    Trouble("graph-capture-oom", _lines(rf"^(?=.*graph)(?=.*captur)(?=.*(?:{_OOM}))")),
    Trouble("out-of-memory", _lines(r"\b(?:CUDA|HIP|NPU) out of memory|OutOfMemoryError|can(?:no|')t allocate memory")),
    Trouble("eager-fallback", _lines(rf"{_FALLBACK}[^,;]{{0,60}}\beager\b|\beager\b[^,;]{{0,60}}{_FALLBACK}")),
    Trouble("preemption", _lines(r"\bpreempted\b|\bpreempting\b|\bpreemptions?:? +[1-9]")),
    Trouble("plugin-failed", _lines(r"\bplugin\b[^,;]{0,80}\bfailed\b|\bfailed to load\b[^,;]{0,40}\bplugin\b")),
    Trouble("engine-died", _lines(r"EngineDeadError|\bengine core\b[^,;]{0,60}\b(?:died|failed)\b")),
    Trouble("crash", _lines(r"Fatal Python error|Segmentation fault")),
    # What a server says of NaNs at its ease is how it would treat them.
    Trouble("nan", _lines(r"^(?!.*\b(?:INFO|DEBUG)\b).*(?<!\w)NaNs?(?!\w)")),
)  # fmt: skip
"""What is looked for; a line is of the first kind that matches."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
# A frame is indented behind whatever the logger puts before the line; the line that ends the traceback is not.
_RAISED = re.compile(r"(?:^|[\])] )(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Timeout|Failure)\b.*)$")
_TRACEBACK_LINES = 200


def scan_log(path: Path, size: int | None = None) -> tuple[Caveat, ...]:
    """Read a log for known trouble: one caveat per kind, with its first line and how many lines show it.

    Tracebacks are one kind per type of exception (`traceback ValueError`), so that two causes stay two caveats.

    Parameters:
        size: bytes of the log to read; None for all. What a server logs while it is being stopped is no trouble.

    Raises:
        RecordError: the log cannot be read.
    """
    found: dict[str, Caveat] = {}

    def note(kind: str, message: str, line: int) -> None:
        known = found.get(kind)
        if known is None:
            found[kind] = Caveat(kind=kind, message=message.strip()[:_MESSAGE_CHARS], line=line)
        else:
            found[kind] = known.model_copy(update={"count": known.count + 1})

    opened: int | None = None
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_until(file, size), 1):
                # A colour's code ends in a letter, which would be one of the word that it colours.
                text = _COLOUR.sub("", line.decode(errors="replace")).rstrip()
                if _TRACEBACK.search(text):
                    if opened is not None:
                        note("traceback", "Traceback (most recent call last)", opened)
                    opened = number
                    continue
                raised = _RAISED.search(text) if opened is not None else None
                if opened is not None and raised is not None:
                    error = raised.group("error")
                    note(f"traceback {re.split(r'[:( ]', error, maxsplit=1)[0]}", error, opened)
                    opened = None
                elif opened is not None and number - opened > _TRACEBACK_LINES:
                    note("traceback", "Traceback (most recent call last)", opened)
                    opened = None
                kind = next((trouble.kind for trouble in TROUBLES if trouble.pattern.search(text)), None)
                if kind is not None:
                    note(kind, text, number)
    except OSError as error:
        raise RecordError(f"{path}: the server's log cannot be read: {error.strerror}") from error
    if opened is not None:
        note("traceback", "Traceback (most recent call last)", opened)
    return tuple(sorted(found.values(), key=lambda caveat: caveat.line or 0))


def _until(file: BinaryIO, size: int | None) -> Iterator[bytes]:
    for line in file:
        if size is not None and file.tell() > size:
            return
        yield line
