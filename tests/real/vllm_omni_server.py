"""A real vLLM-Omni server on the CPU, and what a test says to it. Nothing here is simulated."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("OMNI_PREFIX_BENCH_VLLM_OMNI_PYTHON", ROOT / ".venvs/vllm-omni-cpu/bin/python"))
MODEL = Path(os.environ.get("OMNI_PREFIX_BENCH_VLLM_OMNI_MODEL", ROOT / "models/tiny-qwen3-omni"))
PROFILE = ROOT / "scenarios" / "deploy" / "qwen3_omni_tiny_cpu.yaml"
NAME = "tiny-qwen3-omni"
READY_S = 900.0
STOP_S = 60.0
# A stage publishes its counters at most once a second, and only from a later step.
PUBLISH_S = 1.2


@dataclass(frozen=True)
class Answer:
    """Text, and speech as samples: 16 bit, one channel."""

    text: str
    pcm: bytes


def check_installed() -> None:
    """Fails, with the command to run, where the environment or the model is missing."""
    missing = [path for path in (PYTHON, MODEL / "model.safetensors") if not path.exists()]
    if missing:
        raise FileNotFoundError(f"no {missing[0]}: run scripts/setup_vllm_omni_cpu.sh")


class Server:
    """One fresh server.

    Parameters:
        folder: for its log and its overlay.
        caching: whether stage 0 caches prefixes.
        env: beside what a CPU needs.
    """

    def __init__(self, folder: Path, *, caching: bool, env: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        overlay = folder / "overlay.json"  # JSON is YAML
        stage = {"stage_id": 0, "enable_prefix_caching": caching}
        overlay.write_text(json.dumps({"base_config": str(PROFILE), "stages": [stage]}))
        self.log = folder / "server.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        words = [PYTHON, "-m", "vllm_omni.entrypoints.cli.main", "serve", MODEL, "--omni", "--log-stats"]
        words += ["--served-model-name", NAME, "--deploy-config", overlay, "--host", "127.0.0.1", "--port", self._port]
        words += ["--stage-init-timeout", 600, "--init-timeout", int(READY_S)]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PREFIX_CACHE", "VLLM_"))}
        on_cpu = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1"}
        on_cpu |= {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(word) for word in words],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**clean, **on_cpu, "TRANSFORMERS_OFFLINE": "1", **env},
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                models = json.loads(self._get("/v1/models"))
            except (OSError, http.client.HTTPException):
                models = {"data": []}
            if [model["id"] for model in models["data"]] == [NAME]:
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not become ready (exit {self._process.poll()}):\n{self.tail()}")
            time.sleep(1)

    def wait_end(self) -> int:
        """Of a server that refuses to start: its exit status."""
        return self._process.wait(READY_S)

    def ask(self, prompt: str, modalities: Sequence[str], tokens: int) -> Answer:
        """One streamed chat completion of exactly `tokens` tokens, and its speech where it was asked for."""
        body = {
            "model": NAME,
            "messages": [{"role": "user", "content": prompt}],
            "modalities": list(modalities),
            "max_tokens": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        text, pieces = "", []
        with urllib.request.urlopen(request, timeout=300) as lines:
            for line in lines:
                event = line.decode().strip().removeprefix("data: ")
                if not event or event == "[DONE]":
                    continue
                found = json.loads(event)
                if found.get("error"):
                    raise RuntimeError(f"the server answered {found['error']}\n{self.tail()}")
                for choice in found.get("choices", []):
                    content = (choice.get("delta") or {}).get("content")
                    if content and found.get("modality") == "audio":
                        pieces.append(_samples(content))
                    elif content:
                        text += content
        return Answer(text, b"".join(pieces))

    def stage0_counters(self) -> Mapping[str, float]:
        """`queries` and `hits` of stage 0's prefix cache, in tokens, after everything asked so far but a probe."""
        time.sleep(PUBLISH_S)
        self.ask(f"probe {time.time_ns()}", ["text"], 1)
        found = {"queries": 0.0, "hits": 0.0}
        for family in text_string_to_metric_families(self._get("/metrics")):
            for sample in family.samples:
                for which in found:
                    if sample.name == f"vllm:prefix_cache_{which}_total" and sample.labels.get("stage") == "0":
                        found[which] += sample.value
        return found

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def stop(self) -> None:
        """Ends the whole process group."""
        for number, patience in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                self._process.poll()
                if not _group_lives(self._process.pid):
                    break
                time.sleep(0.2)
        self._process.wait(10)

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
        return text


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _samples(piece: Any) -> bytes:
    with wave.open(io.BytesIO(base64.b64decode(piece))) as audio:
        assert (audio.getsampwidth(), audio.getnchannels()) == (2, 1)
        return audio.readframes(audio.getnframes())
