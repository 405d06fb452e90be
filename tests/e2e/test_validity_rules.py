"""Every rule of validity, provoked at a real trial: servers that lie, one lie a bench (docs/design.md, section 5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_process import bench, cells, only_run
from lying_scenario import name_of, write_lies

from harness.report import build_report
from harness.store import RunStore

pytestmark = pytest.mark.slow

LIES = ("none", "query", "no query", "hits", "tokens", "audio", "failure", "dropped", "backwards", "absent series")
"""In the order they run. What is absent stays so until another bench asks for something, so it is the last."""


@pytest.fixture(scope="module")
def lied(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """One run with every lie in a bench of its own, by a client that was not starved: its exit code and folder."""
    folder = tmp_path_factory.mktemp("lied")
    scenario = write_lies(folder, LIES)
    for attempt in range(3):
        done = bench("run", scenario, "--out", folder / f"results{attempt}")
        assert "Traceback" not in done.stderr
        run = only_run(folder / f"results{attempt}")
        # A machine that is busy with other tests adds a reason of its own, and a true one.
        if not any("the client was starved" in reason for cell in cells(run) for reason in cell["cell"]["invalid"]):
            break
    return done.returncode, run


def info(run: Path, arm: str, lie: str) -> dict[str, Any]:
    (cell,) = (c for c in cells(run) if (c["cell"]["arm"], c["cell"]["bench"]) == (arm, name_of(lie)))
    return cell


def test_the_run_is_invalid_and_says_which_benches(lied: tuple[int, Path]) -> None:
    """Exit code 4; the honest bench keeps its pair, every other one has lost it, for a reason the report prints."""
    code, run = lied
    assert code == 4
    report = build_report(RunStore.open(run))
    kept = {row.bench.name: len(row.throughput.rounds) for row in report.main}
    assert kept == {name_of(lie): int(lie == "none") for lie in LIES}
    dropped = {note.bench for note in report.notes if note.kind == "dropped pair"}
    assert dropped == {name_of(lie) for lie in LIES[1:]}


@pytest.mark.parametrize(
    ("lie", "arm", "reason"),
    [
        ("query", "off", "the cache is off, yet 96 tokens were looked up and 0 hit in the prefix cache"),
        ("no query", "on", "the cache is on, yet no token was looked up in the prefix cache"),
        ("hits", "on", "stage-0 hit rate 100.0% is outside the ideal 0.0% ± 2.0%"),
        ("failure", "on", "1 request failed; allowed: 0; the first: `HTTP 500: broken`"),
        ("dropped", "on", "1 request failed; allowed: 0; the first: `ServerDisconnectedError: Server disconnected`"),
        ("absent series", "on", "stage 0 publishes no vllm:prefix_cache_hits_total after the bench"),
        ("absent series", "off", "stage 0 publishes no vllm:prefix_cache_hits_total after the bench"),
    ],
)
def test_a_cell_that_cannot_be_trusted_is_invalid(lied: tuple[int, Path], lie: str, arm: str, reason: str) -> None:
    """One reason, in the cell of the arm that lied."""
    assert info(lied[1], arm, lie)["cell"]["invalid"] == [reason]


def test_a_counter_that_went_backwards_is_no_small_number(lied: tuple[int, Path]) -> None:
    """The series is named with both values, and no hit rate is made of it."""
    cell = info(lied[1], "on", "backwards")["cell"]
    (reason,) = cell["invalid"]
    assert reason.startswith('vllm:prefix_cache_queries_total{engine="0"} went backwards, from ')
    assert cell["hit_rate"] is None


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ("tokens", "arms disagree on output tokens: off 12, on 15"),
        ("audio", "arms disagree on audio seconds: off 3.00, on 6.00 (+100.0%; allowed: ±5.0%)"),
    ],
)
def test_arms_that_did_different_work_are_not_compared(lied: tuple[int, Path], lie: str, reason: str) -> None:
    """Both cells are valid by themselves; their pair is not."""
    for arm in ("off", "on"):
        assert info(lied[1], arm, lie)["cell"]["invalid"] == []
    report = build_report(RunStore.open(lied[1]))
    (note,) = [note for note in report.notes if note.bench == name_of(lie)]
    assert (note.kind, note.text) == ("dropped pair", f"round 1, on against off: {reason}")


@pytest.mark.parametrize("lie", ["failure", "dropped"])
def test_nothing_is_retried(lied: tuple[int, Path], lie: str) -> None:
    """The bound on transport retries is none: the server saw each of three requests once, and one is a failure."""
    run = lied[1]
    (log,) = run.glob("trials/*-on/server.log")
    assert log.read_text().count(f"request lie='{lie}'") == 3
    cell = info(run, "on", lie)
    assert (cell["completed"], cell["failed"]) == (2, 1)


def test_the_honest_bench_and_the_other_arm_count(lied: tuple[int, Path]) -> None:
    """A lie in one arm leaves the other's cell valid: only the pair is lost."""
    run = lied[1]
    guilty = {"query": "off"}
    for lie in LIES:
        if lie == "absent series":
            continue
        innocent = [arm for arm in ("off", "on") if lie == "none" or arm != guilty.get(lie, "on")]
        for arm in innocent:
            assert info(run, arm, lie)["cell"]["invalid"] == [], (lie, arm)


def test_the_trial_records_what_it_ran_on(lied: tuple[int, Path]) -> None:
    """Both trees, the machine, the weights as far as they are to be seen, and no GPU that is not there."""
    for file in lied[1].glob("trials/*/trial.json"):
        record = json.loads(file.read_text())
        assert [tree["name"] for tree in record["sources"]] == ["omni-prefix-bench", "server"]
        assert record["sources"][1]["commit"] is None
        assert record["host"]["cpu_count"] > 0
        assert record["host"]["load_1m"] >= 0
        assert record["model"]["id"] == "tiny-omni"
        assert record["profile"] is None
