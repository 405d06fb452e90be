import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_launch import MakeLaunch, runs, wait_for_log
from server_scenario import BENCH, scenario

from harness.errors import UsageError
from harness.servers.arm import resolve_arm
from harness.servers.external import External, listener
from harness.servers.kinds import SettleRule
from harness.servers.process import ServerProcess, recover
from harness.servers.ready import wait_ready
from harness.servers.vllm_omni import SETTLE_RULE
from harness.telemetry.memory import MemorySampler
from harness.telemetry.scrape import parse

KIND = External()


async def test_attaching_and_leaving_touches_nothing(make_launch: MakeLaunch, tmp_path: Path) -> None:
    """Its process is found by its port, memory is read from it, and it runs on after the stop."""
    theirs = make_launch(trial="theirs")
    folder = tmp_path / "r01-1-on"
    folder.mkdir()
    with ServerProcess.start(theirs, 1.0) as stranger:
        wait_for_log(theirs, "listening")
        file = scenario({}, {"url": f"{theirs.base_url}/"}, kind="external")
        arm = resolve_arm(file, "on")
        KIND.check(arm, file)
        launch = KIND.command(arm, file, 1, folder)
        assert (launch.argv, launch.base_url, launch.port) == ((), theirs.base_url, theirs.port)
        with KIND.start(launch, 1.0) as server:
            async with aiohttp.ClientSession() as session:
                assert await wait_ready(server, launch, session, timeout=30.0) >= 0.0
            assert (server.pid, server.ours) == (stranger.pid, False)
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


def test_a_python_is_for_the_other_client_alone() -> None:
    """`client: vllm-bench` needs an interpreter with vLLM, also beside a server that is not ours."""
    bench = {**BENCH, "client": "vllm-bench"}
    file = scenario({"python": sys.executable}, {"url": "http://h:1"}, kind="external", benches=(bench,))
    KIND.check(resolve_arm(file, "on"), file)


def test_a_password_in_the_address_is_not_recorded() -> None:
    arm = resolve_arm(scenario({"url": "http://me:hush@127.0.0.1:1"}, {}, kind="external"), "on")
    assert arm.as_dict()["url"] == "http://...@127.0.0.1:1"
