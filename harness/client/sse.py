"""Server-sent events, read from a finished raw stream.

The grammar is that of the WHATWG HTML standard, section "Interpreting an event stream". Events end where their blank
line ends, wherever the transport cut the bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from harness.client.stream import Arrival

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event that carries data.

    Parameters:
        at_ns: arrival of its last byte (the end of its blank line).
        data: its data lines, joined by `\\n`.
        kind: its `event` field.
    """

    at_ns: int
    data: bytes
    kind: str = "message"


def parse_events(arrivals: Iterable[Arrival]) -> list[Event]:
    """The events of a stream, in order. What follows the last blank line is incomplete and is dropped.

    Parameters:
        arrivals: (timestamp, bytes), as read; the timestamps do not fall.
    """
    stamps_pieces = [(at, piece) for at, piece in arrivals if piece]
    stream = b"".join(piece for _, piece in stamps_pieces)
    ends = list(accumulate(len(piece) for _, piece in stamps_pieces))
    events: list[Event] = []
    data: list[bytes] = []
    kind = "message"
    start = len(_BOM) if stream.startswith(_BOM) else 0
    # On bytes, splitlines knows exactly the standard's three line ends, and scans long audio lines fast.
    for whole_line in stream[start:].splitlines(keepends=True):
        start += len(whole_line)
        line = whole_line.rstrip(b"\r\n")
        if len(line) == len(whole_line):
            break
        if not line:
            if data:
                at_ns = stamps_pieces[bisect_left(ends, start)][0]
                events.append(Event(at_ns, b"\n".join(data), kind))
            data, kind = [], "message"
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace") or "message"
    return events
