"""Events are read on their own boundaries, wherever the transport cut the bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.sse import Event, parse_events

LINE = st.text(alphabet=st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=12).map(
    str.encode
)
EVENT = st.tuples(st.lists(LINE, min_size=1, max_size=3), st.lists(LINE, max_size=2))


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[tuple[bytes, int]]]:
    """A stream, and per event its data and the offset just after its last byte: known from writing it."""
    newline = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    stream = b""
    expected = []
    for lines, comments in draw(st.lists(EVENT, max_size=5)):
        for comment in comments:
            stream += b":" + comment + newline
        for line in lines:
            stream += b"data: " + line + newline
        stream += newline
        expected.append((b"\n".join(lines), len(stream)))
    return stream, expected


@given(streams(), st.data())
def test_any_chunking_of_a_stream_gives_the_same_events_at_the_chunk_of_their_last_byte(
    written: tuple[bytes, list[tuple[bytes, int]]], data: st.DataObject
) -> None:
    """Cutting the bytes anywhere moves no event; its time is that of the chunk holding its last byte."""
    stream, expected = written
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    bounds = [0, *cuts, len(stream)]
    arrivals = [(100 + number, stream[start:end]) for number, (start, end) in enumerate(itertools.pairwise(bounds))]
    holder = {
        offset: 100 + number
        for number, (start, end) in enumerate(itertools.pairwise(bounds))
        for offset in range(start, end)
    }
    assert [(event.data, event.at_ns) for event in parse_events(arrivals)] == [
        (payload, holder[end - 1]) for payload, end in expected
    ]


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"data:x\n\n", [b"x"]),
        (b"data:  x\n\n", [b" x"]),
        (b"data\n\n", [b""]),
        (b"\xef\xbb\xbfdata: x\n\n", [b"x"]),
        (b": ping\n\ndata: x\n\n", [b"x"]),
        (b"id: 7\nretry: 10\ndata: x\n\n", [b"x"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\r\n\r\ndata: b\n\n", [b"a", b"b"]),
        (b"\n\n\ndata: x\n\n\n", [b"x"]),
        (b"data: x\n", []),
        (b"", []),
        ("data: \u2028\x85\n\n".encode(), ["\u2028\x85".encode()]),
    ],
    ids=[
        "no space",
        "one space only is dropped",
        "field without colon",
        "byte order mark",
        "comment",
        "other fields",
        "several data lines",
        "mixed line ends",
        "blank lines",
        "unfinished event",
        "nothing",
        "unicode line separators are text",
    ],
)
def test_grammar_follows_the_standard(stream: bytes, data: list[bytes]) -> None:
    """Each form gives the events the WHATWG standard gives."""
    assert [event.data for event in parse_events([(1, stream)])] == data


def test_event_field_names_the_kind_of_its_own_event_only() -> None:
    """`event: error` marks one event; the next is a plain message again."""
    assert parse_events([(1, b"event: error\ndata: x\n\ndata: y\n\n")]) == [
        Event(1, b"x", "error"),
        Event(1, b"y", "message"),
    ]
