"""What goes wrong is said in one message, with the exit code of the design, and leaves no server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_process import bench, cells, only_run, servers_of, write_scenario


def check_message(errors: str, *parts: str) -> None:
    assert "Traceback" not in errors
    for part in parts:
        assert part in errors


@pytest.mark.parametrize(
    ("fault", "code", "parts"),
    [
        ("never-ready", 5, ("trial r01-1-cache_off", "not ready after 6 s", "server.log")),
        ("wrong-model=other", 5, ("trial r01-1-cache_off", "lists other, not tiny-omni", "server.log")),
        ("drop-metric=vllm:cache_config_info", 4, ("trial r01-1-cache_off", "vllm:cache_config_info", "server.log")),
    ],
    ids=["never ready", "another model", "no proof of the arm"],
)
def test_a_server_that_cannot_be_measured_ends_the_run(
    tmp_path: Path, fault: str, code: int, parts: tuple[str, ...]
) -> None:
    ready = 6.0 if fault == "never-ready" else 60.0
    done = bench("run", write_scenario(tmp_path, fault=fault, ready=ready), "--out", tmp_path / "results")
    assert done.returncode == code, done.stderr
    check_message(done.stderr, *parts, "resume with: bench run --resume")
    assert servers_of(tmp_path) == []


def test_a_server_that_exits_before_it_is_ready(tmp_path: Path) -> None:
    """Here it finds no speech synthesiser on its PATH; its own last words are in the message."""
    scenario = write_scenario(tmp_path)
    scenario.write_text(scenario.read_text().replace("  ready_timeout", "  env: {PATH: /nonexistent}\n  ready_timeout"))
    done = bench("run", scenario, "--out", tmp_path / "results")
    assert done.returncode == 5, done.stderr
    check_message(done.stderr, "trial r01-1-cache_off", "ended with exit status 2 before it was ready", "flite")


def test_a_server_that_dies_makes_its_cells_invalid_and_the_run_goes_on(tmp_path: Path) -> None:
    """The pair is dropped, the trial and its log are named, the other arm is still measured, exit code 4."""
    done = bench("run", write_scenario(tmp_path, on_fault="crash-after=9"), "--out", tmp_path / "results")
    assert done.returncode == 4, done.stderr
    check_message(
        done.stderr, "trial r01-2-cache_on", "died with exit status 42 during bench P256_h94_c1", "server.log"
    )
    run = only_run(tmp_path / "results")
    dead = json.loads((run / "trials/r01-2-cache_on/trial.json").read_text())
    assert dead["status"] == "failed"
    assert dead["stopped_by"] == "died"
    (cell,) = (c for c in cells(run) if (c["cell"]["arm"], c["cell"]["bench"]) == ("cache_on", "P256_h94_c1"))
    assert "the server process died" in cell["cell"]["invalid"]
    assert cell["completed"] + cell["failed"] == 8
    assert cell["failed"] > 0
    report = (run / "report.md").read_text()
    assert "failed trial" in report
    assert "r01-2-cache_on" in report
    assert servers_of(tmp_path) == []


@pytest.mark.parametrize(
    ("fault", "status"),
    [("crash-after=1", "exit status 42"), ("fail-step=1", "exit status 1")],
    ids=["gone", "HTTP 500"],
)
def test_a_server_that_dies_at_its_first_request_is_a_failed_trial(tmp_path: Path, fault: str, status: str) -> None:
    """A death before the first bench costs the trial alone: it has a record without cells, exit code 4."""
    done = bench("run", write_scenario(tmp_path, on_fault=fault), "--only", "MP2_c4", "--out", tmp_path / "results")
    assert done.returncode == 4, done.stderr
    check_message(done.stderr, "trial r01-2-cache_on", status, "the first request", "server.log")
    run = only_run(tmp_path / "results")
    dead = json.loads((run / "trials/r01-2-cache_on/trial.json").read_text())
    assert (dead["status"], dead["benches"], dead["first_request"]) == ("failed", [], None)
    assert {cell["cell"]["arm"] for cell in cells(run)} == {"cache_off"}
    assert "resume with" not in done.stderr


def test_an_absent_series_is_an_invalid_cell_never_a_zero(tmp_path: Path) -> None:
    fault = "drop-metric=vllm:prefix_cache_hits_total"
    done = bench("run", write_scenario(tmp_path, on_fault=fault), "--only", "MP2_c4", "--out", tmp_path / "results")
    assert done.returncode == 4, done.stderr
    run = only_run(tmp_path / "results")
    (cell,) = (c for c in cells(run) if (c["cell"]["arm"], c["cell"]["bench"]) == ("cache_on", "MP2_c4"))
    assert cell["cell"]["hit_rate"] is None
    assert any("vllm:prefix_cache_hits_total" in reason for reason in cell["cell"]["invalid"])


def test_failed_requests_are_counted_and_invalidate(tmp_path: Path) -> None:
    done = bench(
        "run", write_scenario(tmp_path, on_fault="fail-request=8"), "--only", "P256*", "--out", tmp_path / "results"
    )
    assert done.returncode == 4, done.stderr
    run = only_run(tmp_path / "results")
    (cell,) = (c for c in cells(run) if (c["cell"]["arm"], c["cell"]["bench"]) == ("cache_on", "P256_h94_c1"))
    assert (cell["completed"], cell["failed"]) == (7, 1)
    assert any("1 request failed" in reason for reason in cell["cell"]["invalid"])


GOOD = """\
schema: 1
name: x
model: tiny-omni
server: {kind: tiny-omni}
arms: {off: {baseline: true}, on: {args: {enable-prefix-caching: true}}}
rounds: 1
workloads:
  - dataset: random
    table: |
      name shared_prefix random_len output range_ratio concurrency prompts seed
      warm 16 16 2 0.0 1 2 1
      P16  0  16 2 0.0 1 2 1
"""


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("rounds: 1", "round: 1", (":6:", "round", "rounds")),
        ("rounds: 1", "rounds: one", (":6:", "rounds", "'one'")),
        ("P16  0", "warm 0", (":12:", "warm")),
        ("{baseline: true}", "{}", ("baseline",)),
        ("0.0 1 2 1\n      P16", "0.0 1 2\n      P16", (":11:", "warm")),
        ("P16  0  16 2 0.0 1 2 1", "P16  0  16 2 0.0 1 2 1 9", (":12:", "P16")),
        ("name: x", "name: [x", ("YAML",)),
    ],
    ids=["unknown key", "wrong type", "duplicate bench", "no baseline", "missing column", "extra column", "not YAML"],
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_wrong_scenario_gets_one_message(
    tmp_path: Path, command: str, old: str, new: str, parts: tuple[str, ...]
) -> None:
    """It names the file, the line or key, what was found and what is allowed; exit code 2; nothing is started."""
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    done = bench(command, path)
    assert done.returncode == 2
    assert done.stdout == ""
    check_message(done.stderr, str(path), "found", "allowed", *parts)
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_a_good_scenario_checks(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    assert bench("check", path).returncode == 0


@pytest.mark.parametrize("command", [["report"], ["run", "--resume"]])
def test_a_folder_that_is_no_run_gets_one_message(tmp_path: Path, command: list[str]) -> None:
    done = bench(*command, tmp_path)
    assert done.returncode == 2
    check_message(done.stderr, str(tmp_path), "manifest.json")
