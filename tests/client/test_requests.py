"""A request's record follows from its raw stream alone: instants are given, so every number is known in advance."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import numpy as np
import pytest
from client_bench import make_bench, make_prompts, make_raw
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import DONE, audio_event, event, role_event, text_event, usage_event, wav

from harness.client.audio import AudioError
from harness.client.requests import pcm_of, to_record
from harness.client.stream import RawRequest
from harness.records import RequestRecord

TEXT = make_bench()
SPEECH = make_bench(modalities=("text", "audio"))
TONE = np.arange(2400, dtype=np.int16)


def record(raw: RawRequest, **changes: Any) -> RequestRecord:
    settings = {"bench": TEXT, "prompt": make_prompts(1)[0], "first_sent_ns": 800_000_000}
    return to_record(raw, **(settings | changes))


def test_text_request() -> None:
    """TTFT at the first text, not at the role; ITL between texts; E2EL at the last; tokens from usage."""
    seen = record(
        make_raw(
            [
                (10, role_event()),
                (100, text_event("one ")),
                (130, text_event("two ")),
                (190, text_event("three", finish="length")),
                (250, usage_event(42, 3, cached=32)),
                (300, DONE),
            ]
        )
    )
    assert (seen.status, seen.error) == ("ok", None)
    assert (seen.sent, seen.queued) == (0.2, 0.1)
    assert (seen.ttft, seen.latency) == (0.1, 0.19)
    assert seen.itl == pytest.approx((0.03, 0.06))
    assert (seen.prompt_tokens, seen.output_tokens, seen.cached_tokens, seen.tokens_from) == (42, 3, 32, "usage")
    assert (seen.text, seen.finish_reason) == ("one two three", "length")
    assert (seen.ttfp, seen.audio_seconds, seen.audio_rtf, seen.audio_sha256) == (None, None, None, None)


def test_completions_request() -> None:
    """The completions form carries its text beside the delta's place."""
    pieces = [event({"choices": [{"index": 0, "text": word}]}) for word in ("a", "b", "c")]
    seen = record(make_raw([(5, pieces[0]), (6, pieces[1]), (8, pieces[2] + usage_event(5, 3) + DONE)]))
    assert (seen.status, seen.text, seen.ttft, seen.latency) == ("ok", "abc", 0.005, 0.008)


def test_speaking_request() -> None:
    """TTFP at the first samples (not at a bare header), RTF and E2EL at the last; text keeps its own times."""
    seen = record(
        make_raw(
            [
                (10, role_event(modality="text")),
                (20, text_event("hi ", modality="text")),
                (40, text_event("all ", modality="text")),
                (45, text_event("there", modality="text")),
                (60, audio_event(b"", role="assistant")),
                (70, audio_event(wav(TONE[:0]))),
                (100, audio_event(wav(TONE[:1000]), audio={"transcript": "hi all "})),
                (200, audio_event(wav(TONE[1000:]), audio={"transcript": "there"})),
                (400, audio_event(b"")),
                (500, usage_event(9, 3) + DONE),
            ]
        ),
        bench=SPEECH,
    )
    assert (seen.status, seen.error) == ("ok", None)
    assert (seen.ttft, seen.itl, seen.latency) == (0.02, pytest.approx((0.02, 0.005)), 0.2)
    assert (seen.ttfp, seen.audio_seconds, seen.audio_rtf) == (0.1, 0.1, pytest.approx(2.0))
    assert seen.audio_sha256 == hashlib.sha256(TONE.tobytes()).hexdigest()
    assert (seen.text, seen.audio_transcript) == ("hi all there", "hi all there")


def test_audio_in_openai_form() -> None:
    """`delta.audio.data` without a modality is audio too: bare 16-bit samples at 24 kHz."""
    spoken = {"data": base64.b64encode(TONE.tobytes()).decode(), "transcript": "beep"}
    stream = event({"choices": [{"delta": {"audio": spoken}}]}) + usage_event(5, 3) + DONE
    seen = record(make_raw([(50, stream)]), bench=make_bench(modalities=("audio",)))
    assert (seen.status, seen.ttfp, seen.audio_seconds, seen.audio_transcript) == ("ok", 0.05, 0.1, "beep")
    samples, rate = pcm_of(make_raw([(50, stream)]))
    np.testing.assert_array_equal(samples, TONE)
    assert (samples.dtype, rate) == (np.int16, 24_000)


def test_pcm_of_a_silent_request_is_an_error() -> None:
    """No samples: an error, never an empty array."""
    with pytest.raises(AudioError, match="no audio samples"):
        pcm_of(make_raw([(1, text_event("a") + DONE)]))


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "hm"},
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]},
    ],
    ids=["reasoning", "reasoning_content", "tool_calls"],
)
def test_reasoning_and_tool_calls_are_content_but_not_text(delta: dict[str, Any]) -> None:
    """TTFT starts at them; the text is the answer's alone."""
    first = event({"choices": [{"delta": delta}]})
    seen = record(make_raw([(30, first), (50, text_event("so")), (51, usage_event(5, 3) + DONE)]))
    assert (seen.status, seen.ttft, seen.itl, seen.text) == ("ok", 0.03, (0.02,), "so")


def test_without_usage_the_tokens_are_counted_and_flagged() -> None:
    """The tokenizer counts the output, reasoning included; the prompt's count is the workload's."""
    first = event({"choices": [{"delta": {"reasoning": "hm hm "}}]})
    seen = record(make_raw([(1, first + text_event("a b c") + DONE)]), count_tokens=lambda text: len(text.split()))
    assert (seen.status, seen.prompt_tokens, seen.output_tokens, seen.tokens_from) == ("ok", 5, 5, "tokenizer")


def test_largest_output_count_stands() -> None:
    """Running counts end at the last; a later stage's smaller count does not replace the text stage's."""
    running = text_event("a", usage={"prompt_tokens": 7, "completion_tokens": 1})
    seen = record(make_raw([(1, running + usage_event(7, 3) + usage_event(7, 0) + DONE)]))
    assert (seen.status, seen.output_tokens) == ("ok", 3)


WORDS = text_event("a") + text_event("b") + text_event("c", finish="length")
USAGE = usage_event(5, 3)


@pytest.mark.parametrize(
    ("body", "changes", "reason"),
    [
        (b'{"error": "too long"}', {"http_status": 400}, r'HTTP 400: \{"error": "too long"\}'),
        (b"", {"http_status": 503}, "HTTP 503: no body"),
        (WORDS, {"error": "ServerDisconnectedError: gone"}, "ServerDisconnectedError: gone"),
        (WORDS + USAGE, {}, r"ended without \[DONE\] after 3 text and 0 audio events"),
        (WORDS + event({"error": {"message": "out of blocks", "code": 500}}) + DONE, {}, "error: out of blocks"),
        (event({"object": "error", "message": "bad"}) + DONE, {}, "error: bad"),
        (b"event: error\ndata: {}\n\n", {}, "the stream carried an error: {}"),
        (WORDS + b"data: {oops\n\n" + DONE, {}, r"event 3 is not JSON .*\{oops"),
        (b"data: [1]\n\n" + DONE, {}, r"event 0 is not a completion chunk: \[1\]"),
        (text_event(7) + DONE, {}, "event 0 is not a completion chunk"),  # type: ignore[arg-type]
        (event({"choices": [], "usage": {"completion_tokens": "3"}}) + DONE, {}, "event 0 is not a completion chunk"),
        (b"data: \xff\n\n" + DONE, {}, "event 0 is not JSON"),
        (role_event() + usage_event(5, 3) + DONE, {}, r"no text came \(3 output tokens counted\)"),
        (WORDS + DONE, {}, "no usage, and there is no tokenizer"),
        (WORDS + event({"choices": [], "usage": {"completion_tokens": 3}}) + DONE, {}, "no usage"),
        (text_event("a", finish="abort") + USAGE + DONE, {}, "finish_reason abort"),
        (WORDS + usage_event(5, 2) + DONE, {}, "partial output: 2 of 3 tokens, with ignore_eos"),
    ],
)
def test_each_way_to_fail_is_named(body: bytes, changes: dict[str, Any], reason: str) -> None:
    """A failed request is a record with the nearest cause, and keeps what was seen."""
    seen = record(make_raw([(20, body)], **changes))
    assert seen.status == "failed"
    assert seen.error is not None
    assert re.search(reason, seen.error), seen.error


@pytest.mark.parametrize(
    ("audio", "reason"),
    [
        (b"", "no audio came"),
        (audio_event(b""), "no audio samples"),
        (event({"modality": "audio", "choices": [{"delta": {"content": "?"}}]}), "piece 0 is not base64"),
    ],
)
def test_speech_that_was_asked_for_must_come(audio: bytes, reason: str) -> None:
    """A speaking bench without readable samples fails the request, and the text seen is kept."""
    seen = record(make_raw([(20, WORDS + audio + USAGE + DONE)]), bench=SPEECH)
    assert (seen.status, seen.text, seen.audio_seconds) == ("failed", "abc", None)
    assert reason in (seen.error or "")


@pytest.mark.parametrize("changes", [{"ignore_eos": False}, {"extra_body": {"max_tokens": 2}}])
def test_short_answers_are_whole_where_length_is_free(changes: dict[str, Any]) -> None:
    """Without ignore_eos, or with a length of the bench's own, fewer tokens than the prompt asks for are no failure."""
    seen = record(make_raw([(20, WORDS + usage_event(5, 2) + DONE)]), bench=make_bench(**changes))
    assert (seen.status, seen.output_tokens) == ("ok", 2)


def test_what_follows_done_is_ignored() -> None:
    """Events after `[DONE]` are not part of the answer."""
    assert record(make_raw([(20, WORDS + USAGE + DONE + text_event("late"))])).text == "abc"


def test_request_that_never_arrived_has_no_numbers() -> None:
    """Nothing came: everything that was not measured is None."""
    seen = record(make_raw([], http_status=None, error="not sent: the server is gone"))
    assert (seen.status, seen.http_status) == ("failed", None)
    assert {seen.ttft, seen.latency, seen.prompt_tokens, seen.output_tokens, seen.tokens_from} == {None}


KEYS = [
    *("choices", "delta", "content", "usage", "audio", "data", "modality", "error", "text", "tool_calls", "function"),
    *("prompt_tokens", "completion_tokens", "prompt_tokens_details", "finish_reason", "transcript"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=3))
def test_no_stream_raises(payloads: list[Any]) -> None:
    """Whatever JSON a server sends, the outcome is a record."""
    stream = b"".join(b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads)
    assert record(make_raw([(20, stream)])).status == "failed"
