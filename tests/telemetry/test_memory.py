import csv
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from harness.telemetry.memory import COLUMNS, MemorySampler, parse_smaps_rollup, parse_status, read_pss, read_rss

MIB = 1 << 20

# Grows on each line of input, tells when it has, and can free what it took.
GROWER = """
import sys
kept = []
print("ready", flush=True)
for line in sys.stdin:
    mib = int(line)
    kept = [b"x" * (mib << 20)] if mib else []
    print("done", flush=True)
"""


class Grower:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self.wait()

    def wait(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def hold(self, mib: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{mib}\n")
        self.process.stdin.flush()
        self.wait()


@contextmanager
def grower() -> Iterator[Grower]:
    command = [sys.executable, "-I", "-S", "-c", GROWER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Grower(process)
        finally:
            process.kill()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def wait_for(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_parse_proc_files() -> None:
    """The kernel's kB are bytes here; a zombie has no memory, which is not zero memory."""
    assert parse_status("Name:\tx\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 kB\n") == (1 << 20, 2 << 20)
    assert parse_status("VmRSS:\t   1024 kB\n") == (1 << 20, 1 << 20)
    assert parse_status("Name:\tx\nState:\tZ (zombie)\n") is None
    assert parse_smaps_rollup("00-ff ---p [rollup]\nRss: 8 kB\nPss:     7 kB\nPss_Anon: 3 kB\n") == 7 * 1024
    assert parse_smaps_rollup("") is None


def test_readings_agree_with_psutil() -> None:
    """RSS and PSS of a process are about those that psutil reads."""
    with grower() as child:
        rss, high = read_rss(child.pid) or (0, 0)
        known = psutil.Process(child.pid).memory_full_info()
        assert rss == pytest.approx(known.rss, abs=MIB)
        assert high >= rss
        # Other processes come and go that share the interpreter's pages.
        assert read_pss(child.pid) == pytest.approx(known.pss, rel=0.5)


def test_a_child_that_still_shares_its_parent_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between vfork and exec all of the parent's memory is the child's too: it became another program meanwhile."""
    names = iter(["python", "python", "python", "flite"])
    texts = {"cmdline": lambda: next(names), "smaps_rollup": lambda: "Pss:     7 kB\n"}
    monkeypatch.setattr("harness.telemetry.memory._read_text", lambda path: texts[path.name]())
    assert read_pss(7) == 7 * 1024
    assert read_pss(8) is None


def test_process_that_does_not_exist(tmp_path: Path) -> None:
    """Of a process that is gone nothing is known; the file holds the head alone."""
    with grower() as child:
        gone = child.pid
    assert read_rss(gone) is None
    assert read_pss(gone) is None
    with MemorySampler(gone, gone, tmp_path / "samples.csv") as sampler:
        assert sampler.point() is None
        assert sampler.peak is None
    assert (tmp_path / "samples.csv").read_text() == ",".join(COLUMNS) + "\n"


def test_growth_is_seen_in_points_peak_and_file(tmp_path: Path) -> None:
    """Memory that a process takes and gives back shows in the points, stays in the peak, and is in the file."""
    path = tmp_path / "samples.csv"
    with grower() as child, MemorySampler(child.pid, child.pid, path, interval_s=0.01) as sampler:
        start = sampler.point()
        child.hold(48)
        held = sampler.point()
        seen = len(rows(path))
        wait_for(lambda: len(rows(path)) > seen + 1)
        child.hold(0)
        end, peak = sampler.point(), sampler.peak
    assert start is not None
    assert held is not None
    assert end is not None
    assert peak is not None
    assert held.rss - start.rss >= 44 * MIB
    assert start.pss is not None
    assert held.pss is not None
    assert held.pss - start.pss >= 44 * MIB
    assert end.rss < held.rss - 40 * MIB
    assert peak.rss >= held.rss
    assert peak.pss is not None
    assert peak.pss >= held.pss
    lines = rows(path)
    assert tuple(lines[0]) == COLUMNS
    assert max(int(line["rss_bytes"]) for line in lines) >= held.rss - 4 * MIB
    assert lines[0]["pss_bytes"] != ""
    assert {line["gpu_bytes"] for line in lines} == {""}
    assert lines[0]["cpu_percent"] == ""
    assert all(float(line["cpu_percent"]) >= 0.0 for line in lines[1:])
    times = [float(line["t_s"]) for line in lines]
    assert times == sorted(times)


def test_peak_between_two_samples_is_not_missed(tmp_path: Path) -> None:
    """The kernel's high-water mark shows a peak that no sample fell on."""
    with grower() as child, MemorySampler(child.pid, child.pid, tmp_path / "s.csv", interval_s=60.0) as sampler:
        start = sampler.point()
        child.hold(48)
        child.hold(0)
        now, peak = sampler.point(), sampler.peak
    assert start is not None
    assert now is not None
    assert peak is not None
    assert now.rss < start.rss + 40 * MIB
    assert peak.rss >= start.rss + 40 * MIB


def test_pss_covers_the_tree(tmp_path: Path) -> None:
    """PSS is of every process below the root; RSS is of stage 0 alone."""
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-I', '-S', '-c', {GROWER!r}], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "for line in sys.stdin: child.stdin.write(line.encode()); child.stdin.flush()\n"
    )
    command = [sys.executable, "-I", "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as root:
        assert root.stdout is not None
        assert root.stdin is not None
        below = psutil.Process(int(root.stdout.readline()))
        try:
            assert root.stdout.readline() == "ready\n"
            with MemorySampler(root.pid, root.pid, tmp_path / "s.csv") as sampler:
                start = sampler.point()
                root.stdin.write("48\n")
                root.stdin.flush()
                assert root.stdout.readline() == "done\n"
                held = sampler.point()
        finally:
            below.kill()
            root.kill()
    assert start is not None
    assert held is not None
    assert start.pss is not None
    assert held.pss is not None
    assert held.pss - start.pss >= 44 * MIB
    assert held.rss - start.rss < 10 * MIB


def test_death_during_sampling(tmp_path: Path) -> None:
    """When the process dies the sampling ends, the peak stays, and closing twice is harmless."""
    path = tmp_path / "samples.csv"
    with grower() as child:
        sampler = MemorySampler(child.pid, child.pid, path, interval_s=0.01)
        wait_for(lambda: sampler.peak is not None)
    assert sampler.point() is None
    sampler.close()
    sampler.close()
    assert sampler.peak is not None
    assert len(rows(path)) >= 1


class ScriptedGpu:
    """GPU memory by process, as a driver would tell it."""

    def __init__(self, held: dict[int, int]) -> None:
        self.held, self.closed = held, False

    def read(self, pids: Collection[int]) -> int | None:
        known = [self.held[pid] for pid in pids if pid in self.held]
        return sum(known) if known else None

    def close(self) -> None:
        self.closed = True


def test_gpu_memory_of_the_tree(tmp_path: Path) -> None:
    """GPU memory is that of the tree's processes, and of nobody else's."""
    path = tmp_path / "samples.csv"
    with grower() as child:
        gpu = ScriptedGpu({child.pid: 7 * MIB, 1: 99 * MIB})
        with MemorySampler(child.pid, child.pid, path, gpu=gpu) as sampler:
            point = sampler.point()
            wait_for(lambda: len(rows(path)) >= 1)
        assert point is not None
        assert point.gpu == 7 * MIB
        assert sampler.peak is not None
        assert sampler.peak.gpu == 7 * MIB
    assert rows(path)[0]["gpu_bytes"] == str(7 * MIB)
    assert gpu.closed


def test_what_takes_long_to_read_is_read_rarely(tmp_path: Path) -> None:
    """A reader that needs 0.2 s is asked once in ten seconds, not every two: the server would pay for it."""

    class SlowReader:
        asked = 0

        def read(self, pids: Collection[int]) -> int | None:
            self.asked += len(pids) > 0
            time.sleep(0.2)
            return None

        def close(self) -> None: ...

    reader = SlowReader()
    with grower() as child, MemorySampler(child.pid, child.pid, tmp_path / "samples.csv", 0.05, gpu=reader):
        time.sleep(2.6)
    assert reader.asked == 1
    assert len(rows(tmp_path / "samples.csv")) > 5
