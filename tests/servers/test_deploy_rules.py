"""What a stage gets, on small profiles of our own: the rules of vLLM-Omni, locked.

`tests/real/test_real_defaults.py` asks vLLM-Omni's own resolver about the same files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.servers.deploy.command_line import read_command_line
from harness.servers.deploy.merge import flatten, plain
from harness.servers.deploy.profile import load_profile
from harness.servers.deploy.resolve import ResolvedStage, resolve

PROFILES = Path(__file__).parent / "deploy_profiles"


def stage(name: str, platform: str | None, stage_id: int = 0, **args: Any) -> ResolvedStage:
    command_line = read_command_line({key.replace("_", "-"): value for key, value in args.items()})
    stages = resolve(flatten(load_profile(PROFILES / f"{name}.yaml")), platform, command_line)
    return next(found for found in stages if found.stage_id == stage_id)


@pytest.mark.parametrize(
    ("profile", "platform", "stage_id", "setting", "value", "source"),
    [
        # Off for the pipeline, and one stage that says otherwise.
        ("base", "cuda", 0, "enable_prefix_caching", False, "base.yaml top level"),
        ("base", "cuda", 1, "enable_prefix_caching", True, "base.yaml"),
        ("base", "cuda", 0, "dtype", "bfloat16", "base.yaml top level"),
        ("base", "cuda", 1, "dtype", "float16", "base.yaml"),
        # A thin overlay turns it on; the base's section for one device beats it there, and only there.
        ("turned_on", "cuda", 0, "enable_prefix_caching", True, "turned_on.yaml"),
        ("turned_on", "npu", 0, "enable_prefix_caching", False, "base.yaml platforms.npu"),
        ("turned_on", None, 0, "enable_prefix_caching", True, "turned_on.yaml"),
        # A section adds to the base's, stage by stage; one for a stage that is not there is ignored.
        ("turned_on", "npu", 0, "max_num_seqs", 8, "base.yaml platforms.npu"),
        ("turned_on", "npu", 1, "max_num_seqs", 2, "turned_on.yaml platforms.npu"),
        ("base", "xpu", 0, "enable_prefix_caching", False, "base.yaml top level"),
        # What a file inherits through two bases is off where the first base's section turns it off.
        ("inherited", "cuda", 0, "enable_prefix_caching", True, "turned_on.yaml"),
        ("inherited", "npu", 0, "enable_prefix_caching", False, "base.yaml platforms.npu"),
        ("inherited", "npu", 0, "max_num_seqs", 8, "base.yaml platforms.npu"),
        ("inherited", "cuda", 0, "max_num_seqs", 4, "inherited.yaml"),
        # Top-level keys replace.
        ("inherited", "cuda", 0, "dtype", "float32", "inherited.yaml top level"),
        ("inherited", "cuda", 0, "async_chunk", False, "inherited.yaml top level"),
        # A mapping of a stage replaces the base's, but for the few that merge key by key.
        ("turned_on", "cuda", 0, "compilation_config", {"mode": 0}, "turned_on.yaml"),
        (
            "turned_on",
            "cuda",
            0,
            "default_sampling_params",
            {"temperature": 0.5, "max_tokens": 4},
            "base.yaml, turned_on.yaml",
        ),
        (
            "turned_on",
            "npu",
            0,
            "default_sampling_params",
            {"temperature": 0.25, "max_tokens": 4},
            "base.yaml platforms.npu, turned_on.yaml",
        ),
        # An extra beats the declared field of its name, and a section's declared field with it.
        ("extras", "npu", 0, "max_num_seqs", 32, "extras.yaml"),
        ("extras", "cuda", 0, "max_num_seqs", 32, "extras.yaml"),
        # A section's undeclared key goes into the extras and wins.
        ("extras", "cuda", 0, "block_size", 64, "extras.yaml platforms.cuda"),
        ("extras", "npu", 0, "block_size", 16, "extras.yaml"),
        # An undeclared key of the stage beats the same key in engine_extras; engine_args beats flat keys.
        ("extras", "npu", 0, "enable_prefix_caching", True, "extras.yaml"),
        ("extras", "npu", 0, "max_model_len", 4096, "extras.yaml"),
        ("extras", "npu", 0, "kv_cache_dtype", "auto", "extras.yaml"),
        ("extras", "npu", 0, "devices", "1", "extras.yaml"),
        # In a section engine_args hides the flat keys beside it; its engine_extras add to the stage's.
        ("extras", "rocm", 0, "enable_prefix_caching", False, "extras.yaml platforms.rocm"),
        ("extras", "rocm", 0, "max_model_len", 4096, "extras.yaml"),
        ("extras", "rocm", 1, "enable_prefix_caching", False, "extras.yaml platforms.rocm"),
        # Null is no value: the pipeline's stands.
        ("extras", "npu", 1, "enable_prefix_caching", True, "extras.yaml top level"),
        # The runner is the pipeline's, a section's before it, a stage's extra before both.
        ("runner", "cuda", 0, "model_runner", "v2", "runner.yaml top level"),
        ("runner", "rocm", 0, "model_runner", "v1", "runner.yaml platforms.rocm"),
        ("runner", "cuda", 1, "model_runner", "v1", "runner.yaml"),
        ("base", "cuda", 0, "model_runner", "v1", "vLLM-Omni's default"),
    ],
)
def test_a_setting_comes_from_where_the_rules_say(
    profile: str, platform: str | None, stage_id: int, setting: str, value: Any, source: str
) -> None:
    """Each row is one rule: file, device, stage, and the value that wins with its place."""
    found = stage(profile, platform, stage_id)
    assert found.settings[setting] == value
    assert found.sources[setting] == source


def test_what_nothing_states_is_left_out() -> None:
    """The engine decides then; the resolver does not guess."""
    assert "enable_prefix_caching" not in stage("runner", "cuda").settings
    assert "block_size" not in stage("base", "cuda").settings


def test_connectors_merge_key_by_key() -> None:
    """A thin overlay changes one number of a connector and keeps the rest."""
    merged = flatten(load_profile(PROFILES / "turned_on.yaml"))
    assert plain(merged.connectors) == {
        "shared": {
            "name": "SharedMemoryConnector",
            "extra": {"codec_chunk_frames": 9, "codec_left_context_frames": 25},
        }
    }


def test_the_command_line_comes_last() -> None:
    """It beats extras and sections, and `stage-overrides` beats it; mappings merge; the rest is not for stages."""
    given: dict[str, Any] = {
        "enable_prefix_caching": True,
        "max_num_seqs": 5,
        "compilation_config": '{"cudagraph_mode": "NONE"}',
        "stage_overrides": '{"0": {"max_num_seqs": 3, "model": "another"}}',
        "stage_init_timeout": 600,
        "no_enable_chunked_prefill": True,
        "async_chunk": False,
    }
    first, second = (stage("turned_on", "npu", stage_id, **given) for stage_id in (0, 1))
    assert (first.settings["enable_prefix_caching"], first.settings["max_num_seqs"]) == (True, 3)
    assert second.settings["max_num_seqs"] == 5
    assert first.settings["compilation_config"] == {"mode": 0, "cudagraph_mode": "NONE"}
    assert first.settings["enable_chunked_prefill"] is False
    assert first.settings["async_chunk"] is False
    assert "model" not in first.settings
    assert "stage_init_timeout" not in first.settings
    assert first.sources["enable_prefix_caching"] == "args enable-prefix-caching"
    assert first.sources["max_num_seqs"] == "args stage-overrides"


def test_a_dotted_argument_is_a_key_of_its_mapping() -> None:
    """`--compilation-config.mode 1` changes one key."""
    stages = resolve(
        flatten(load_profile(PROFILES / "base.yaml")), "cuda", read_command_line({"compilation-config.mode": 1})
    )
    assert stages[0].settings["compilation_config"] == {"mode": 1, "cudagraph_mode": "PIECEWISE"}


def test_a_runner_that_a_device_lacks_is_refused() -> None:
    """vLLM-Omni would not start; the message names file, key, what was found and what is allowed."""
    with pytest.raises(UsageError, match=r"runner\.yaml top level: model_runner: found v2 on npu; allowed: v1"):
        stage("runner", "npu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_runner: v3\n", r"model_runner: found 'v3'; allowed: v1 or v2"),
        ("stages: {stage_id: 0}\n", r"stages: found dict; allowed: a list"),
        ("stages: [{max_num_seqs: 1}]\n", r"stages\[0\]: found .*; allowed: a mapping with a whole number"),
        ("stages: [{stage_id: 0}, {stage_id: 0}]\n", r"stages\[1\]: found stage_id 0 twice"),
        ("stages: [{stage_id: 0, engine_args: 3}]\n", r"stage 0 engine_args: found 3; allowed: a mapping"),
        ("platforms: [npu]\n", r"platforms: found \['npu'\]; allowed: a mapping"),
        ("stage_args: []\n", r"found stage_args; allowed: stages"),
        ("base_config: 3\n", r"base_config: found 3; allowed: the path"),
        ("base_config: nowhere.yaml\n", r"base_config: found nowhere\.yaml, which is not in "),
        ("base_config: profile.yaml\n", r"returns to itself \(profile\.yaml -> profile\.yaml\)"),
    ],
)
def test_what_is_no_profile_is_refused_with_one_message(tmp_path: Path, text: str, message: str) -> None:
    """The file, the key, what was found and what is allowed."""
    path = tmp_path / "profile.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        resolve(flatten(load_profile(path)), "cuda")


def test_a_longer_chain_that_returns_is_refused(tmp_path: Path) -> None:
    """The message shows the way round."""
    for name, base in (("a", "b"), ("b", "c"), ("c", "b")):
        (tmp_path / f"{name}.yaml").write_text(f"base_config: {base}.yaml\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"\(b\.yaml -> c\.yaml -> b\.yaml\)"):
        load_profile(tmp_path / "a.yaml")


@pytest.mark.parametrize("given", ["[1]", '{"x": {}}', '{"0": 3}'])
def test_stage_overrides_of_another_form_are_refused(given: str) -> None:
    """As the server would, before it starts."""
    with pytest.raises(UsageError, match=r"args stage-overrides: found .*; allowed"):
        read_command_line({"stage-overrides": given})
