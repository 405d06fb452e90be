from pathlib import Path
from typing import Any

import pytest
from fake_interpreter import fake_interpreter
from server_scenario import scenario

from harness.errors import ArmMismatch, MetricAbsent
from harness.servers.arm import resolve_arm
from harness.servers.kinds import server_kind
from harness.servers.live import Live, verify
from harness.telemetry.scrape import parse
from prefix_cache.integrations.exposition import proof_line

PAGE = '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{block_size="{}",enable_prefix_caching="{}"}} 1.0\n'
PROOF = proof_line(stage=0, metrics="http://127.0.0.1:4321/metrics")
ENGINE = (
    "(StageEngineCoreProc_stage{0}_replica0 pid=8) INFO Initializing a V1 LLM engine (v0.30.0) with config: "
    "model='m', max_seq_len=64, enable_prefix_caching={1}, seed=0\n"
)


def vllm(folder: Path, arm: dict[str, Any], page: str, log: str = "") -> Live:
    file = scenario({}, arm, kind="vllm")
    path = folder / "server.log"
    path.write_text(log)
    return verify(server_kind("vllm"), resolve_arm(file, "on"), parse(page), path)


def omni(folder: Path, arm: dict[str, Any], log: str) -> Live:
    file = scenario({"python": fake_interpreter(folder)}, arm, kind="vllm-omni")
    path = folder / "server.log"
    path.write_text(log)
    return verify(server_kind("vllm-omni"), resolve_arm(file, "on"), parse(""), path)


def test_the_live_block_size_and_caching_are_the_servers_word(tmp_path: Path) -> None:
    """An arm that leaves both to vLLM is measured by what the server says."""
    live = vllm(tmp_path, {}, PAGE.format(128, "True"))
    assert (live.caching, live.block_size, live.pages) == (True, 128, ())
    assert vllm(tmp_path, {}, PAGE.format(128, "False")).caching is False


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"enable-prefix-caching": False}, "the arm sets enable_prefix_caching=False, but the server says"),
        ({"block-size": 16}, "arm on sets a block size of 16, but the server says block_size=128"),
    ],
)
def test_a_server_that_is_not_its_arm_is_refused(tmp_path: Path, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ArmMismatch, match=message):
        vllm(tmp_path, {"args": args}, PAGE.format(128, "True"))


def test_the_workers_page_comes_from_the_proof(tmp_path: Path) -> None:
    """A bundled arm must prove itself, others must not; pages are read once each."""
    page = PAGE.format(16, "True")
    live = vllm(tmp_path, {"prefix_cache": "bundled"}, page, f"{PROOF}\n{PROOF}\n")
    assert live.pages == ("http://127.0.0.1:4321/metrics",)
    with pytest.raises(ArmMismatch, match="no worker says"):
        vllm(tmp_path, {"prefix_cache": "bundled"}, page, "up\n")
    with pytest.raises(ArmMismatch, match="does not ask for"):
        vllm(tmp_path, {}, page, f"{PROOF}\n")


def test_a_bundled_arm_in_which_nothing_can_hit_is_refused(tmp_path: Path) -> None:
    """The cache's worker may run while vLLM's default leaves prefix caching off: nothing would be compared."""
    page = PAGE.format(16, "False")
    with pytest.raises(ArmMismatch, match="arm on has prefix_cache bundled, but the server says"):
        vllm(tmp_path, {"prefix_cache": "bundled"}, page, f"{PROOF}\n")


def test_every_stage_of_an_overlay_is_checked(tmp_path: Path) -> None:
    """vLLM-Omni is taken at the word of its engines' logs, stage by stage."""
    stages = [
        {"stage_id": 0, "enable_prefix_caching": True, "block_size": 32},
        {"stage_id": 1, "enable_prefix_caching": False, "max_model_len": 64},
    ]
    arm = {"deploy": {"stages": stages}}
    live = omni(tmp_path, arm, ENGINE.format(0, True) + ENGINE.format(1, False))
    assert (live.caching, live.block_size) == (True, 32)
    assert live.config == {"enable_prefix_caching": "True", "max_seq_len": "64"}
    assert live.rule.probe
    with pytest.raises(ArmMismatch, match="sets enable_prefix_caching=False for stage 1"):
        omni(tmp_path, arm, ENGINE.format(0, True) + ENGINE.format(1, True))
    with pytest.raises(ArmMismatch, match="the arm sets enable_prefix_caching=True, but the server says"):
        omni(tmp_path, arm, ENGINE.format(0, False) + ENGINE.format(1, False))
    with pytest.raises(MetricAbsent, match="stage 0 logs no configuration"):
        omni(tmp_path, arm, ENGINE.format(1, False))


def test_an_external_server_claims_nothing(tmp_path: Path) -> None:
    """What it publishes is recorded, its block size used; caching is nobody's claim."""
    kind, log = server_kind("external"), tmp_path / "server.log"
    log.write_text("elsewhere\n")
    arm = resolve_arm(scenario({"url": "http://127.0.0.1:1"}, {}, kind="external"), "on")
    live = verify(kind, arm, parse(PAGE.format(16, "True")), log)
    assert (live.caching, live.block_size, live.config["enable_prefix_caching"]) == (None, 16, "True")
    bare = verify(kind, arm, parse(""), log)
    assert (bare.caching, bare.block_size, bare.config) == (None, None, {})
