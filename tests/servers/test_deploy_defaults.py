"""`bench defaults`: the table of shipped profiles, and the comparison of two resolvers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import UsageError
from harness.servers.deploy.defaults import compare, defaults_of_source
from harness.servers.deploy.defaults_text import render_defaults
from harness.servers.deploy.merge import flatten
from harness.servers.deploy.profile import load_profile
from harness.servers.deploy.resolve import ResolvedStage, resolve

PROFILES = Path(__file__).parent / "deploy_profiles"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "vllm_omni").mkdir()
    (tmp_path / "vllm_omni" / "deploy").symlink_to(PROFILES)
    return tmp_path


def test_a_checkout_gives_a_row_a_profile_and_a_column_a_device(checkout: Path) -> None:
    """Off, turned on, off again on one device, inherited, left to the engine, refused: each is seen in its cell."""
    defaults = defaults_of_source(checkout, ("cuda", "npu"))
    text = render_defaults(defaults)
    rows = {cells[0]: cells[1:] for line in text.splitlines() if (cells := line.split())}
    assert rows["base.yaml"] == ["off", "on", "off", "on"]
    assert rows["turned_on.yaml"] == ["on", "on", "off", "on"]
    assert rows["inherited.yaml"] == ["on", "on", "off", "on"]
    assert rows["runner.yaml"] == ["auto", "auto", "refused"]
    assert "refused: runner.yaml on npu: runner.yaml top level: model_runner: found v2" in text
    assert "by this project's resolver alone" in text
    assert defaults.version is None
    assert defaults.compared == 0


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    """One message with what to give."""
    with pytest.raises(UsageError, match=r"--source: found no profile in .*; allowed: a checkout of vLLM-Omni"):
        defaults_of_source(tmp_path)


@pytest.mark.parametrize("where", ["--source", "--python"])
def test_a_device_that_nobody_knows_is_refused(checkout: Path, where: str) -> None:
    """As `bench check` does: no column is made up for it."""
    given = str(checkout) if where == "--source" else sys.executable
    done = CliRunner().invoke(app, ["defaults", where, given, "--platform", "cuda", "--platform", "gpu"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == "--platform: found 'gpu'; allowed: cuda, npu, rocm, xpu, musa, cpu"
    assert done.stdout == ""


def told(**settings: Any) -> dict[str, Any]:
    """A stage as vLLM-Omni's resolver tells it."""
    return {"topology": "assumed", "stages": [{"stage_id": 0, "execution": "llm_ar", "settings": settings}]}


def ours() -> tuple[ResolvedStage, ...]:
    return resolve(flatten(load_profile(PROFILES / "turned_on.yaml")), "cuda")


AGREED = {
    "enable_prefix_caching": True,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
    "async_chunk": True,
    "model_runner": "v1",
}


def test_resolvers_that_agree_have_nothing_to_tell() -> None:
    """What the pipeline alone decides (asynchronous scheduling, eager mode) may differ where no profile states it."""
    assert not list(compare("p", "cuda", ours(), told(**AGREED, async_scheduling=True, enforce_eager=False)))


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"enable_prefix_caching": False}, "enable_prefix_caching"),
        ({"enable_prefix_caching": None}, "enable_prefix_caching"),
        ({"block_size": 128}, "block_size"),
        ({"max_num_seqs": 8}, "max_num_seqs"),
        ({"model_runner": "v2"}, "model_runner"),
    ],
)
def test_every_disagreement_is_told(changed: dict[str, Any], setting: str) -> None:
    """Another value, a value that only one of the two has, either way round."""
    (found,) = compare("p", "cuda", ours(), told(**{**AGREED, **changed}))
    assert (found.stage_id, found.setting) == (0, setting)


def test_refusing_what_the_server_takes_is_a_disagreement() -> None:
    """The other way round is not: only the server knows the pipeline."""
    (found,) = compare("p", "cuda", UsageError("no"), told(**AGREED))
    assert found.setting == "refused"
    assert not list(compare("p", "cuda", ours(), {"topology": "named", "refused": "no owner"}))
    assert not list(compare("p", "npu", UsageError("no"), {"topology": "named", "refused": "no runner"}))


def test_without_any_vllm_omni_the_command_says_what_to_give(tmp_path: Path) -> None:
    """Exit 2 and one line."""
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "defaults", "--python", str(tmp_path / "python")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "give --python, an interpreter with vLLM-Omni, or --source, a checkout of it" in done.stderr
    assert len(done.stderr.splitlines()) == 1
