"""Our resolver of deploy profiles against vLLM-Omni's own: its tables of names, every profile it ships, and ours."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.servers.deploy import fields
from harness.servers.deploy.command_line import read_command_line
from harness.servers.deploy.defaults import ask_resolver, compare, defaults_of_python
from harness.servers.deploy.fields import PLATFORMS
from harness.servers.deploy.merge import flatten
from harness.servers.deploy.profile import load_profile
from harness.servers.deploy.resolve import ResolvedStage, resolve

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "tests" / "servers" / "deploy_profiles"
SET_UP = "scripts/setup_vllm_omni_cpu.sh"

_TABLES = """
import json, sys
from dataclasses import fields
import vllm_omni.config.omni_config as omni
import vllm_omni.config.stage_config as stage
from vllm_omni.engine.arg_utils import SHARED_FIELDS, internal_blacklist_keys
declared = set(stage._STAGE_DEPLOY_FIELDS)
own = omni._LLM_STAGE_ENGINE_FIELDS
typed = omni._global_stage_cli_fields()
tables = {
    "DECLARED": declared,
    "OWN_ATTRIBUTES": {field.name for field in fields(stage.StageDeployConfig)} - declared,
    "RESERVED": stage._STAGE_RESERVED_KEYS,
    "DEEP_MERGED": stage._DEEP_MERGE_KEYS,
    "PIPELINE_WIDE": stage.PIPELINE_WIDE_ENGINE_FIELDS,
    "STAGE_METADATA": omni._LEGACY_STAGE_METADATA_EXTRA_FIELDS,
    "COMMAND_LINE": typed & own,
    "OFF_COMMAND_LINE": own - typed,
    "NEVER_PER_STAGE": (internal_blacklist_keys() | SHARED_FIELDS) - stage.deploy_runtime_override_keys(),
    "ENGINE": omni._STAGE_ENGINE_FIELDS | declared,
}
open(sys.argv[1], "w").write(json.dumps({name: sorted(names) for name, names in tables.items()}))
"""


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter that has vLLM-Omni."""
    named = os.environ.get("OMNI_PREFIX_BENCH_VLLM_OMNI_PYTHON")
    path = Path(named) if named else ROOT / ".venvs" / "vllm-omni-cpu" / "bin" / "python"
    assert path.exists(), f"no {path}: make it with {SET_UP}"
    return str(path)


def test_the_tables_of_names_are_those_of_the_installed_version(python: str, tmp_path: Path) -> None:
    """Every name that our rules know as data is what vLLM-Omni's code has."""
    subprocess.run(
        [python, "-P", "-c", _TABLES, str(tmp_path / "tables")], check=True, timeout=300, capture_output=True
    )
    tables = json.loads((tmp_path / "tables").read_text(encoding="utf-8"))
    ours = {name: sorted(getattr(fields, name)) for name in tables}
    assert ours == tables


def test_every_shipped_profile_resolves_alike_on_every_device(python: str) -> None:
    """No disagreement in any setting that is compared, over hundreds of (profile, device, stage) triples."""
    defaults = defaults_of_python(python, (*PLATFORMS, "cpu"))
    assert defaults.version == fields.READ_FROM
    assert not defaults.disagreements
    assert defaults.compared > 1000
    refused = sum(entry.refused is not None for entry in defaults.profiles)
    print(
        f"\nvLLM-Omni {defaults.version}: {len({entry.profile for entry in defaults.profiles})} profiles x "
        f"{len(defaults.platforms)} devices, {defaults.compared} (profile, device, stage) triples agree, "
        f"{refused} (profile, device) refused by vLLM-Omni for their pipeline"
    )


@pytest.mark.parametrize(
    ("args", "arguments"),
    [
        ({}, {}),
        (
            {
                "enable-prefix-caching": True,
                "max-num-seqs": 5,
                "compilation-config": '{"cudagraph_mode": "NONE"}',
                "async-chunk": False,
                "block-size": 48,
                "stage-overrides": '{"0": {"max_num_seqs": 3}, "1": {"enable_prefix_caching": false}}',
            },
            {
                "enable_prefix_caching": True,
                "max_num_seqs": 5,
                "compilation_config": {"cudagraph_mode": "NONE"},
                "async_chunk": False,
                "block_size": 48,
                "stage_0_max_num_seqs": 3,
                "stage_1_enable_prefix_caching": False,
            },
        ),
    ],
)
def test_our_own_profiles_resolve_alike(python: str, args: dict[str, Any], arguments: dict[str, Any]) -> None:
    """The profiles that lock the rules mean to vLLM-Omni what they mean here, with a command line and without."""
    theirs = ask_resolver(python, PROFILES, PLATFORMS, arguments)
    command_line = read_command_line(args)
    seen = 0
    for name, by_platform in theirs["profiles"].items():
        for platform, told in by_platform.items():
            ours: tuple[ResolvedStage, ...] | UsageError
            try:
                ours = resolve(flatten(load_profile(PROFILES / name)), platform, command_line)
            except UsageError as error:
                ours = error
            assert isinstance(ours, UsageError) == ("refused" in told), (name, platform)
            assert not list(compare(name, platform, ours, told))
            by_id = {} if isinstance(ours, UsageError) else {stage.stage_id: stage.settings for stage in ours}
            for stage in told.get("stages", ()):
                mine, other = by_id[stage["stage_id"]], stage["settings"]
                for key in ("dtype", "kv_cache_dtype", "devices", "default_sampling_params"):
                    assert key not in mine or mine[key] == other[key], (name, platform, key)
                seen += 1
    # 5 profiles of 2 stages on 5 devices, less the one device that refuses one.
    assert seen == 2 * (5 * len(PLATFORMS) - 1)
