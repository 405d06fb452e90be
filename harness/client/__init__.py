"""The load generator: OpenAI-compatible streaming over HTTP, timing, and audio.

During the bench only bytes and instants are kept (`load`, `stream`); events, answers, records and the summary are
pure functions of them afterwards.
"""

from harness.client.audio import AudioError
from harness.client.drive import Measured, drive, measure
from harness.client.load import LoadResult, run_load
from harness.client.payload import build_payload
from harness.client.requests import pcm_of, to_record, to_records
from harness.client.stream import RawRequest
from harness.client.summary import summarise
from harness.client.vllm_bench import VllmBench, VllmBenchLoad, check_vllm_bench

__all__ = [
    "AudioError",
    "LoadResult",
    "Measured",
    "RawRequest",
    "VllmBench",
    "VllmBenchLoad",
    "build_payload",
    "check_vllm_bench",
    "drive",
    "measure",
    "pcm_of",
    "run_load",
    "summarise",
    "to_record",
    "to_records",
]
