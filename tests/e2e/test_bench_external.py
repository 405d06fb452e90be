"""Kind `external`: two servers that run already are measured, and run on."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from bench_process import bench, cells, only_run, wait_for

import harness
from harness.servers.launch import free_port

pytestmark = pytest.mark.slow

TOKENIZER = Path(harness.__file__).parent / "tiny_omni" / "assets"
SCENARIO = """\
schema: 1
name: attached
model: tiny-omni
tokenizer: {tokenizer}
server: {{kind: external}}
arms:
  cache_off: {{baseline: true, url: "http://127.0.0.1:{off}"}}
  cache_on: {{url: "http://localhost:{on}/"}}
rounds: 1
workloads:
  - dataset: random
    table: |
      name        shared_prefix random_len output range_ratio concurrency prompts seed
      warm        64            64         4      0.0         2           4       1
      P256_h94_c1 240           16         4      0.0         1           6       2
"""


@contextmanager
def tiny_server(port: int, *words: str) -> Iterator[int]:
    """A reference server that somebody else started."""
    command = [sys.executable, "-m", "harness.tiny_omni", "--port", str(port), "--no-audio", "--hidden-size", "64"]
    server = subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5.0):
                return True
        except (OSError, urllib.error.URLError):
            return False

    try:
        wait_for("a healthy server", healthy)
        yield server.pid
    finally:
        server.kill()
        server.wait()


@pytest.mark.timeout(300)
def test_two_running_servers_are_measured_and_left_running(tmp_path: Path) -> None:
    """Hits are counted, what could not be checked is a caveat, nothing is invented, and the servers live."""
    off_port, on_port = free_port(), free_port()
    scenario = tmp_path / "attached.yaml"
    scenario.write_text(SCENARIO.format(tokenizer=TOKENIZER, off=off_port, on=on_port))
    with tiny_server(off_port) as off, tiny_server(on_port, "--enable-prefix-caching") as on:
        done = bench("run", scenario, "--out", tmp_path / "results", timeout=240)
        assert done.returncode == 0, done.stderr
        assert psutil.pid_exists(off)
        assert psutil.pid_exists(on)
    run = only_run(tmp_path / "results")
    for trial in sorted(run.glob("trials/*/trial.json")):
        record = json.loads(trial.read_text())
        assert (record["stopped_by"], record["argv"], record["time_to_ready"]) == ("left running", [], None)
        assert record["pid"] == {"cache_off": off, "cache_on": on}[record["arm"]]
        assert record["first_request"] > 0
        assert record["memory_ready"]["rss"] > 0
        assert record["versions"] == {}
        told = [caveat["message"] for caveat in record["caveats"] if caveat["kind"] == "not checked"]
        assert any("left running" in message for message in told)
    by_arm = {cell["cell"]["arm"]: cell["cell"] for cell in cells(run) if cell["cell"]["bench"] == "P256_h94_c1"}
    assert by_arm["cache_off"]["hit_rate"]["queries"] == 0
    assert by_arm["cache_on"]["hit_rate"]["rate"] == by_arm["cache_on"]["hit_rate"]["ideal"]
    assert by_arm["cache_on"]["hit_rate"]["rate"] > 0.5
    assert "not checked" in (run / "report.md").read_text()
    assert bench("report", run).returncode == 0
