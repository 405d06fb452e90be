from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_interpreter import fake_interpreter
from server_scenario import scenario

from harness.errors import UsageError
from harness.scenario import Scenario
from harness.servers.arm import resolve_arm
from harness.servers.vllm_omni import VllmOmni
from harness.telemetry.scrape import parse

KIND = VllmOmni()


def stage0(**settings: Any) -> dict[str, Any]:
    return {"deploy": {"stages": [{"stage_id": 0, **settings}]}}


def omni_scenario(server: dict[str, Any], arm: dict[str, Any], **more: Any) -> Scenario:
    return scenario(server, arm, kind="vllm-omni", **more)


def test_the_command_names_the_overlay_and_the_environment_the_cache(tmp_path: Path) -> None:
    """The arm's overlay lies in the trial's folder, its base by an absolute path; PREFIX_CACHE is the arm's alone."""
    profiles = tmp_path / "vllm_omni"
    (profiles / "deploy").mkdir(parents=True)
    base = profiles / "deploy" / "base.yaml"
    base.write_text("stages: [{stage_id: 0, block_size: 16}]\n")
    python = fake_interpreter(tmp_path, "vllm", profiles=profiles, versions={"vllm-omni": "0.30.0"})
    file = omni_scenario(
        {"python": python, "model_path": "/m", "args": {"log-stats": True}, "deploy": {"base_config": "base.yaml"}},
        {**stage0(enable_prefix_caching=True), "prefix_cache": "builtin"},
    )
    launch = KIND.command(resolve_arm(file, "on"), file, 4321, tmp_path)
    overlay = tmp_path / "deploy.yaml"
    words = ("-m", "vllm_omni.entrypoints.cli.main", "serve", "/m", "--omni", "--deploy-config", str(overlay))
    assert launch.argv[:8] == (python, *words)
    assert "--log-stats" in launch.argv
    assert yaml.safe_load(overlay.read_text()) == {
        "base_config": str(base),
        "stages": [{"stage_id": 0, "enable_prefix_caching": True}],
    }
    assert launch.env["PREFIX_CACHE"] == "builtin"
    assert KIND.command(resolve_arm(file, "off"), file, 1, tmp_path).env["PREFIX_CACHE"] == ""
    assert (KIND.expects_caching(resolve_arm(file, "on")), KIND.block_size(resolve_arm(file, "on"))) == (True, 16)
    assert KIND.expects_caching(resolve_arm(file, "off")) is None


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ({"env": {"PREFIX_CACHE": "bundled"}}, r"arms\.on\.env: found PREFIX_CACHE; allowed"),
        ({"prefix_cache": "bundled", **stage0(enable_prefix_caching=False)}, r"found bundled with prefix caching off"),
        ({"prefix_cache": "bundled", "deploy": {"model_runner": "v2"}}, r"arms\.on: found model_runner v2"),
        ({"prefix_cache": "bundled", "env": {"VLLM_PLUGINS": "other"}}, r"found VLLM_PLUGINS='other', which leaves"),
        (stage0(block_size="x"), r"block size: found 'x'"),
        (stage0(enable_prefix_caching="false"), r"stage 0: enable_prefix_caching: found 'false'; allowed"),
        ({"env": {"A": "${NO_SUCH_VARIABLE}"}}, r"which is not set"),
    ],
)
def test_what_is_refused_of_the_settings(tmp_path: Path, arm: dict[str, Any], message: str) -> None:
    file = omni_scenario({"python": fake_interpreter(tmp_path)}, arm)
    with pytest.raises(UsageError, match=message):
        KIND.check(resolve_arm(file, "on"), file)


def test_a_plugin_on_the_list_is_allowed(tmp_path: Path) -> None:
    arm = {"prefix_cache": "bundled", "env": {"VLLM_PLUGINS": "other,prefix_cache"}}
    file = omni_scenario({"python": fake_interpreter(tmp_path)}, arm)
    KIND.check(resolve_arm(file, "on"), file)


def test_what_is_not_installed_is_told_before_a_server_starts(tmp_path: Path) -> None:
    """No vLLM-Omni, no plugin of ours beside it, no base profile: one message each."""
    empty = omni_scenario({"python": fake_interpreter(tmp_path, "vllm")}, {})
    with pytest.raises(UsageError, match=r"which cannot import vllm_omni: .*setup_vllm_omni_cpu\.sh"):
        KIND.check_installed(resolve_arm(empty, "on"), empty)
    python = fake_interpreter(tmp_path, "vllm", "vllm_omni", plugins=("other",))
    plain = omni_scenario({"python": python}, {"prefix_cache": "bundled"})
    KIND.check_installed(resolve_arm(plain, "off"), plain)
    lacking = r"without this project's plugin \(of vllm_omni\.general_plugins it has other"
    with pytest.raises(UsageError, match=rf"{lacking}.* \(at .*: .+ -m pip install --no-deps \.\)"):
        KIND.check_installed(resolve_arm(plain, "on"), plain)
    based = omni_scenario({"python": python}, {"deploy": {"base_config": "nowhere.yaml"}})
    with pytest.raises(UsageError, match=r"base_config: found nowhere\.yaml"):
        KIND.check_installed(resolve_arm(based, "on"), based)


def test_late_statistics_are_fetched_by_a_probe() -> None:
    """More than a second of rest, a probe, and the front end's own gauges: a stage's are as old as its last word."""
    rule = KIND.settle_rule(parse(""))
    assert rule.publish_delay_s > 1.0
    assert rule.probe
    assert all(gauge.startswith("vllm_omni:") for gauge in rule.gauges)
