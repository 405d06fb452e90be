"""The request: from the raw stream to its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.client.answer import Answer, Usage, read_answer
from harness.client.audio import AudioError, Piece, Speech, decode_pieces, read_body
from harness.client.load import LoadResult
from harness.client.sse import parse_events
from harness.client.stream import RawRequest
from harness.records import RequestRecord
from harness.scenario import Bench
from harness.workloads.prompt import Prompt

CountTokens = Callable[[str], int]
"""Tokens of a text, without special tokens."""

LENGTH_KEYS = frozenset({"ignore_eos", "max_completion_tokens", "max_tokens", "stop", "stop_token_ids"})
"""Keys of `extra_body` that change how long an answer is, so that its length is no longer the prompt's."""


@dataclass(frozen=True, slots=True)
class _Tokens:
    prompt: int | None
    output: int | None
    source: Literal["usage", "tokenizer"] | None


def to_record(
    raw: RawRequest,
    *,
    bench: Bench,
    prompt: Prompt,
    first_sent_ns: int,
    count_tokens: CountTokens | None = None,
) -> RequestRecord:
    """One request's record, with the definitions of `vllm bench serve` (all from the instant before the POST).

    * TTFT: to the first event with text, reasoning or a tool call in it; the role event does not count.
    * ITL: gaps between such events.
    * E2EL (`latency`): to the last event with text or audio samples in it.
    * TTFP: to the first event that carries audio samples; a bare header does not count (in vLLM-Omni it does).
    * RTF: vLLM-Omni's `audio_rtf`, (last event with samples - send) / audio seconds: it includes the time before the
      Talker starts.
    * Tokens: the server's `usage`; without it the text is counted with `count_tokens` and the prompt by the workload,
      and `tokens_from` says so. The speech endpoint counts nothing: there the output stays unknown.

    A request that failed keeps what was seen of it.

    Parameters:
        first_sent_ns: origin of `sent`.
        count_tokens: None: a response without usage is a failure.
    """
    if bench.endpoint == "speech":
        # No events and no [DONE]: the end of the body is the end of the answer.
        answer = replace(read_answer(()), done=True)
        speech, audio_ns, audio_error = _body_of(raw)
        tokens = _Tokens(prompt.prompt_len, None, None)
    else:
        answer = read_answer(parse_events(raw.arrivals))
        speech, audio_ns, audio_error = _speech_of(answer)
        tokens = _tokens_of(answer, prompt, count_tokens)
    error = _broken_off(raw, answer) or audio_error or _incomplete(answer, speech, tokens, bench, prompt)
    content_ns = answer.text_ns[-1:] + audio_ns[-1:]

    def since_sent(at_ns: int) -> float:
        return (at_ns - raw.sent_ns) / 1e9

    return RequestRecord(
        index=raw.index,
        status="ok" if error is None else "failed",
        error=error,
        http_status=raw.http_status,
        sent=(raw.sent_ns - first_sent_ns) / 1e9,
        queued=max(0.0, (raw.sent_ns - raw.due_ns) / 1e9),
        ttft=since_sent(answer.text_ns[0]) if answer.text_ns else None,
        latency=since_sent(max(content_ns)) if content_ns else None,
        itl=tuple((after - before) / 1e9 for before, after in pairwise(answer.text_ns)),
        prompt_tokens=tokens.prompt,
        output_tokens=tokens.output,
        tokens_from=tokens.source,
        cached_tokens=answer.usage.cached_tokens if answer.usage else None,
        text=answer.text,
        finish_reason=answer.finish_reason,
        ttfp=since_sent(audio_ns[0]) if audio_ns else None,
        audio_seconds=speech.seconds if speech else None,
        audio_rtf=since_sent(audio_ns[-1]) / speech.seconds if speech else None,
        audio_sha256=speech.sha256 if speech else None,
        audio_transcript=answer.transcript,
    )


def to_records(
    load: LoadResult, *, bench: Bench, prompts: Sequence[Prompt], count_tokens: CountTokens | None = None
) -> list[RequestRecord]:
    """The records of a whole load, in prompt order."""
    return [
        to_record(
            raw,
            bench=bench,
            prompt=prompts[raw.index],
            first_sent_ns=load.first_sent_ns,
            count_tokens=count_tokens,
        )
        for raw in load.requests
    ]


def pcm_of(raw: RawRequest) -> tuple[npt.NDArray[np.int16], int]:
    """The speech of one request: samples, int16, shape (frames,) or (frames, channels), and frames per second.

    Raises:
        AudioError: no samples, or none we can read.
    """
    if raw.arrivals and raw.arrivals[0][1].startswith(b"R"):  # no event does
        speech, _ = read_body(raw.arrivals)
    else:
        speech = Speech.joined(decode_pieces(read_answer(parse_events(raw.arrivals)).audio))
    return speech.pcm, speech.rate


def _speech_of(answer: Answer) -> tuple[Speech | None, tuple[int, ...], str | None]:
    """Speech, arrivals of the events that carry samples, and what is wrong with the audio."""
    if not answer.audio:
        return None, (), None
    try:
        pieces: list[Piece] = decode_pieces(answer.audio)
        audio_ns = tuple(at_ns for at_ns, piece in zip(answer.audio_ns, pieces, strict=True) if piece.samples)
        return Speech.joined(pieces), audio_ns, None
    except AudioError as exc:
        return None, (), str(exc)


def _body_of(raw: RawRequest) -> tuple[Speech | None, tuple[int, ...], str | None]:
    """The same of a response that is one WAV stream."""
    try:
        return *read_body(raw.arrivals), None
    except AudioError as exc:
        return None, (), str(exc)


def _tokens_of(answer: Answer, prompt: Prompt, count_tokens: CountTokens | None) -> _Tokens:
    said = answer.usage or Usage()
    # A server that counts no output although it wrote some did not count: vLLM's client treats 0 the same way.
    if said.completion_tokens and said.prompt_tokens is not None:
        return _Tokens(said.prompt_tokens, said.completion_tokens, "usage")
    if count_tokens is None:
        return _Tokens(said.prompt_tokens, said.completion_tokens or None, None)
    return _Tokens(
        prompt.prompt_len if said.prompt_tokens is None else said.prompt_tokens,
        said.completion_tokens or count_tokens(answer.aside + answer.text),
        "tokenizer",
    )


def _broken_off(raw: RawRequest, answer: Answer) -> str | None:
    """Why the exchange did not come to its end; None when it did."""
    if raw.error is not None:
        return raw.error
    if raw.http_status != 200:
        body = b"".join(data for _, data in raw.arrivals)[:500].decode("utf-8", "replace").strip()
        return f"HTTP {raw.http_status}: {body or 'no body'}"
    if answer.error is not None:
        return answer.error
    if not answer.done:
        counts = f"{len(answer.text_ns)} text and {len(answer.audio)} audio events"
        return f"the stream ended without [DONE] after {counts}"
    if answer.finish_reason in {"abort", "error"}:
        return f"the server ended the request: finish_reason {answer.finish_reason}"
    return None


def _incomplete(answer: Answer, speech: Speech | None, tokens: _Tokens, bench: Bench, prompt: Prompt) -> str | None:
    """What a stream that came to its end lacks; None when it is whole."""
    if "text" in bench.modalities and not answer.text_ns:
        return f"no text came ({tokens.output or 0} output tokens counted)"
    if "audio" in bench.modalities and speech is None:
        return "no audio came"
    if tokens.source is None and bench.endpoint != "speech":
        return "the server reported no usage, and there is no tokenizer to count with"
    fixed_length = bench.ignore_eos and not LENGTH_KEYS & bench.extra_body.keys()
    if fixed_length and tokens.source == "usage" and (tokens.output or 0) < prompt.output_len:
        return f"partial output: {tokens.output} of {prompt.output_len} tokens, with ignore_eos"
    return None
