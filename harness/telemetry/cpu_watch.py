"""Measures who kept the host's cores busy while a bench ran."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.host_cpu import HostCpu
from harness.telemetry.memory import descendants

_STAT = Path("/proc/stat")
_TICK = 0.01
"""Seconds: what the kernel rounds each process's and each core's time to."""


class CpuWatch:
    """Counts from when it was made until `read`.

    Parameters:
        root_pid: the process under which the server runs; None where it is not to be seen.
        stat: where the kernel counts each core's time (proc_stat(5)).
    """

    def __init__(self, root_pid: int | None, stat: Path = _STAT) -> None:
        self._root, self._stat = root_pid, stat
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._start = self._now()

    def read(self) -> HostCpu | None:
        """None where the server is not to be seen, the kernel does not tell, or it was too short to be counted."""
        start, end = self._start, self._now()
        if start is None or end is None or end.at - start.at < 20 * _TICK:
            return None
        span = end.at - start.at
        accounted = end.accounted - start.accounted
        return HostCpu(
            cores=len(self._cores),
            foreign=max(end.busy - start.busy - accounted, 0.0) / span,
            idle=(end.idle - start.idle) / span,
        )

    def _now(self) -> _Times | None:
        if self._root is None:
            return None
        try:
            busy, idle = parse_stat(self._stat.read_text(encoding="ascii"), self._cores)
        except (OSError, ValueError):
            return None
        own = os.times()
        pids = (self._root, *descendants(self._root))
        accounted = own.user + own.system + own.children_user + own.children_system + sum(map(_spent, pids))
        return _Times(time.monotonic(), busy, idle, accounted)


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds since the start of the host, of this process and of the server."""

    at: float
    busy: float
    idle: float
    accounted: float


def parse_stat(text: str, cores: Collection[int]) -> tuple[float, float]:
    """(busy, idle) seconds of these cores, summed.

    Raises:
        ValueError: one of them is not there.
    """
    names = {f"cpu{core}" for core in cores}
    rows = [line.split()[1:] for line in text.splitlines() if line.split(" ", 1)[0] in names]
    if not names or len(rows) != len(names):
        raise ValueError(f"found {len(rows)} of the {len(names)} cores")
    hertz = os.sysconf("SC_CLK_TCK")
    busy = idle = 0
    for row in rows:
        user, nice, system, idling, waiting, _irq, _softirq, steal, *_ = map(int, row)
        busy += user + nice + system + steal
        idle += idling + waiting
    return busy / hertz, idle / hertz


def _spent(pid: int) -> float:
    """CPU seconds of a process with its children that have ended; 0 when it has ended itself."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
