"""GPUs around a whole trial, through a stand-in for NVML: what the records and the report say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_process import bench, only_run
from lying_scenario import write_lies

FAKES = Path(__file__).parents[1] / "telemetry"
PYNVML = """\
import sys
sys.path.append({fakes!r})
from fake_nvml import Card, FakeNvml
card = Card(processes={{1: 300 * 2**20}}, busy={{1: 12}}, throttle=0x20 | 0x4, utilisation=40)
sys.modules[__name__] = FakeNvml(card)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one honest bench on a machine whose only GPU is hot and in somebody else's use."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "pynvml.py").write_text(PYNVML.format(fakes=str(FAKES)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        done = bench("run", write_lies(folder, ["none"]), "--out", folder / "results")
    assert "Traceback" not in done.stderr, done.stderr
    return only_run(folder / "results")


def test_each_trial_records_its_gpus(shared: Path) -> None:
    """Clocks, power cap, temperature and who is on it, just before each server was started."""
    for file in shared.glob("trials/*/trial.json"):
        (gpu,) = json.loads(file.read_text())["gpus"]
        assert (gpu["name"], gpu["driver"], gpu["power_limit"]) == ("NVIDIA H200", "570.1", 700.0)
        assert (gpu["sm_clock"], gpu["sm_clock_max"], gpu["utilisation"]) == (1755, 1980, 40)
        assert gpu["processes"] == [{"pid": 1, "bytes": 300 * 2**20}]


def test_foreign_use_and_heat_are_caveats(shared: Path) -> None:
    """All three stand in the record of each trial and in the report; the cells count all the same."""
    for file in shared.glob("trials/*/trial.json"):
        found = {caveat["kind"]: caveat["message"] for caveat in json.loads(file.read_text())["caveats"]}
        assert found["foreign GPU use"] == "GPU 0 (NVIDIA H200) was 40 % busy before the server was started"
        assert "process 1, not the server's, held up to 300 MiB and up to 12 %" in found["foreign GPU process"]
        assert "software thermal slowdown of GPU 0" in found["GPU throttled"]
        assert "power cap" not in found["GPU throttled"]
    report = (shared / "report.md").read_text()
    assert "foreign GPU process: process 1" in report
    assert "power cap 700 W, SM clock up to 1980 MHz; SM clock 1755 MHz; temperature 41 °C; use 40 %" in report
