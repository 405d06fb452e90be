"""CPU time of processes while a load runs, sampled from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import numpy as np
import psutil

_HERE = ("127.0.0.1", "localhost", "::1")
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
    """The process of this machine that serves a URL with all below it; empty when it is not to be seen."""
    address = urlsplit(url)
    if address.hostname not in _HERE:
        return []
    pids = {
        found.pid
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.pid is not None and tuple(found.laddr)[1:] == (address.port,)
    }
    if len(pids) != 1:
        return []
    root = psutil.Process(pids.pop())
    return [root, *root.children(recursive=True)]
