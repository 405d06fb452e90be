"""`bench run`, end to end: real servers, real load, every number from the records."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from bench_process import bench, cells, only_run, requests_of, servers_of, write_scenario

from harness.scenario import load_scenario
from harness.workloads import Tokenizer, find_tokenizer, generate, served_ids


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small run of one round, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("finished")
    scenario = write_scenario(folder)
    done = bench("run", scenario, "--out", folder / "results")
    assert done.returncode == 0, done.stderr
    assert "report.md" in done.stdout
    return only_run(folder / "results")


def naive_ideal(requests: list[list[int]], seen: list[list[int]], block: int) -> float:
    """The longest common prefix with any earlier prompt, in whole blocks, the last token always recomputed."""
    hits = total = 0
    for ids in requests:
        common = max(
            (
                next((i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids), len(other)))
                for other in seen
            ),
            default=0,
        )
        hits += min(common, len(ids) - 1) // block * block
        total += len(ids)
        seen.append(ids)
    return hits / total


def test_measured_hit_rates_are_the_ideal_ones(finished: Path) -> None:
    """With the cache on each bench hits what a naive count of common prefixes says, within a point."""
    scenario = load_scenario(finished / "scenario.yaml")
    folder = find_tokenizer(scenario, finished)
    assert folder is not None
    tokenizer = Tokenizer(folder)
    seen: list[list[int]] = []
    for one in scenario.benches:
        ideal = naive_ideal(served_ids(one, generate(one, tokenizer), tokenizer), seen, 16)
        (cell,) = (c for c in cells(finished) if (c["cell"]["bench"], c["cell"]["arm"]) == (one.name, "cache_on"))
        assert cell["cell"]["hit_rate"]["rate"] == pytest.approx(ideal, abs=0.01), one.name
        assert cell["cell"]["hit_rate"]["ideal"] == pytest.approx(ideal, abs=1e-9), one.name
    assert ideal > 0.5


def test_the_off_arm_asks_nothing_of_the_cache(finished: Path) -> None:
    off = [cell["cell"] for cell in cells(finished) if cell["cell"]["arm"] == "cache_off"]
    assert len(off) == 5
    assert all((cell["hit_rate"]["queries"], cell["hit_rate"]["hits"]) == (0, 0) for cell in off)
    assert all(cell["invalid"] == [] for cell in off)


@pytest.mark.parametrize("name", ["P256_h94_c1", "P128_h0_c4", "MP2_c4", "AUD_h75_c2"])
def test_answers_are_the_same_with_the_cache_on(finished: Path, name: str) -> None:
    """Every text, and every sample of speech, is the one the server gives without the cache."""
    off, on = (requests_of(finished, arm, name) for arm in ("cache_off", "cache_on"))
    assert len(off) == len(on) > 0
    for left, right in zip(off, on, strict=True):
        assert left["status"] == right["status"] == "ok"
        assert left["text"]
        assert left["text"] == right["text"]
        assert left["audio_sha256"] == right["audio_sha256"]
        assert left["audio_transcript"] == right["audio_transcript"]
    if name.startswith("AUD"):
        assert all(request["audio_seconds"] > 0.5 and request["audio_transcript"] for request in on)
        assert sum(request["cached_tokens"] for request in on) > 0


def test_the_cache_says_what_it_did(finished: Path) -> None:
    """The cell with hits carries the cache's own counters beside the server's."""
    (cell,) = (c for c in cells(finished) if (c["cell"]["bench"], c["cell"]["arm"]) == ("P256_h94_c1", "cache_on"))
    delta = cell["cell"]["metrics"]["delta"]
    assert delta["prefix_cache:hit_tokens_total"] == cell["cell"]["hit_rate"]["hits"] > 0
    assert delta["prefix_cache:rows_written_total"] > 0


def test_the_records_say_where_they_come_from(finished: Path) -> None:
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["finished_at"]
    assert manifest["versions"]["torch"]
    assert len(manifest["plan"]) == 2
    for trial in sorted(finished.glob("trials/*/trial.json")):
        record = json.loads(trial.read_text())
        assert record["status"] == "finished"
        assert record["stopped_by"] == "sigterm"
        assert record["cache_config"]["enable_prefix_caching"] == str(record["arm"] == "cache_on")
        assert record["memory_peak"]["rss"] >= record["memory_ready"]["rss"] > 0
        assert record["first_request"] > 0
        assert len((trial.parent / "samples.csv").read_text().splitlines()) > 2


def test_each_cell_says_what_else_the_host_did(finished: Path) -> None:
    """Not a number that nobody measured: what the server and this process spent is taken off what the cores did."""
    found = [cell["cell"]["foreign_cores"] for cell in cells(finished)]
    assert found
    # Shorter than the kernel's ticks can tell: not known.
    known = [cores for cores in found if cores is not None]
    assert known
    assert all(0 <= cores <= os.cpu_count() for cores in known)


def test_a_report_is_made_from_the_records_alone(finished: Path) -> None:
    """`bench report` writes the same bytes again, and `--json` the same numbers."""
    before = (finished / "report.md").read_bytes()
    (finished / "report.md").unlink()
    again = bench("report", finished, "--json")
    assert again.returncode == 0, again.stderr
    assert (finished / "report.md").read_bytes() == before
    data = json.loads(again.stdout)
    assert data["valid"] is True
    by_name = {row["bench"]: row for row in data["benches"]}
    off, on = (
        next(
            c["request_throughput"]
            for c in cells(finished)
            if (c["cell"]["bench"], c["cell"]["arm"]) == ("MP2_c4", arm)
        )
        for arm in ("cache_off", "cache_on")
    )
    assert by_name["MP2_c4"]["request_throughput"]["ratio"] == pytest.approx(on / off - 1)


def contents(run: Path) -> dict[Path, bytes]:
    return {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_finished_run_has_nothing_left_to_do(finished: Path) -> None:
    """Resuming it starts nothing, changes no byte, and says so."""
    before = contents(finished)
    done = bench("run", "--resume", finished)
    assert done.returncode == 0, done.stderr
    assert "nothing left to do" in done.stderr
    assert contents(finished) == before


def test_what_was_edited_or_changed_since_is_refused_by_name(finished: Path, tmp_path: Path) -> None:
    """A hand-edited manifest, another tokenizer and another server are all listed; nothing is started."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["scenario"]["benches"][1]["prompts"] += 1
    manifest["tokenizer_sha256"] = "0" * 64
    (run / "manifest.json").write_text(json.dumps(manifest))
    record = json.loads((run / "trials/r01-1-cache_off/trial.json").read_text())
    version = record["versions"]["torch"]
    record["versions"]["torch"] = "0.1"
    (run / "trials/r01-1-cache_off/trial.json").write_text(json.dumps(record))
    done = bench("run", "--resume", run)
    assert done.returncode == 2
    for line in (
        "manifest.json: its scenario was edited",
        f"sha256 of the tokenizer: was {'0' * 64}, is ",
        f"arm cache_off: version of torch was 0.1, is {version}",
    ):
        assert line in done.stderr
    assert "arm cache_on" not in done.stderr


def test_a_trial_that_lost_a_file_is_measured_again(finished: Path, tmp_path: Path) -> None:
    """A report refuses the run and says how to mend it; a resume does so, and leaves the other trial alone."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    kept = contents(run / "trials" / "r01-1-cache_off")
    (run / "trials" / "r01-2-cache_on" / "MP2_c4.requests.jsonl").unlink()
    refused = bench("report", run)
    assert refused.returncode == 2
    assert f"delete {run}/trials/r01-2-cache_on, then bench run --resume {run}" in refused.stderr
    done = bench("run", "--resume", run)
    assert done.returncode == 0, done.stderr
    assert contents(run / "trials" / "r01-1-cache_off") == kept
    assert len(requests_of(run, "cache_on", "MP2_c4")) == 8


def test_nothing_is_left_running(finished: Path) -> None:
    assert servers_of(finished.parent) == []
