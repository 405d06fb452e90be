from pathlib import Path

import pytest

from harness.errors import ArmMismatch, RecordError
from harness.telemetry.proof import PROOF, read_proofs, verify_proof
from prefix_cache.integrations import exposition

LINE = exposition.proof_line(stage=0, metrics="http://127.0.0.1:4321/metrics", engine="vllm-omni-0.30.0")


def log_of(folder: Path, *lines: str) -> Path:
    path = folder / "server.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_the_line_is_the_one_that_the_cache_writes() -> None:
    assert exposition.PROOF == PROOF


def test_a_proof_is_read_out_of_a_coloured_and_prefixed_line(tmp_path: Path) -> None:
    """Loggers put a process and colours around it; every worker's line counts, in the log's order."""
    log = log_of(tmp_path, "starting", f"\x1b[0;36m(Worker pid=9)\x1b[0m INFO [x.py:1] {LINE}\x1b[0m", LINE, "up")
    first, second = read_proofs(log)
    assert first == second
    assert first.page == "http://127.0.0.1:4321/metrics"
    assert (first.facts["stage"], first.facts["engine"]) == ("0", "vllm-omni-0.30.0")


def test_an_arm_that_fell_back_is_refused_with_what_the_log_says(tmp_path: Path) -> None:
    """No proof for a bundled arm: the likely causes, and the log's own lines about plugins."""
    failed = "ERROR Failed to load plugin prefix_cache: No module named 'prometheus_client'"
    log = log_of(tmp_path, "engine config enable_prefix_caching=True", failed, *["Loading plugin x"] * 9)
    with pytest.raises(ArmMismatch, match="arm on asks for prefix_cache: bundled, but no worker says") as error:
        verify_proof("on", True, log)
    message = str(error.value)
    for part in ("VLLM_PLUGINS", "model_runner v2", "not installed", failed, "and 6 more"):
        assert part in message
    assert "enable_prefix_caching" not in message
    with pytest.raises(ArmMismatch, match="the log has no line about plugins"):
        verify_proof("on", True, log_of(tmp_path, "up"))


def test_a_cache_that_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArmMismatch, match=r"arm off does not ask for prefix_cache: bundled.*stage=0"):
        verify_proof("off", False, log_of(tmp_path, LINE))


def test_proof_where_it_is_wanted_and_none_where_not(tmp_path: Path) -> None:
    assert len(verify_proof("on", True, log_of(tmp_path, LINE))) == 1
    assert verify_proof("off", False, log_of(tmp_path, "up")) == ()
    with pytest.raises(RecordError, match="cannot be read"):
        read_proofs(tmp_path / "none.log")
