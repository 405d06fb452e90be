"""An arm's overlay: where its base is found, what its stages get, what of it is lost, and the file that is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.errors import UsageError
from harness.scenario import Scalar, load_scenario
from harness.servers.arm import ResolvedArm
from harness.servers.deploy import Installation, arm_deploy, installation, write_overlay
from harness.servers.deploy.merge import flatten
from harness.servers.deploy.profile import load_profile
from harness.servers.deploy.resolve import resolve

PROFILES = Path(__file__).parent / "deploy_profiles"
SHIPPED = Installation(version="0.30.0", folder=PROFILES.parent, platform="cuda")


def arm(
    deploy: dict[str, Any] | None,
    source: Path | None = None,
    args: dict[str, Scalar] | None = None,
    env: dict[str, str] | None = None,
) -> ResolvedArm:
    return ResolvedArm(
        "one", "vllm-omni", args or {}, env or {}, sys.executable, source and str(source), deploy, prefix_cache=None
    )


def switch(value: bool, base: str = "turned_on.yaml", **more: Any) -> dict[str, Any]:
    return {"base_config": base, "stages": [{"stage_id": 0, "enable_prefix_caching": value, **more}]}


@pytest.fixture
def shipped(tmp_path: Path) -> Installation:
    """An installed package whose deploy folder holds our profiles."""
    (tmp_path / "vllm_omni").mkdir()
    (tmp_path / "vllm_omni" / "deploy").symlink_to(PROFILES)
    return Installation(version="0.30.0", folder=tmp_path / "vllm_omni", platform="cuda")


def test_an_overlay_is_resolved_over_what_the_interpreter_ships(shipped: Installation) -> None:
    """Its own values win, the base fills in, and the arm says so of stage 0's cache."""
    off = arm_deploy(arm(switch(False, block_size=32)), found=shipped)
    assert off.expects_caching is False
    assert off.block_size == 32
    assert off.setting("max_num_seqs") == 64
    assert off.setting("enable_prefix_caching", 1) is True
    assert off.stages[0].sources["enable_prefix_caching"] == "deploy"
    assert off.missing is None
    assert not off.lost


def test_an_overlay_that_a_base_beats_is_reported(shipped: Installation) -> None:
    """On the device whose section the base has, and on no other."""
    on = arm_deploy(arm(switch(True)), platform="npu", found=shipped)
    assert on.expects_caching is False
    assert on.lost == ("stage 0 enable_prefix_caching: true is overridden by base.yaml platforms.npu: false",)
    assert not arm_deploy(arm(switch(True)), platform="cuda", found=shipped).lost


@pytest.mark.parametrize(
    ("deploy", "args", "lost"),
    [
        (
            {"base_config": "base.yaml", "enable_prefix_caching": False},
            {},
            "enable_prefix_caching: false for every stage is overridden in stage 1 by base.yaml: true",
        ),
        (switch(True), {"enable-prefix-caching": False}, "is overridden by args enable-prefix-caching: false"),
        (
            {"base_config": "extras.yaml", "stages": [{"stage_id": 0, "max_model_len": 512}]},
            {},
            "stage 0 max_model_len: 512 is overridden by extras.yaml: 4096",
        ),
        (switch(True, enable_prefix_cachin=True), {}, "stage 0 enable_prefix_cachin is no setting of a stage"),
        ({"base_config": "base.yaml", "stages": [{"stage_id": 7}]}, {}, "stage 7 is in no profile it builds on"),
        (
            {"base_config": "base.yaml", "platforms": {"cuda": {"stages": [{"stage_id": 7, "max_num_seqs": 1}]}}},
            {},
            "platforms.cuda.stages: stage 7 has no entry under stages",
        ),
    ],
)
def test_what_an_overlay_says_in_vain_is_reported(
    shipped: Installation, deploy: dict[str, Any], args: dict[str, Scalar], lost: str
) -> None:
    """Beaten by a stage, by the command line, by the base's engine_args; misspelt; for a stage that is not there."""
    found = arm_deploy(arm(deploy, args=args), found=shipped).lost
    assert any(lost in sentence for sentence in found), found


def test_a_checkout_comes_before_the_interpreter(tmp_path: Path, shipped: Installation) -> None:
    """An arm's `source` is the code that runs, so its profiles are those that count."""
    checkout = tmp_path / "checkout" / "vllm_omni" / "deploy"
    checkout.mkdir(parents=True)
    (checkout / "turned_on.yaml").write_text("stages: [{stage_id: 0, max_num_seqs: 7}]\n", encoding="utf-8")
    assert arm_deploy(arm(switch(True), tmp_path / "checkout"), found=shipped).setting("max_num_seqs") == 7
    # What the checkout lacks the interpreter may have.
    assert (
        arm_deploy(arm(switch(True, "base.yaml"), tmp_path / "checkout"), found=shipped).setting("max_num_seqs") == 64
    )


def test_a_base_that_is_nowhere_leaves_the_overlay_alone(tmp_path: Path) -> None:
    """A check goes on with what the overlay says, and guesses no default; a run is refused with one message."""
    alone = arm_deploy(arm(switch(True)), found=Installation())
    assert alone.missing is not None
    assert alone.missing.name == "turned_on.yaml"
    assert alone.expects_caching is True
    assert alone.stages[0].settings == {"enable_prefix_caching": True}
    assert (alone.platform, alone.platform_assumed) == ("cuda", True)
    with pytest.raises(
        UsageError, match=r"arms\.one\.deploy: base_config: found turned_on\.yaml, which is not on this"
    ):
        write_overlay(arm(switch(True)), tmp_path, Installation())


def test_without_an_overlay_only_the_command_line_speaks() -> None:
    """The model's own profile is the server's to choose."""
    bare = arm_deploy(arm(None, args={"enable-prefix-caching": True, "block-size": 16}), found=Installation())
    assert (bare.expects_caching, bare.block_size) == (True, 16)
    assert arm_deploy(arm(None), found=Installation()).expects_caching is None


def test_the_written_overlay_means_the_same_to_the_server(tmp_path: Path, shipped: Installation) -> None:
    """The file names its base absolutely, and vLLM-Omni's way of loading it finds every part."""
    file = write_overlay(arm(switch(False)), tmp_path, shipped)
    assert file is not None
    base = yaml.safe_load(file.read_text(encoding="utf-8"))["base_config"]
    assert Path(base).is_absolute()
    assert resolve(flatten(load_profile(file)), "cuda")[0].settings["enable_prefix_caching"] is False
    assert write_overlay(arm(None), tmp_path, shipped) is None


def test_a_base_of_our_own_over_a_shipped_one_is_copied(tmp_path: Path, shipped: Installation) -> None:
    """vLLM-Omni looks for a base beside the file alone, so a link that it would not find is written anew."""
    ours, trial = tmp_path / "deploy", tmp_path / "trial"
    ours.mkdir()
    trial.mkdir()
    (ours / "small.yaml").write_text(
        "base_config: turned_on.yaml\nstages: [{stage_id: 0, max_num_seqs: 3}]\n", encoding="utf-8"
    )
    overlay = arm(switch(True, str(ours / "small.yaml")))
    file = write_overlay(overlay, trial, shipped)
    assert file is not None
    assert sorted(path.name for path in trial.iterdir()) == ["deploy-1-small.yaml", "deploy.yaml"]
    # No folders to search: every base is found as vLLM-Omni itself finds it.
    written = resolve(flatten(load_profile(file)), "npu")
    meant = arm_deploy(overlay, "npu", shipped).stages
    assert [stage.settings for stage in written] == [stage.settings for stage in meant]


def test_a_scenario_places_the_bases_that_lie_by_it(tmp_path: Path) -> None:
    """A bare name is looked for in deploy/, a path from the file's folder; scenarios are called like profiles."""
    text = """\
schema: 1
name: placed
model: some
server: {kind: vllm-omni, deploy: {base_config: NAME}}
arms: {only: {baseline: true}}
order: alternate
rounds: 1
workloads:
  - dataset: random
    table: |
      name shared_prefix random_len output range_ratio concurrency prompts seed
      P    0             16         4      0.0         1           1       1
"""
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "mine.yaml").write_text("stages: []\n", encoding="utf-8")
    (tmp_path / "model.yaml").write_text("stages: []\n", encoding="utf-8")
    for name, placed in (
        ("mine.yaml", str(tmp_path / "deploy" / "mine.yaml")),
        ("./model.yaml", str(tmp_path / "model.yaml")),
        ("model.yaml", "model.yaml"),
        ("shipped.yaml", "shipped.yaml"),
    ):
        path = tmp_path / "scenario.yaml"
        path.write_text(text.replace("NAME", name), encoding="utf-8")
        deploy = load_scenario(path).server.deploy
        assert deploy is not None
        assert Path(deploy["base_config"]) == Path(placed)


def test_an_interpreter_is_asked_without_importing(tmp_path: Path) -> None:
    """A package that cannot even be imported is found, and its profiles and device with it."""
    package = tmp_path / "vllm_omni"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    for name, version in (("vllm-omni", "0.30.0"), ("torch", "2.13.0+rocm7.1")):
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    found = installation(arm(None, env={"PYTHONPATH": str(tmp_path)}))
    assert found.problem is None
    assert found.profiles == package / "deploy"
    assert (found.version, found.platform) == ("0.30.0", "rocm")


def test_an_interpreter_that_is_none_is_told_not_raised() -> None:
    """A check goes on without it."""
    absent = ResolvedArm("one", "vllm-omni", {}, {}, "/nowhere/python", None, None, None)
    assert "/nowhere/python" in (installation(absent).problem or "")
