"""Who kept the host's cores busy during a bench."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.host_cpu import HostCpu
from harness.telemetry.cpu_watch import CpuWatch, parse_stat
from harness.validity import cell_caveats

HERTZ = os.sysconf("SC_CLK_TCK")


def test_a_busy_process_is_foreign_unless_it_is_the_servers() -> None:
    """Over one interval, two watches differ by what the process spent that is below the root of one of them."""
    spin = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(spin) as busy, subprocess.Popen(["sh", "-c", "read stay"], stdin=subprocess.PIPE) as idle:
        try:
            process = psutil.Process(busy.pid)
            times = process.cpu_times()
            watches = [CpuWatch(busy.pid), CpuWatch(idle.pid)]
            start = time.monotonic()
            time.sleep(1.0)
            server, neighbour = (watch.read() for watch in watches)
            span, after = time.monotonic() - start, process.cpu_times()
        finally:
            busy.kill()
            idle.kill()
    assert server is not None
    assert neighbour is not None
    spent = (after.user + after.system - times.user - times.system) / span
    assert spent > 0.1
    # Where the whole host is busy, rounding may have taken the smaller one to 0.
    assert neighbour.foreign - server.foreign == pytest.approx(spent, abs=0.15)
    assert server.cores == neighbour.cores == len(os.sched_getaffinity(0))


def test_children_that_ended_in_between_are_still_the_servers() -> None:
    """What a process of the server spent is its parent's once it has been waited for."""
    shell = f"read go; {sys.executable} -c 'for _ in range(8000000): pass'; echo done; read stay"
    with (
        subprocess.Popen(["sh", "-c", shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
        subprocess.Popen(["sh", "-c", "read stay"], stdin=subprocess.PIPE) as idle,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        watches = [CpuWatch(server.pid), CpuWatch(idle.pid)]
        start = time.monotonic()
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.stdout.readline() == "done\n"
        spent = psutil.Process(server.pid).cpu_times()
        found, blind = (watch.read() for watch in watches)
        span = time.monotonic() - start
        server.kill()
        idle.kill()
    assert found is not None
    assert blind is not None
    share = (spent.children_user + spent.children_system) / span
    assert share > 0.1
    assert blind.foreign - found.foreign == pytest.approx(share, abs=0.15)


def test_it_is_not_known_without_a_server_or_a_kernel_that_tells(tmp_path: Path) -> None:
    """None, and never 0."""
    assert CpuWatch(None).read() is None
    watch = CpuWatch(os.getpid(), tmp_path / "absent")
    time.sleep(0.25)
    assert watch.read() is None
    # Too short an interval to be counted in the kernel's ticks.
    assert CpuWatch(os.getpid()).read() is None


def test_the_kernels_table_is_read_by_core() -> None:
    """Of the cores asked for: user, nice, system and steal are busy, idle and iowait idle, interrupts are neither."""
    text = (
        "cpu  99 99 99 99 99 99 99 99 0 0\n"
        "cpu0 100 10 20 300 40 5 6 7 0 0\n"
        "cpu1 1 0 0 0 0 0 0 0 0 0\n"
        "cpu10 1000 0 0 0 0 0 0 0 0 0\n"
        "intr 5\n"
    )
    assert parse_stat(text, {0}) == pytest.approx((137 / HERTZ, 340 / HERTZ))
    assert parse_stat(text, {0, 1}) == pytest.approx((138 / HERTZ, 340 / HERTZ))
    for absent in ({2}, set()):
        with pytest.raises(ValueError, match="cores"):
            parse_stat(text, absent)


@pytest.mark.parametrize(
    ("host", "told"),
    [
        (HostCpu(cores=2, foreign=1.2, idle=0.1), True),
        # A twentieth of the cores is what any host does beside.
        (HostCpu(cores=2, foreign=0.1, idle=0.0), False),
        # Much of a large host is busy, and the server had all it could want.
        (HostCpu(cores=192, foreign=40.0, idle=140.0), False),
        (HostCpu(cores=192, foreign=90.0, idle=60.0), True),
    ],
)
def test_a_reader_is_told_where_others_may_have_taken_the_servers_cores(host: HostCpu, told: bool) -> None:
    """A caveat, not a reason: with how much they took, and how much was left."""
    caveats = cell_caveats([], None, host)
    assert bool(caveats) is told
    if told:
        assert f"kept {host.foreign:.1f} of its {host.cores} cores busy" in caveats[0]
