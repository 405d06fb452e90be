"""Memory of a server over a trial, sampled on a thread of its own so that a busy client cannot starve it."""

from __future__ import annotations

import contextlib
import csv
import threading
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import psutil

from harness.records import MemoryPoint
from harness.telemetry.gpu import GpuMemory

COLUMNS = ("t_s", "rss_bytes", "pss_bytes", "gpu_bytes", "cpu_percent")
_SLOW_EVERY_S = 2.0
"""Walking every mapping of every process (PSS) and asking the driver cost too much for each sample."""
_SLOW_SHARE = 0.02
"""Share of the time that those may take: a server of many gigabytes takes a second to walk, and pays for it itself."""


class GpuReader(Protocol):
    """Reads GPU memory by process."""

    def read(self, pids: Collection[int]) -> int | None:
        """Bytes that these processes hold on all GPUs; None when none of them is known there."""
        ...

    def close(self) -> None: ...


class NoMemory:
    """Stands in where the server's process is not to be seen: nothing is measured, and nothing is zero."""

    @property
    def peak(self) -> MemoryPoint | None:
        return None

    def point(self) -> MemoryPoint | None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class MemorySampler:
    """Samples stage 0's engine process and the server's process tree until closed.

    `samples.csv` has one line per sample: `t_s` (seconds since the start), `rss_bytes` (VmRSS of stage 0), `pss_bytes`
    (PSS of the tree) and `gpu_bytes` every two seconds, or more rarely where they take long, `cpu_percent` of stage 0
    (100 is one core) since the line before. A value that was not measured is empty. Sampling ends by itself when
    stage 0 does.

    Parameters:
        pid: stage 0's engine process.
        tree_root_pid: the process under which the whole server runs.
        with_root: whether that process is part of the server.
        csv_path: the file to write, replaced if it exists.
        interval_s: seconds between samples.
        gpu: how to read GPU memory; None reads it through NVML where there is a GPU.
    """

    def __init__(
        self,
        pid: int,
        tree_root_pid: int,
        csv_path: Path,
        interval_s: float = 0.25,
        gpu: GpuReader | None = None,
        with_root: bool = False,
    ) -> None:
        self._with_root = with_root
        self._pid, self._root, self._interval = pid, tree_root_pid, interval_s
        self._gpu = gpu if gpu is not None else GpuMemory.open()
        self._lock = threading.Lock()
        self._peak_rss = 0
        self._peak_pss: int | None = None
        self._peak_gpu: int | None = None
        self._enough = threading.Event()
        self._file = csv_path.open("w", encoding="utf-8", newline="")
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self._thread.start()

    def point(self) -> MemoryPoint | None:
        """Memory now; None once stage 0 has ended."""
        return self._read(slow=True)

    @property
    def peak(self) -> MemoryPoint | None:
        """The most ever held, each number by itself; None when stage 0 was never seen.

        `rss` is the kernel's own high-water mark where it keeps one, so a peak between samples is not missed.
        """
        with self._lock:
            if self._peak_rss == 0:
                return None
            return MemoryPoint(rss=self._peak_rss, pss=self._peak_pss, gpu=self._peak_gpu)

    def close(self) -> None:
        """End the sampling; the file is complete afterwards."""
        self._enough.set()
        self._thread.join()
        self._file.close()
        if self._gpu is not None:
            self._gpu.close()
            self._gpu = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        rows = csv.writer(self._file, lineterminator="\n")
        rows.writerow(COLUMNS)
        started = time.monotonic()
        slow_due, cpu = started, _CpuShare(self._pid)
        while True:
            now = time.monotonic()
            slow = now >= slow_due
            point = self._read(slow)
            if point is None:
                return
            if slow:
                slow_due = now + max(_SLOW_EVERY_S, (time.monotonic() - now) / _SLOW_SHARE)
            share = cpu.read()
            values = (point.rss, point.pss, point.gpu, None if share is None else f"{share:.1f}")
            rows.writerow([f"{now - started:.3f}", *("" if value is None else value for value in values)])
            self._file.flush()
            if self._enough.wait(max(self._interval - (time.monotonic() - now), 0.0)):
                return

    def _read(self, slow: bool) -> MemoryPoint | None:
        held = read_rss(self._pid)
        if held is None:
            return None
        rss, high = held
        pss: int | None = None
        gpu: int | None = None
        if slow:
            pids = {self._pid, *descendants(self._root), *({self._root} if self._with_root else ())}
            shares = [share for pid in pids if (share := read_pss(pid)) is not None]
            pss = sum(shares) if shares else None
            gpu = None if self._gpu is None else self._gpu.read(pids)
        with self._lock:
            self._peak_rss = max(self._peak_rss, high, rss)
            if pss is not None:
                self._peak_pss = max(self._peak_pss or 0, pss)
            if gpu is not None:
                self._peak_gpu = max(self._peak_gpu or 0, gpu)
        return MemoryPoint(rss=rss, pss=pss, gpu=gpu)


class _CpuShare:
    """CPU time of a process as a share of wall time, between two calls."""

    def __init__(self, pid: int) -> None:
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)
            self._process.cpu_percent(None)
        self._first = True

    def read(self) -> float | None:
        """Percent of one core since the last call; None on the first, or when the process has ended."""
        if self._first or self._process is None:
            self._first = False
            return None
        try:
            share: float = self._process.cpu_percent(None)
        except psutil.Error:
            return None
        return share


def read_rss(pid: int) -> tuple[int, int] | None:
    """(VmRSS, VmHWM) of a process in bytes; None when it has ended. Elsewhere than on Linux both are psutil's RSS."""
    if Path("/proc/self/status").exists():
        return parse_status(_read_text(Path(f"/proc/{pid}/status")))
    try:
        rss: int = psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return None
    return rss, rss


def read_pss(pid: int) -> int | None:
    """Proportional set size of a process in bytes; None when it has ended or the system does not tell.

    None also when it became another program meanwhile: until then it may have shared all of its parent's memory, as a
    child of vfork does, which would be counted twice.
    """
    before = _read_text(Path(f"/proc/{pid}/cmdline"))
    pss = parse_smaps_rollup(_read_text(Path(f"/proc/{pid}/smaps_rollup")))
    return pss if _read_text(Path(f"/proc/{pid}/cmdline")) == before else None


def parse_status(text: str) -> tuple[int, int] | None:
    """(VmRSS, VmHWM) in bytes out of `/proc/<pid>/status`; None for a process without memory, as a zombie is."""
    rss, high = _kilobytes(text, "VmRSS:"), _kilobytes(text, "VmHWM:")
    return None if rss is None else (rss, rss if high is None else high)


def parse_smaps_rollup(text: str) -> int | None:
    """PSS in bytes out of `/proc/<pid>/smaps_rollup`."""
    return _kilobytes(text, "Pss:")


def _kilobytes(text: str, key: str) -> int | None:
    for line in text.splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return None


def _read_text(path: Path) -> str:
    """Empty when the process has ended or is not ours to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """Processes below this one now, at any depth; none once it has ended."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
