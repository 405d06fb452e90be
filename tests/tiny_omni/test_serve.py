"""The reference server as a process: its settings, its faults, its signals and its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness.errors import UsageError
from harness.tiny_omni.config import EngineConfig, ModelConfig
from harness.tiny_omni.faults import FailStep, Faults, parse_faults, step_faults
from harness.tiny_omni.options import parse_options
from harness.tiny_omni.serve import serve

SMALL = ("--hidden-size", "64", "--num-layers", "3", "--num-blocks", "64", "--max-model-len", "256")
PATIENCE = 60.0


def deploy(folder: Path, text: str) -> Path:
    path = folder / "deploy.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults() -> None:
    """Without arguments the settings are those of the configuration, with caching off and audio on."""
    options = parse_options([])
    assert options.engine == EngineConfig()
    assert (options.host, options.port, options.served_model_name) == ("127.0.0.1", 8000, "tiny-omni")
    assert options.audio
    assert options.faults == Faults()


def test_command_line_beats_deploy_beats_default(tmp_path: Path) -> None:
    """Each setting comes from the command line, else from the deploy file's stage 0, else from the default."""
    path = deploy(tmp_path, "stages: [{stage_id: 0, enable_prefix_caching: true, block_size: 32, seed: 5}]")
    options = parse_options(["--deploy-config", str(path), "--block-size", "8", "--hidden-size", "64"])
    assert options.engine == EngineConfig(
        model=ModelConfig(hidden_size=64, seed=5), enable_prefix_caching=True, block_size=8
    )
    off = parse_options(["--deploy-config", str(path), "--no-enable-prefix-caching"])
    assert (off.engine.enable_prefix_caching, off.engine.block_size) == (False, 32)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stages: [{stage_id: 0, block_sise: 8}]", r"stages\[0\]: found 'block_sise'; allowed: stage_id, enable"),
        ("stages: [{stage_id: 0, block_size: true}]", r"block_size: found True; allowed: a whole number"),
        ("stages: [{stage_id: 0, enable_prefix_caching: 1}]", r"found 1; allowed: true or false"),
        ("stages: [{stage_id: 1}]", r"found stage_id 1; allowed: one stage, stage_id: 0"),
        ("stages: [{stage_id: 0}, {stage_id: 0}]", r"found stage_id 0, 0; allowed: one stage"),
        ("stages: {stage_id: 0}", r"stages: found .*; allowed: a list of mappings"),
        ("async_chunk: true", r"found async_chunk; allowed: the one key stages"),
        ("", r"found None; allowed: the one key stages"),
        ("stages: [", r"not YAML"),
    ],
)
def test_wrong_deploy_files(tmp_path: Path, text: str, words: str) -> None:
    """A wrong deploy file gets one message with the file, what was found and what is allowed."""
    path = deploy(tmp_path, text)
    with pytest.raises(UsageError, match=words) as caught:
        parse_options(["--deploy-config", str(path)])
    assert str(path) in str(caught.value)


def test_absent_deploy_file(tmp_path: Path) -> None:
    """A deploy file that is not there is named."""
    with pytest.raises(UsageError, match=r"none\.yaml: No such file"):
        parse_options(["--deploy-config", str(tmp_path / "none.yaml")])


def test_impossible_sizes() -> None:
    """A size no engine can have is refused with what is allowed."""
    with pytest.raises(UsageError, match="block_size: found 0; allowed: more than 0"):
        parse_options(["--block-size", "0"])


def test_faults_are_parsed_by_their_form() -> None:
    """Each fault takes the value its name promises."""
    given = ["slow-start=1.5", "never-ready", "crash-after=3", "wrong-model=x=y", "slow-step=0.25", "stubborn"]
    assert parse_faults(given) == Faults(
        slow_start=1.5, never_ready=True, crash_after=3, wrong_model="x=y", slow_step=0.25, stubborn=True
    )
    assert parse_faults([]) == Faults()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("crash", r"found 'crash'; allowed: slow-start=VALUE, never-ready, crash-after=VALUE, .*, stubborn"),
        ("crash-after", "crash-after: found ''; allowed: crash-after=VALUE with a whole number of at least 1"),
        ("crash-after=0", "crash-after: found '0'"),
        ("fail-request=two", "fail-request: found 'two'"),
        ("slow-step=-1", "slow-step: found '-1'; allowed: slow-step=VALUE with a number of 0 to 1000000"),
        ("slow-step=inf", "slow-step: found 'inf'"),
        ("slow-step=nan", "slow-step: found 'nan'"),
        ("never-ready=yes", "never-ready: found value 'yes'; allowed: no value"),
        ("wrong-model=", "wrong-model: found ''"),
    ],
)
def test_wrong_faults(given: str, words: str) -> None:
    """A fault that is unknown or badly given gets one message that says what is allowed."""
    with pytest.raises(UsageError, match=words):
        parse_faults([given])


def test_step_faults() -> None:
    """fail-step raises at its step, counted from 1; without it there is no hook."""
    assert step_faults(Faults(slow_step=0.5)) is None
    hook = step_faults(Faults(fail_step=4))
    assert hook is not None
    for step in range(3):
        hook(step)
    with pytest.raises(FailStep, match="fail-step=4"):
        hook(3)


class Server:
    """A server process; its log is what it wrote to standard error."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harness.tiny_omni", "--port", "0", *SMALL, *arguments],
                stderr=stderr,
                env=os.environ | {"PYTHONHASHSEED": "random"},
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return int(self.await_log(r'listening .*"port": (\d+)').group(1))

    def await_log(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = re.search(pattern, self.log.read_text(encoding="utf-8"))
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} in:\n{self.log.read_text(encoding='utf-8')}")

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def complete(self, **more: Any) -> Any:
        body = {"prompt": "the house", "max_tokens": 3, "ignore_eos": True} | more
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return json.load(response)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)


@contextmanager
def running(log: Path, *arguments: str) -> Iterator[Server]:
    server = Server(log, *arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


def test_life_of_a_server(tmp_path: Path) -> None:
    """It answers 503 until ready, then serves what the deploy file says under the name given, and SIGTERM ends it
    with code 0 although a request is running."""
    path = deploy(tmp_path, "stages: [{stage_id: 0, enable_prefix_caching: true, block_size: 8}]")
    arguments = ("--deploy-config", str(path), "--served-model-name", "mine", "--fault", "slow-start=0.5")
    with running(tmp_path / "log", *arguments, "--fault", "stall-stream=2") as server:
        assert server.get("/health")[0] == 503
        server.await_log(": ready ")
        assert server.get("/health")[0] == 200
        assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == "mine"
        assert server.complete(model="mine")["usage"]["completion_tokens"] == 3
        page = server.get("/metrics")[1].decode()
        assert 'enable_prefix_caching="True"' in page
        assert 'block_size="8"' in page
        body = json.dumps({"prompt": "a", "max_tokens": 100, "ignore_eos": True, "stream": True}).encode()
        with urllib.request.urlopen(f"{server.url}/v1/completions", body, timeout=PATIENCE) as stalled:
            assert stalled.readline().startswith(b"data: ")
            server.process.send_signal(signal.SIGTERM)
            assert server.wait() == 0
        resolved = json.loads(server.await_log(r"configuration (\{.*\})").group(1))
    assert resolved["engine"]["block_size"] == 8
    assert resolved["engine"]["model"]["hidden_size"] == 64


def test_stubborn_and_crash(tmp_path: Path) -> None:
    """A stubborn server outlives SIGTERM; crash-after=2 ends the process with code 42 at the second request."""
    faults = ("--fault", "stubborn", "--fault", "crash-after=2", "--no-audio")
    with running(tmp_path / "log", *faults) as server:
        server.await_log(": ready ")
        server.process.send_signal(signal.SIGTERM)
        server.complete()
        assert server.process.poll() is None
        with pytest.raises((ConnectionError, urllib.error.URLError)):
            server.complete()
        assert server.wait() == 42


@asynccontextmanager
async def serving(caplog: pytest.LogCaptureFixture, *arguments: str) -> AsyncIterator[tuple[Client, asyncio.Task[int]]]:
    """A server on this process's loop, reachable, and the task that ends with its exit code."""
    caplog.set_level("INFO")
    task = asyncio.create_task(serve(parse_options(["--port", "0", "--no-audio", *SMALL, *arguments])))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session:
        address = json.loads((await _logged(caplog, task, "listening ")).partition(" ")[2])
        yield Client(session, f"http://{address['host']}:{address['port']}"), task
        assert task.done()


@dataclass(frozen=True, slots=True)
class Client:
    session: aiohttp.ClientSession
    url: str

    async def health(self) -> int:
        async with self.session.get(f"{self.url}/health") as response:
            return response.status

    async def complete(self) -> tuple[int, str]:
        body = {"prompt": "the house", "max_tokens": 3, "ignore_eos": True}
        async with self.session.post(f"{self.url}/v1/completions", json=body) as response:
            return response.status, await response.text()


async def _logged(caplog: pytest.LogCaptureFixture, task: asyncio.Task[int], start: str) -> str:
    async with asyncio.timeout(PATIENCE):
        while not (found := [message for message in caplog.messages if message.startswith(start)]):
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
    return found[0]


async def test_engine_failure_ends_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """When the engine fails, the request gets an error, the cause is in the log, and the exit code is 1."""
    async with serving(caplog, "--fault", "fail-step=2") as (client, server):
        await _logged(caplog, server, "ready ")
        status, text = await client.complete()
        assert (status, "fail-step=2" in text) == (500, True)
        assert await server == 1
    (record,) = [record for record in caplog.records if record.name == "harness.tiny_omni" and record.exc_info]
    assert isinstance(record.exc_info and record.exc_info[1], FailStep)


async def test_never_ready_and_interrupt(caplog: pytest.LogCaptureFixture) -> None:
    """A server that is never ready answers 503, and SIGINT ends it with code 0."""
    async with serving(caplog, "--fault", "never-ready") as (client, server):
        assert await client.health() == 503
        os.kill(os.getpid(), signal.SIGINT)
        assert await server == 0
    assert not any(message.startswith("ready ") for message in caplog.messages)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.tiny_omni", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | environment,
        check=False,
    )


def test_refusals_before_anything_is_loaded(tmp_path: Path) -> None:
    """A port in use, an unknown fault and a missing speech program each end in code 2 with one message."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        busy = run("--port", port)
        assert (busy.returncode, busy.stderr.splitlines()[-1]) == (
            2,
            f"tiny_omni: --port {port}: cannot listen on 127.0.0.1:{port}: Address already in use",
        )
    unknown = run("--fault", "nonsense")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("tiny_omni: --fault: found 'nonsense'; allowed: ")
    mute = run("--port", "0", PATH=str(tmp_path))
    assert mute.returncode == 2
    assert "apt install flite" in mute.stderr
    assert "Traceback" not in mute.stderr
