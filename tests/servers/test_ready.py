from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from fake_launch import MakeLaunch, wait_for_log

from harness.errors import ServerLeft, ServerNotReady, WrongModel
from harness.servers.process import ServerProcess
from harness.servers.ready import log_tail, wait_ready


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_time_to_ready_counts_from_the_start(make_launch: MakeLaunch, session: aiohttp.ClientSession) -> None:
    """The time to ready includes the server's own slow start."""
    launch = make_launch("--slow-start", "0.6")
    with ServerProcess.start(launch, 1.0) as server:
        seconds = await wait_ready(server, launch, session, timeout=30.0)
    assert 0.6 <= seconds < 30.0


async def test_server_that_exits_before_ready(make_launch: MakeLaunch, session: aiohttp.ClientSession) -> None:
    """An early exit is reported with its status, the log's path and its last lines."""
    launch = make_launch("--exit-code", "3")
    with (
        ServerProcess.start(launch, 1.0) as server,
        pytest.raises(ServerNotReady, match=r"exit status 3 before it was ready; its log .*r01-1-off/server\.log") as e,
    ):
        await wait_ready(server, launch, session, timeout=30.0)
    assert "  bad weights" in str(e.value)


@pytest.mark.parametrize(
    ("options", "seen"), [(["--slow-start", "600"], "last error"), (["--health", "503"], "/health answered 503")]
)
async def test_server_that_never_becomes_ready(
    make_launch: MakeLaunch, session: aiohttp.ClientSession, options: list[str], seen: str
) -> None:
    """The wait is bounded, and its message says what the server last did and where its log lies."""
    launch = make_launch(*options)
    with (
        ServerProcess.start(launch, 1.0) as server,
        pytest.raises(ServerNotReady, match=rf"not ready after 1 s \({seen}.*server\.log"),
    ):
        await wait_ready(server, launch, session, timeout=1.0)


async def test_another_model_is_refused(make_launch: MakeLaunch, session: aiohttp.ClientSession) -> None:
    """A server that serves another model is not ours; both names are given."""
    launch = make_launch("--model", "other")
    with (
        ServerProcess.start(launch, 1.0) as server,
        pytest.raises(WrongModel, match=r"lists other, not m: .*server\.log"),
    ):
        await wait_ready(server, launch, session, timeout=30.0)


@pytest.mark.parametrize("body", ["hello", '{"models": []}', '{"data": ["m"]}'])
async def test_not_a_model_server(make_launch: MakeLaunch, session: aiohttp.ClientSession, body: str) -> None:
    """Something that answers, but not with a list of models, is somebody else's server."""
    launch = make_launch("--models", body)
    with (
        ServerProcess.start(launch, 1.0) as server,
        pytest.raises(WrongModel, match="not answer with a list of models"),
    ):
        await wait_ready(server, launch, session, timeout=30.0)


async def test_stranger_with_our_model_on_our_port(make_launch: MakeLaunch, session: aiohttp.ClientSession) -> None:
    """A server with the right model that is not the process we started is refused: its numbers are not ours."""
    stranger = make_launch(trial="somebody-else")
    ours = make_launch("--slow-start", "600", port=stranger.port)
    with ServerProcess.start(stranger, 1.0):
        wait_for_log(stranger, "listening")
        server = ServerProcess.start(ours, 1.0)
        try:
            with pytest.raises(WrongModel, match=rf"process {server.pid}\) does not listen there"):
                await wait_ready(server, ours, session, timeout=30.0)
        finally:
            with pytest.raises(ServerLeft, match="still taken"):
                server.stop()


def test_log_tail(tmp_path: Path) -> None:
    """The tail is the last five lines, with the path; an absent or empty log is said to be so."""
    log = tmp_path / "server.log"
    assert "cannot be read: No such file" in log_tail(log)
    log.write_text("")
    assert log_tail(log) == f"; its log {log} is empty"
    log.write_bytes(b"x" * 100_000 + b"\n" + b"".join(b"line %d \xff\n" % i for i in range(9)))
    assert log_tail(log).splitlines()[1:] == [f"  line {i} �" for i in range(4, 9)]
