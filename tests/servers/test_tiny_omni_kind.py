import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fake_launch import MakeLaunch, logged_pids, wait_for, wait_for_log
from server_scenario import BENCH, scenario

from harness.errors import UsageError
from harness.servers.arm import resolve_arm
from harness.servers.kinds import SettleRule, resolve_server, server_kind
from harness.servers.process import ServerProcess
from harness.telemetry.scrape import parse

KIND = server_kind("tiny-omni")


def test_command(tmp_path: Path) -> None:
    """Arguments become flags, booleans bare or negated ones; the log is the trial's; our environment is explicit."""
    file = scenario(
        {"args": {"enable-prefix-caching": False, "block-size": 32}, "env": {"OMP_NUM_THREADS": "1"}},
        {"args": {"enable-prefix-caching": True}},
    )
    launch = KIND.command(resolve_arm(file, "on"), file, 4321, tmp_path)
    address = ("--host", "127.0.0.1", "--port", "4321", "--served-model-name", "m")
    flags = ("--no-audio", "--enable-prefix-caching", "--block-size", "32")
    assert launch.argv == (sys.executable, "-m", "harness.tiny_omni", *address, *flags)
    assert launch.env == {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    assert (launch.cwd, launch.log_path) == (tmp_path, tmp_path / "server.log")
    assert (launch.base_url, launch.port, launch.model_name) == ("http://127.0.0.1:4321", 4321, "m")
    assert "--no-enable-prefix-caching" in KIND.command(resolve_arm(file, "off"), file, 4321, tmp_path).argv


def test_deploy_overlay_is_written(tmp_path: Path) -> None:
    """The merged overlay lies in the trial's folder and is named on the command line."""
    file = scenario({"deploy": {"a": 1}}, {"deploy": {"stages": [{"stage_id": 0, "block_size": 8}]}})
    launch = KIND.command(resolve_arm(file, "on"), file, 1, tmp_path)
    assert launch.argv[-2:] == ("--deploy-config", str(tmp_path / "deploy.yaml"))
    written = yaml.safe_load((tmp_path / "deploy.yaml").read_text())
    assert written == {"a": 1, "stages": [{"stage_id": 0, "block_size": 8}]}


def test_interpreter_of_a_virtual_environment_is_not_resolved(tmp_path: Path) -> None:
    """The arm's interpreter is run by the path it was given, link or not."""
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    file = scenario({}, {"python": str(link)})
    arm = resolve_arm(file, "on")
    assert KIND.command(arm, file, 1, tmp_path).argv[0] == str(link)
    assert "numpy" in KIND.versions()


def test_versions_are_those_of_the_arms_interpreter(tmp_path: Path) -> None:
    """Versions come from the interpreter that runs the server: a bare one has none of ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    arm = resolve_arm(scenario({}, {"python": str(tmp_path / "bare" / "bin" / "python")}), "on")
    assert KIND.versions(arm) == {}
    assert KIND.versions()["omni-prefix-bench"]


def test_source_is_the_working_directory(tmp_path: Path) -> None:
    """A checkout's own code runs: `python -m` looks in the working directory first."""
    checkout = tmp_path / "checkout"
    (checkout / "harness" / "tiny_omni").mkdir(parents=True)
    file = scenario({}, {"source": str(checkout)})
    assert KIND.command(resolve_arm(file, "on"), file, 1, tmp_path).cwd == checkout


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ({"python": "/nonexistent/python"}, r"arms\.on\.python: found /nonexistent/python"),
        ({"source": "/nonexistent"}, r"arms\.on\.source: found /nonexistent"),
    ],
)
def test_what_cannot_run(tmp_path: Path, arm: dict[str, str], message: str) -> None:
    """An interpreter or a checkout that is not there is named."""
    file = scenario({}, arm)
    with pytest.raises(UsageError, match=message):
        KIND.command(resolve_arm(file, "on"), file, 1, tmp_path)


@pytest.mark.parametrize(
    ("server", "caching", "block_size"),
    [
        ({}, False, 16),
        ({"args": {"enable-prefix-caching": True, "block-size": 32}}, True, 32),
        ({"args": {"enable-prefix-caching": False}}, False, 16),
        ({"deploy": {"stages": [{"stage_id": 0, "enable_prefix_caching": True, "block_size": 8}]}}, True, 8),
        ({"deploy": {"stages": [{"stage_id": 1, "enable_prefix_caching": True, "block_size": 8}]}}, False, 16),
        (
            {
                "args": {"enable-prefix-caching": False},
                "deploy": {"stages": [{"stage_id": 0, "enable_prefix_caching": True}]},
            },
            False,
            16,
        ),
    ],
)
def test_expectations(server: dict[str, object], caching: bool, block_size: int) -> None:
    """An argument beats stage 0's overlay, which beats the server's default; other stages do not matter."""
    arm = resolve_arm(scenario(server, {}), "off")
    assert KIND.expects_caching(arm) is caching
    assert KIND.block_size(arm) == block_size


def test_settle_rule() -> None:
    """The reference server publishes every step at once."""
    assert KIND.settle_rule(parse("")) == SettleRule(publish_delay_s=0.0, probe=False)


@pytest.mark.parametrize("value", ["sixteen", 0, True, 1.5])
def test_a_block_size_that_is_none_is_refused(value: object) -> None:
    """What a file says of the block size is checked before anything is computed from it."""
    arm = resolve_arm(scenario({"args": {"block-size": value}}, {}), "off")
    with pytest.raises(UsageError, match="block size: found"):
        KIND.block_size(arm)


def test_stage0_is_the_server_process(make_launch: MakeLaunch) -> None:
    """Stage 0 is the guard's first child, even when the guard has adopted another, which it reaps."""
    launch = make_launch("--orphans", "1")
    with ServerProcess.start(launch, 1.0) as server:
        wait_for_log(launch, "listening")
        (orphan,) = logged_pids(launch, "orphan")
        wait_for(lambda: Path(f"/proc/{orphan}/stat").read_text().split()[3] == str(server.guard_pid), "adoption")
        assert KIND.stage0_pid(server.guard_pid) == server.pid
        os.kill(orphan, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{orphan}").exists(), "the guard to reap it")


def stage(**settings: object) -> dict[str, object]:
    return {"deploy": {"stages": [{"stage_id": 0, **settings}]}}


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ({"args": {"no-such": 1}}, r"arms\.on: found unrecognized arguments: --no-such 1; allowed"),
        ({"args": {"help": True}}, r"arms\.on: found unrecognized arguments: --help; allowed"),
        ({"args": {"block-size": "x"}}, r"arms\.on: found argument --block-size: invalid int value: 'x'; allowed"),
        ({"args": {"block-size": True}}, r"arms\.on: found argument --block-size: expected one argument"),
        ({"args": {"block-size": 0}}, r"arms\.on: block_size: found 0; allowed: more than 0"),
        ({"args": {"enable-prefix-caching": "no"}}, r"arms\.on: found unrecognized arguments: no; allowed"),
        ({"args": {"fault": "none-such"}}, r"arms\.on: --fault: found 'none-such'; allowed"),
        ({"deploy": {"connectors": {}}}, r"arms\.on: deploy: found connectors; allowed: the one key stages"),
        ({"deploy": {"stages": [{"stage_id": 1}]}}, r"arms\.on: deploy: stages: found stage_id 1; allowed"),
        (stage(no_such=1), r"arms\.on: deploy: stages\[0\]: found 'no_such'; allowed: stage_id, "),
        (stage(block_size="16"), r"deploy: stages\[0\]\.block_size: found '16'; allowed: a whole number"),
        (stage(hidden_size=100), r"arms\.on: hidden_size: found 100; allowed: multiples"),
        ({"python": "/"}, r"arms\.on\.python: found /, which is no program; allowed"),
        ({"python": __file__}, r"arms\.on\.python: found .*, which is no program; allowed"),
        ({"python": "/bin/true"}, r"arms\.on\.python: found /bin/true, which is no Python"),
        ({"python": "/bin/false"}, r"arms\.on\.python: found /bin/false, which does not run"),
        ({"source": "/"}, r"arms\.on\.source: found /, which holds no harness/tiny_omni"),
        ({"source": "x" * 5000}, r"arms\.on\.source: found x"),
        ({"env": {"A": "${NO_SUCH_VARIABLE}"}}, r"arms\.on\.env\.A: found \$\{NO_SUCH_VARIABLE\}, which is not set"),
    ],
)
def test_what_a_server_would_refuse_is_found_before(arm: dict[str, object], message: str) -> None:
    """The arm's check names the setting, what was found and what is allowed."""
    file = scenario({}, arm)
    KIND.check(resolve_arm(file, "off"), file)
    with pytest.raises(UsageError, match=message):
        KIND.check(resolve_arm(file, "on"), file)


@pytest.mark.parametrize("model", ["", "-x"])
def test_a_model_that_reads_as_an_option_is_refused(model: str) -> None:
    """The name is an argument of the server."""
    file = scenario({}, {}, model=model)
    with pytest.raises(UsageError, match="model: found"):
        KIND.check(resolve_arm(file, "on"), file)


def test_a_run_names_the_file_of_an_arm_it_refuses() -> None:
    """Kind and arms are resolved and checked in one step, whose message begins with the file."""
    kind, arms = resolve_server(scenario({}, {}), Path("s.yaml"))
    assert type(kind) is type(KIND)
    assert list(arms) == ["off", "on"]
    with pytest.raises(UsageError, match=r"^s\.yaml: arms\.on: found unrecognized"):
        resolve_server(scenario({}, {"args": {"no-such": 1}}), Path("s.yaml"))


def test_speech_is_switched_on_only_where_a_bench_speaks(tmp_path: Path) -> None:
    """A text-only scenario needs no speech program; one that speaks keeps speech on, and an arm's own word counts."""
    speaking = scenario({}, {}, benches=({**BENCH, "modalities": ("text", "audio")},))
    assert "--no-audio" not in KIND.command(resolve_arm(speaking, "on"), speaking, 1, tmp_path).argv
    told = scenario({}, {"args": {"audio": True}})
    assert "--no-audio" in KIND.command(resolve_arm(told, "off"), told, 1, tmp_path).argv
    assert "--no-audio" not in KIND.command(resolve_arm(told, "on"), told, 1, tmp_path).argv
    silenced = speaking.model_copy(update={"arms": scenario({}, {"args": {"audio": False}}).arms})
    with pytest.raises(UsageError, match=r"arms\.on: found no audio; allowed: audio"):
        KIND.check(resolve_arm(silenced, "on"), silenced)


def test_the_check_loads_no_torch() -> None:
    """Arguments are judged without the engine."""
    code = "import sys, harness.servers.tiny_omni; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
