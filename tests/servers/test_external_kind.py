import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from fake_launch import MakeLaunch, runs, wait_for, wait_for_log
from server_scenario import BENCH, scenario

from harness.errors import HarnessFailure, UsageError
from harness.servers import listening
from harness.servers.arm import ResolvedArm, resolve_arm
from harness.servers.external import External
from harness.servers.kinds import SettleRule
from harness.servers.launch import Launch, free_port
from harness.servers.listening import listener
from harness.servers.process import ServerProcess, recover
from harness.servers.ready import wait_ready
from harness.servers.running import RunningServer
from harness.servers.tiny_omni import TinyOmni, runs_tiny_omni
from harness.servers.vllm_omni import SETTLE_RULE
from harness.telemetry.memory import MemorySampler
from harness.telemetry.scrape import parse

KIND = External()


@contextmanager
def tiny_omni(folder: Path, port: int) -> Iterator[ServerProcess]:
    """A reference server that somebody else started."""
    file = scenario({"args": {"hidden-size": 64, "num-layers": 3, "num-blocks": 64}}, {})
    kind = TinyOmni()
    folder.mkdir()
    with kind.start(kind.command(resolve_arm(file, "off"), file, port, folder), 5.0) as server:
        yield server


@contextmanager
def forwarder(to: int, *words: str) -> Iterator[str]:
    """An address whose listener passes connections on to a port of this machine."""
    port = free_port()
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("forwarder.py")), str(port), str(to), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"forwarding\n"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def attached(url: str, folder: Path) -> tuple[ResolvedArm, Launch]:
    file = scenario({}, {"url": url}, kind="external")
    arm = resolve_arm(file, "on")
    KIND.check(arm, file)
    folder.mkdir(exist_ok=True)
    return arm, KIND.command(arm, file, 1, folder)


async def ready(server: RunningServer, launch: Launch) -> None:
    async with aiohttp.ClientSession() as session:
        assert await wait_ready(server, launch, session, timeout=30.0) >= 0.0


async def test_attaching_and_leaving_touches_nothing(tmp_path: Path) -> None:
    """A reference server is found by its port, also where it listens only later; it runs on after the stop."""
    folder, port = tmp_path / "r01-1-on", free_port()
    arm, launch = attached(f"http://127.0.0.1:{port}/", folder)
    assert (launch.argv, launch.base_url, launch.port) == ((), f"http://127.0.0.1:{port}", port)
    with KIND.start(launch, 1.0) as server:
        assert server.pid is None, "nobody listens yet"
        with tiny_omni(tmp_path / "theirs", port) as stranger:
            await ready(server, launch)
            assert (server.pid, server.root_pid, server.ours) == (stranger.pid, stranger.pid, False)
            assert KIND.stage0_pid(stranger.pid) == stranger.pid
            with MemorySampler(stranger.pid, stranger.pid, folder / "samples.csv", with_root=True) as memory:
                point = memory.point()
            assert point is not None
            assert point.pss is not None
            assert point.rss > 0
            assert server.stop().stopped_by == "left running"
            assert runs(stranger.pid)
            assert not recover(folder)
            assert not any("memory" in what for what in KIND.unchecked(arm))


async def test_a_forwarder_is_not_taken_for_the_server(tmp_path: Path) -> None:
    """What listens may be `ssh -L`, whose memory is not the server's: none is measured, and the record names it.

    Not even where its words end with the command that it runs on the other machine.
    """
    with (
        tiny_omni(tmp_path / "theirs", free_port()) as server,
        forwarder(server.launch.port, "bench", "serve", "tiny-omni") as url,
    ):
        wait_for(lambda: listener(server.launch.base_url) is not None, "the server behind it")
        arm, launch = attached(url, tmp_path / "r01-1-on")
        with KIND.start(launch, 1.0) as seen:
            await ready(seen, launch)
            assert (seen.pid, seen.root_pid) == (None, None)
        (told,) = [what for what in KIND.unchecked(arm) if "memory" in what]
        pid = listener(url)
        assert pid is not None
        name = psutil.Process(pid).name()
        assert f"not measured, the process that listens at the address ({name}) is not recognised as a server" in told
        with pytest.raises(HarnessFailure, match="no longer recognised as a server"):
            KIND.stage0_pid(pid)


def test_an_engine_below_the_listener_makes_it_a_server(tmp_path: Path) -> None:
    """vLLM's front end listens, and the engine with the model is a process below it, known by its title."""
    port, title = free_port(), "VLLM::EngineCore"
    child = f"subprocess.Popen([{title!r}, '-I', '-S', '-c', 'input()'], executable={sys.executable!r}, stdin=-1)"
    code = f"import socket, subprocess; s = socket.create_server(('127.0.0.1', {port})); c = {child}; input()"
    command = [sys.executable, "-I", "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as front:
        try:
            arm, launch = attached(f"http://127.0.0.1:{port}", tmp_path / "r01-1-on")
            server = KIND.start(launch, 1.0)
            wait_for(lambda: server.pid is not None, "the engine")
            assert server.pid == server.root_pid == front.pid
            (engine,) = psutil.Process(front.pid).children()
            assert KIND.stage0_pid(front.pid) == engine.pid
            assert not any("memory" in what for what in KIND.unchecked(arm))
        finally:
            front.kill()  # with it goes the engine, whose input ends


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("/env/bin/python /env/bin/bench serve tiny-omni --port 1", True),
        ("python3.12 -u -X dev -m harness.tiny_omni --port 1", True),
        ("Python -m harness.cli serve tiny-omni", True),
        ("ssh -L 1:127.0.0.1:1 host bench serve tiny-omni", False),
        ("ssh -L 1:127.0.0.1:1 host python -m harness.tiny_omni", False),
        ("python forward.py -m harness.tiny_omni", False),
        ("python bench run scenario.yaml", False),
        ("python", False),
        ("", False),
    ],
)
def test_the_reference_server_is_known_by_its_command_line(words: str, expected: bool) -> None:
    """It runs in that very process; who only mentions it is something else."""
    assert runs_tiny_omni(words.split()) is expected


def test_what_cannot_be_checked_is_said() -> None:
    """Freshness, command line, versions and log never are; memory where the process is not to be seen."""
    arm = resolve_arm(scenario({"url": "http://127.0.0.1:1"}, {}, kind="external"), "on")
    told = " ".join(KIND.unchecked(arm))
    for word in ("fresh", "left running", "command line", "versions", "log", "memory"):
        assert word in told
    assert KIND.expects_caching(arm) is None
    assert KIND.versions(arm) == {}


def test_the_settle_rule_goes_by_the_series_it_finds() -> None:
    omni = "# TYPE vllm_omni:num_requests_running gauge\nvllm_omni:num_requests_running 0.0\n"
    assert KIND.settle_rule(parse(omni)) == SETTLE_RULE
    assert KIND.settle_rule(parse("")) == SettleRule()


def test_a_listener_is_found_by_address_and_port(make_launch: MakeLaunch) -> None:
    launch = make_launch()
    with ServerProcess.start(launch, 1.0) as server:
        wait_for_log(launch, "listening")
        assert listener(launch.base_url) == server.pid
        assert listener(launch.base_url.replace("127.0.0.1", "localhost")) == server.pid
    assert listener(launch.base_url) is None


@pytest.mark.parametrize(
    ("server", "arm", "message"),
    [
        ({}, {}, r"arms\.on\.url: found none; allowed: the address"),
        ({"url": "http://h:1"}, {"args": {"a": 1}}, r"arms\.on\.args: found one with server kind external"),
        ({"url": "http://h:1", "python": sys.executable}, {}, r"arms\.on\.python: found one"),
        ({"url": "http://h:1", "env": {"A": "1"}}, {}, r"arms\.on\.env: found one"),
        ({"url": "http://h:1"}, {"prefix_cache": "bundled"}, r"allowed with server kind external: none"),
        ({"url": "h:1"}, {}, r"server\.url: found 'h:1'; allowed: an address"),
        ({}, {"url": "http://h:port"}, r"arms\.on\.url: found 'http://h:port'; allowed: an address"),
        (
            {"url": "http://h:1", "model_path": "/nowhere"},
            {},
            r"server\.model_path: found /nowhere, which is no folder",
        ),
    ],
)
def test_what_is_refused(server: dict[str, Any], arm: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        KIND.check(resolve_arm(file := scenario(server, arm, kind="external"), "on"), file)


@pytest.mark.parametrize("other", ["http://h:80", "http://h/", "HTTP://H"])
def test_two_arms_at_one_address_are_refused(other: str) -> None:
    """A copied address would compare a server with itself and find both the same; `order: aa` does so on purpose."""
    both = {"off": {"baseline": True, "url": "http://h"}, "on": {"url": other}}
    file = scenario({}, {}, kind="external", arms=both)
    with pytest.raises(UsageError, match=r"arms\.on\.url: found .*, where arm off is too"):
        KIND.check(resolve_arm(file, "on"), file)
    again = file.against_itself()
    for name in again.arms:
        KIND.check(resolve_arm(again, name), again)


def of_two(off: str, on: str) -> None:
    """Checks two arms at these addresses."""
    both = {"off": {"baseline": True, "url": off}, "on": {"url": on}}
    file = scenario({}, {}, kind="external", arms=both)
    for name in file.arms:
        KIND.check(resolve_arm(file, name), file)


@pytest.mark.parametrize("other", ["http://localhost:8791", "http://0.0.0.0:8791/", "http://[::ffff:127.0.0.1]:8791"])
def test_two_names_of_one_address_are_refused(other: str) -> None:
    """Nobody needs to listen there for that."""
    with pytest.raises(
        UsageError, match=r"arms\.on\.url: found http.*, where arm off is too \(http://127\.0\.0\.1:8791\)"
    ):
        of_two("http://127.0.0.1:8791", other)


def test_two_addresses_of_one_listener_are_refused() -> None:
    """A server that listens everywhere has many, or it listens at some; two servers at one port of two are two."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError, match="where arm off is too"):
            of_two(f"http://127.0.0.1:{port}", f"http://127.0.0.2:{port}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with (
            socket.create_server(("127.0.0.2", port)),
            pytest.raises(UsageError, match="where arm off is too"),
        ):
            of_two(f"http://127.0.0.1:{port}", f"http://127.0.0.2:{port}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; s = socket.create_server(('127.0.0.2', {port})); print(flush=True); input()"
        command = [sys.executable, "-I", "-S", "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"\n"
            of_two(f"http://127.0.0.1:{port}", f"http://127.0.0.2:{port}")
            other.kill()


def test_names_that_do_not_resolve_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an unknown name nor a name server that never answers stops or delays a check."""
    forever = threading.Event()

    def look(host: str, *_: object, **__: object) -> list[Any]:
        if host == "slow":
            forever.wait()
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", look)
    try:
        assert not listening.same_place("http://a:1", "http://b:1")
        assert not listening.same_place("http://a:1", "http://slow:1")
    finally:
        forever.set()


def test_two_names_behind_one_gateway_elsewhere_are_two_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway tells servers apart by the name they are asked for under."""
    # An address for documentation (RFC 5737), which no machine has.
    monkeypatch.setattr(listening, "addresses", lambda _: ("192.0.2.1",))
    assert not listening.same_place("http://off.cluster:80", "http://on.cluster:80")


@pytest.mark.parametrize("other", ["http://other:2", "http://other:1/v2"])
def test_no_name_is_looked_up_where_ports_or_paths_differ(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    looked_up: list[str] = []
    monkeypatch.setattr(listening, "addresses", lambda host: looked_up.append(host) or ())
    of_two("http://name:1", other)
    assert not looked_up


def test_a_python_is_for_the_other_client_alone() -> None:
    """`client: vllm-bench` needs an interpreter with vLLM, also beside a server that is not ours."""
    bench = {**BENCH, "client": "vllm-bench"}
    file = scenario({"python": sys.executable}, {"url": "http://h:1"}, kind="external", benches=(bench,))
    KIND.check(resolve_arm(file, "on"), file)


def test_a_password_in_the_address_is_not_recorded() -> None:
    arm = resolve_arm(scenario({"url": "http://me:hush@127.0.0.1:1"}, {}, kind="external"), "on")
    assert arm.as_dict()["url"] == "http://...@127.0.0.1:1"
