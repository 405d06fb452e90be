"""The speech endpoint: a response that is one WAV stream, without events, text or counts."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from client_bench import make_bench, make_prompts, make_raw
from scripted_server import Call, serve, wav

from harness.client.audio import AudioError
from harness.client.load import run_load
from harness.client.requests import pcm_of, to_record, to_records
from harness.client.stream import RawRequest
from harness.client.summary import summarise
from harness.records import RequestRecord
from harness.scenario import Bench
from harness.workloads.prompt import Prompt, Recording

SPEECH = make_bench(endpoint="speech", modalities=("audio",), ignore_eos=False)
TONE = np.arange(2400, dtype=np.int16)
HEADER = 44


def streaming(samples: np.ndarray, rate: int = 24_000) -> bytes:
    """As vLLM-Omni streams it: a header that claims 4 GiB, then the samples."""
    body = bytearray(wav(samples, rate))
    body[4:8] = body[40:44] = b"\xff\xff\xff\xff"
    return bytes(body)


def record(raw: RawRequest) -> RequestRecord:
    return to_record(raw, bench=SPEECH, prompt=make_prompts(1)[0], first_sent_ns=800_000_000, count_tokens=len)


def test_a_stream_is_measured_by_the_reads_that_bring_samples() -> None:
    """The header alone is no audio; E2EL and RTF are by the last read with samples; frames may be cut anywhere."""
    body = streaming(TONE)
    cut = HEADER + 1001
    raw = make_raw([(20, body[:10]), (30, body[10:HEADER]), (70, body[HEADER:cut]), (90, body[cut:])])
    seen = record(raw)
    assert (seen.status, seen.error) == ("ok", None)
    assert (seen.ttfp, seen.latency, seen.audio_seconds) == (0.07, 0.09, 0.1)
    assert seen.audio_rtf == pytest.approx(0.9)
    assert seen.audio_sha256 == hashlib.sha256(TONE.astype("<i2").tobytes()).hexdigest()
    assert (seen.ttft, seen.itl, seen.text) == (None, (), "")


def test_a_header_and_samples_in_one_read_are_the_first_audio() -> None:
    """A read that brings both counts."""
    assert record(make_raw([(40, streaming(TONE))])).ttfp == 0.04


def test_nothing_is_counted_that_the_server_does_not_say() -> None:
    """The prompt is the text's tokens, the output unknown, and no caveat speaks of counting."""
    seen = record(make_raw([(40, streaming(TONE))]))
    assert (seen.prompt_tokens, seen.output_tokens, seen.tokens_from) == (5, None, None)


def test_the_rate_is_the_headers() -> None:
    """The same samples at 16 kHz last longer."""
    assert record(make_raw([(40, streaming(TONE, 16_000))])).audio_seconds == 0.15
    samples, rate = pcm_of(make_raw([(40, streaming(TONE, 16_000))]))
    assert (samples.tolist(), rate) == (TONE.tolist(), 16_000)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (make_raw([]), "no audio came"),
        (make_raw([(1, streaming(TONE[:0]))]), "no audio samples"),
        (make_raw([(1, TONE.tobytes())]), "4800 bytes without a WAV header"),
        (make_raw([(1, b'{"error": "no voice"}')], http_status=400), 'HTTP 400: {"error": "no voice"}'),
        (make_raw([(1, streaming(TONE))], error="ClientPayloadError: cut"), "ClientPayloadError: cut"),
        (make_raw([(1, streaming(TONE)[:-1])]), "4799 bytes of samples are not whole frames"),
    ],
)
def test_what_is_not_speech_fails_with_its_reason(raw: RawRequest, error: str) -> None:
    """Never a duration of zero."""
    seen = record(raw)
    assert (seen.status, seen.audio_seconds) == ("failed", None) or error.startswith("ClientPayload")
    assert seen.error is not None
    assert seen.error.startswith(error)


def test_pcm_of_bytes_without_speech_is_an_error() -> None:
    """Neither events nor a WAV."""
    with pytest.raises(AudioError):
        pcm_of(make_raw([(1, b"RIFF")]))


async def test_a_voice_reaches_the_server_and_its_speech_comes_back(tmp_path: Path) -> None:
    """End to end over a socket: the body holds the recording, the answer streams in, the summary is vLLM-Omni's."""
    (tmp_path / "voice.wav").write_bytes(wav(TONE[:100]))

    async def speak(call: Call) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "audio/wav"})
        await response.prepare(call.request)
        body = streaming(TONE)
        for part in (body[:HEADER], body[HEADER:2001], body[2001:]):
            await response.write(part)
            await asyncio.sleep(0.02)
        return response

    voice = Recording(tmp_path / "voice.wav", "what is said", "English")
    prompts = [Prompt(f"text {index}", 2, 64, voice=voice) for index in range(3)]
    bench: Bench = make_bench(endpoint="speech", modalities=("audio",), ignore_eos=False, concurrency=2, prompts=3)
    async with serve(speak) as server:
        load = await run_load(bench, prompts, base_url=server.url, model="m")
    assert server.paths == ["/v1/audio/speech"] * 3
    assert {body["ref_text"] for body in server.bodies} == {"what is said"}
    records = to_records(load, bench=bench, prompts=prompts)
    assert {(one.status, one.audio_seconds) for one in records} == {("ok", 0.1)}
    assert all(one.ttfp is not None and one.latency is not None and 0 < one.ttfp < one.latency for one in records)
    summary = summarise(
        records, bench=bench, duration_s=load.duration_s, started_at=load.started_at, model="m", tokenizer="t"
    )
    assert (summary.backend, summary.completed, summary.failed) == ("openai-audio-speech", 3, 0)
    assert summary.total_audio_duration_s == pytest.approx(0.3)
