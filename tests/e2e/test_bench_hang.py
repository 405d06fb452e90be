"""A server that hangs costs its own trial, not the run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from bench_process import cells, servers_of, write_scenario

from harness.progress import Silent
from harness.records import PlannedTrial
from harness.runner import Runner
from harness.scenario import load_scenario, narrow

pytestmark = pytest.mark.slow


class Stopper(Silent):
    """Stops the first trial's server, as SIGSTOP does, when its first request of P256_h94_c1 has ended."""

    def __init__(self, run: Path) -> None:
        self._run, self._slug, self._bench, self.stopped = run, "", "", False

    def trial(self, trial: PlannedTrial, number: int, total: int) -> None:  # noqa: ARG002 - the protocol's signature
        self._slug = trial.slug

    def bench(self, name: str, requests: int, cost: float) -> None:  # noqa: ARG002 - the protocol's signature
        self._bench = name

    def request(self, done: int) -> None:  # noqa: ARG002 - the protocol's signature
        if self._bench == "P256_h94_c1" and not self.stopped:
            (record,) = self._run.glob(f"trials/{self._slug}/*server.json")
            os.kill(json.loads(record.read_text())["pid"], signal.SIGSTOP)
            self.stopped = True


def test_a_hung_server_fails_its_trial_and_the_run_goes_on(tmp_path: Path) -> None:
    """The load is called off long before its requests have all timed out, its cell is invalid, the next trial runs."""
    path, run = write_scenario(tmp_path), tmp_path / "results" / "run"
    path.write_text(path.read_text().replace("stop_timeout: 5.0", "stop_timeout: 1.0\n  request_timeout: 4.5"))
    stopper = Stopper(run)
    result = Runner(narrow(load_scenario(path), ("P256_h94_c1",)), path, stopper).start(run, ["bench"])
    assert stopper.stopped
    (failed,) = result.failed
    assert failed.slug == "r01-1-cache_off"
    assert failed.failure is not None
    assert "the server stopped answering during bench P256_h94_c1" in failed.failure
    assert str(run / "trials/r01-1-cache_off/server.log") in failed.failure
    hung, good = (cell for cell in cells(run) if cell["cell"]["bench"] == "P256_h94_c1")
    assert hung["cell"]["invalid"] == ["the server stopped answering"]
    assert (hung["completed"], hung["failed"]) == (0, 8)
    assert hung["cell"]["client_lag_ms"] is None
    assert good["cell"]["arm"] == "cache_on"
    assert good["completed"] == 8
    assert servers_of(tmp_path) == []
