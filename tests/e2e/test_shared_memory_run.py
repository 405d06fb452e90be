"""A server that leaves shared memory behind, run by `bench run`: what is removed and what is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_process import bench, only_run
from lying_scenario import write_lies

from harness.report import build_report
from harness.report.markdown import render_markdown
from harness.store import RunStore

SHM = Path("/dev/shm")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SHM.is_dir(), reason="this system has no /dev/shm")]


def leaked(run: Path, arm: str) -> tuple[str, str]:
    """Names of the object that the arm's server kept mapped, and of the one it did not."""
    (log,) = run.glob(f"trials/*-{arm}/server.log")
    found = re.search(r"^leaked (\S+) (\S+)$", log.read_text(), re.MULTILINE)
    assert found is not None
    return found[1], found[2]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run of which both servers leak from their start, and the second dies in its only bench."""
    scenario = write_lies(tmp_path, ["death"])
    scenario.write_text(scenario.read_text().replace("args: {", "env: {LEAK: '1'}, args: {"))
    bench("run", scenario, "--out", tmp_path / "results")
    run = only_run(tmp_path / "results")
    yield run
    for arm in ("off", "on"):
        for name in leaked(run, arm):
            (SHM / name).unlink(missing_ok=True)


def test_what_a_server_leaves_is_removed_where_it_is_proven_and_told(run: Path) -> None:
    """In each trial one object was mapped and is gone, the other is still there; a server that died is no exception.

    What stays is not looked for by name: other programs may leave more, and what is larger is named first.
    """
    store = RunStore.open(run)
    report = render_markdown(build_report(store))
    assert [trial.status for trial in store.trials()] == ["finished", "failed"]
    for trial in store.trials():
        mapped, closed = leaked(run, trial.arm)
        assert not (SHM / mapped).exists()
        assert (SHM / closed).exists()
        told = {caveat.kind: caveat.message for caveat in trial.caveats}
        assert f"(1 object: {mapped})" in told["shared memory removed"]
        assert "appeared while the server ran" in told["shared memory left"]
        assert f"shared memory removed: {told['shared memory removed']}" in report
