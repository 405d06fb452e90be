"""CPU time of processes while a load runs, sampled from outside."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np
import psutil

from harness.servers.external import stage0_of
from harness.servers.listening import listener

_SAMPLE_S = 0.02


class CpuTime:
    """Samples the CPU time that processes have used, together, between entering and leaving.

    Parameters:
        find: the processes; empty while there are none. Asked again after one of them has ended.
    """

    def __init__(self, find: Callable[[], Sequence[psutil.Process]]) -> None:
        self._find = find
        self._samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> CpuTime:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def between(self, start: float, stop: float) -> float | None:
        """CPU seconds between two instants of `time.perf_counter()`; None when there was no process then."""
        if not self._samples:
            return None
        at, spent = np.array(self._samples).T
        return float(np.interp(stop, at, spent) - np.interp(start, at, spent))

    def _sample(self) -> None:
        processes: Sequence[psutil.Process] = ()
        while not self._stop.wait(_SAMPLE_S):
            try:
                processes = processes or self._find()
                if processes:
                    times = [process.cpu_times() for process in processes]
                    self._samples.append((time.perf_counter(), sum(each.user + each.system for each in times)))
            except psutil.Error:
                processes = ()


def listening(url: str) -> list[psutil.Process]:
    """The server of this machine at a URL: the process that listens and all below it.

    Empty where nobody here listens, or it is not recognised as a server, as what only forwards a port.
    """
    pid = listener(url)
    if pid is None or stage0_of(pid) is None:
        return []
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def cores_of(processes: Iterable[psutil.Process]) -> set[int]:
    """The cores that any of their threads may use; a thread may have others than its process began with."""
    found: set[int] = set()
    for process in processes:
        with suppress(psutil.Error):
            for thread in process.threads():
                with suppress(OSError):
                    found |= os.sched_getaffinity(thread.id)
    return found
