"""A run that is killed or interrupted leaves no server, and resumes to the report of an undisturbed one."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest
from bench_process import (
    bench,
    cells,
    headings,
    interrupt,
    only_run,
    servers_of,
    start_bench,
    wait_for,
    wait_gone,
    write_scenario,
)


def started_bench(folder: Path, scenario: Path, *, cell: str) -> tuple[object, Path]:
    """A run in the background, once it has written the first cell of that name."""
    process = start_bench("run", scenario, "--out", folder / "results")
    wait_for("the first cells", lambda: list(folder.glob(f"results/*/trials/*/{cell}.json")))
    return process, only_run(folder / "results")


def check_resumed(run: Path, folder: Path, trials: int) -> None:
    was_left = len(list(run.glob("trials/*/trial.json"))) < trials
    done = bench("run", "--resume", run)
    assert done.returncode == 0, done.stderr
    assert servers_of(folder) == []
    assert len(list(run.glob("trials/*/trial.json"))) == trials
    assert len(cells(run)) == trials * 5
    assert not list(run.rglob(".*.partial"))
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["finished_at"]
    if not was_left:
        assert manifest["resumed_at"] == []
        return
    (resumed_at,) = manifest["resumed_at"]
    records = [json.loads(path.read_text()) for path in run.glob("trials/*/trial.json")]
    after = [record for record in records if record["started_at"] >= resumed_at]
    assert after
    assert all(record["load_1m"] > 0 for record in records)
    report = (run / "report.md").read_text()
    assert f"the run was taken up again at {resumed_at}; after that ran r01-" in report


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
def test_an_interrupted_run_stops_its_server_and_resumes(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and a closed terminal: no server is left when the command returns, exit code 130."""
    process, run = started_bench(tmp_path, write_scenario(tmp_path), cell="warm")
    assert servers_of(tmp_path)
    code, errors = interrupt(process, number)
    assert code == 130, errors
    assert servers_of(tmp_path) == []
    assert f"resume with: bench run --resume {run}" in errors
    assert "Traceback" not in errors
    if number == signal.SIGINT:
        check_resumed(run, tmp_path, trials=2)


def test_a_killed_run_leaves_no_server_and_resumes(tmp_path: Path) -> None:
    """SIGKILL of the harness: the guard stops the server, finished trials are kept, the rest is run again."""
    scenario = write_scenario(tmp_path)
    process, run = started_bench(tmp_path, scenario, cell="AUD_h75_c2")
    wait_for("the second trial", lambda: list(run.glob("trials/r01-2-*/.server.json")))
    first = (run / "trials/r01-1-cache_off/trial.json").read_bytes()
    code, _ = interrupt(process, signal.SIGKILL)
    assert code == -signal.SIGKILL
    wait_gone(tmp_path)
    check_resumed(run, tmp_path, trials=2)
    assert (run / "trials/r01-1-cache_off/trial.json").read_bytes() == first


def test_a_changed_scenario_is_refused_and_its_keys_are_named(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path)
    process, run = started_bench(tmp_path, scenario, cell="warm")
    interrupt(process, signal.SIGINT)
    scenario.write_text(scenario.read_text().replace("stop_timeout: 5.0", "stop_timeout: 6.0"))
    done = bench("run", scenario, "--resume", run)
    assert done.returncode == 2
    assert "scenario: server.stop_timeout: was 5.0, is 6.0" in done.stderr
    assert "resume with" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_of_which_nothing_was_begun_is_not_to_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Interrupted before its first trial, it has nothing that resuming would keep; interrupted in it, it has."""
    from harness.commands.run import Narrowing, run
    from harness.runner import Runner
    from harness.store import RunStore

    begun = []

    def stopped(_: Runner, store: RunStore, *_args: object) -> None:
        if begun:
            store.begin_trial(store.manifest().plan[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "_carry_out", stopped)
    scenario = write_scenario(tmp_path)
    for out in (tmp_path / "early", tmp_path / "late"):
        with pytest.raises(KeyboardInterrupt):
            run(scenario, Narrowing(), out, None)
        assert ("resume with" in capsys.readouterr().err) is bool(begun)
        begun.append(only_run(out))


def test_two_writers_of_one_run_are_refused(tmp_path: Path) -> None:
    process, run = started_bench(tmp_path, write_scenario(tmp_path), cell="warm")
    second = bench("run", "--resume", run)
    assert second.returncode == 2
    assert "another `bench run` is writing this run" in second.stderr
    assert "resume with" not in second.stderr
    interrupt(process, signal.SIGINT)


def test_an_error_of_our_own_stops_the_server(tmp_path: Path) -> None:
    """An exception that nobody expects, in the middle of a trial, still leaves no server behind."""
    from harness.progress import Silent
    from harness.runner import Runner
    from harness.scenario import load_scenario

    class Faulty(Silent):
        def bench(self, name: str, requests: int, cost: float) -> None:  # noqa: ARG002 - the protocol's signature
            assert servers_of(tmp_path)
            raise ZeroDivisionError("ours")

    path = write_scenario(tmp_path)
    with pytest.raises(ZeroDivisionError, match="ours"):
        Runner(load_scenario(path), path, Faulty()).start(tmp_path / "results" / "run", ["bench"])
    assert servers_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_kills_at_random_moments(tmp_path: Path) -> None:
    """Wherever SIGKILL falls, `--resume` finishes the run with a report like that of an undisturbed one."""
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    start = time.monotonic()
    assert bench("run", write_scenario(undisturbed), "--out", undisturbed / "results").returncode == 0
    length = time.monotonic() - start
    form = headings((only_run(undisturbed / "results") / "report.md").read_text())
    moments = random.Random(20261129)
    for number in range(10):
        folder = tmp_path / f"kill{number}"
        folder.mkdir()
        process = start_bench("run", write_scenario(folder), "--out", folder / "results")
        wait_for("the manifest", lambda folder=folder: list(folder.glob("results/*/manifest.json")))
        time.sleep(moments.uniform(0.0, length))
        process.kill()
        process.communicate(timeout=60)
        run = only_run(folder / "results")
        check_resumed(run, folder, trials=2)
        assert [line.replace(run.name, "") for line in headings((run / "report.md").read_text())][1:] == form[1:]
