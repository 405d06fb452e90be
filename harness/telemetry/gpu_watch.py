"""Who else used the GPUs during a trial, and whether they were held down: caveats of the trial."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from harness.records import Caveat, Gpu
from harness.telemetry.gpu_state import POWER_CAP, Nvml
from harness.telemetry.memory import descendants

BUSY_PERCENT = 5
"""Use of a GPU before the server starts from which on a reader is told."""


@dataclass(slots=True)
class Stranger:
    """A process that is not the server's. `bytes` and `percent` are the most seen; None: the driver did not tell."""

    bytes: int | None = None
    percent: int | None = None

    def saw(self, held: int | None, percent: int | None) -> None:
        self.bytes = max((one for one in (self.bytes, held) if one is not None), default=None)
        self.percent = max((one for one in (self.percent, percent) if one is not None), default=None)


@dataclass(slots=True)
class Seen:
    """What was seen of one GPU over a trial: readings, those that were throttled by reason, strangers by pid."""

    name: str
    readings: int = 0
    ours: bool = False
    throttled: dict[str, int] = field(default_factory=dict)
    strangers: dict[int, Stranger] = field(default_factory=dict)

    def add(self, gpu: Gpu, ours: Collection[int], before: Collection[int], busy: dict[int, int]) -> None:
        """Take in one reading.

        Parameters:
            ours: the server's processes.
            before: processes that were on this GPU before the server was started.
            busy: percent by process.
        """
        self.readings += 1
        for reason in gpu.throttle or ():
            if reason != POWER_CAP:
                self.throttled[reason] = self.throttled.get(reason, 0) + 1
        processes = gpu.processes or ()
        known = any(one.pid in ours for one in processes)
        self.ours = self.ours or known
        for one in processes:
            # In a container the driver may show ids of the machine: then only who was there before is surely foreign.
            if one.pid in before or (known and one.pid not in ours):
                self.strangers.setdefault(one.pid, Stranger()).saw(one.bytes, busy.get(one.pid))


class GpuWatch:
    """Reads the GPUs on a thread of its own until closed; nothing where NVML is not there.

    Parameters:
        nvml: the session, closed with this; None watches nothing.
        before: the GPUs just before the server was started.
        ours: tells the server's processes now.
    """

    def __init__(
        self,
        nvml: Nvml | None,
        before: Sequence[Gpu],
        ours: Callable[[], Collection[int]],
        interval_s: float = 1.0,
    ) -> None:
        self._nvml, self._before, self._ours, self._interval = nvml, before, ours, interval_s
        self._seen = [Seen(gpu.name) for gpu in before]
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)
        if nvml is not None:
            self._thread.start()

    def caveats(self) -> tuple[Caveat, ...]:
        """What to know of the trial; complete once closed."""
        return gpu_caveats(self._before, self._seen)

    def close(self) -> None:
        if self._nvml is not None:
            self._enough.set()
            self._thread.join()
            self._nvml.close()
            self._nvml = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        assert self._nvml is not None
        before = [{one.pid for one in gpu.processes or ()} for gpu in self._before]
        while True:
            ours = self._ours()
            for index, gpu in enumerate(self._nvml.read()):
                self._seen[index].add(gpu, ours, before[index], self._nvml.busy(index))
            if self._enough.wait(self._interval):
                return


def watch_gpus(before: Sequence[Gpu], root_pid: int | None) -> GpuWatch:
    """Watches the GPUs through NVML, where it showed any before the server was started.

    Parameters:
        root_pid: the process under which the whole server runs; None where it is not to be seen from here.
    """

    def ours() -> set[int]:
        return set() if root_pid is None else {root_pid, *descendants(root_pid)}

    return GpuWatch(Nvml.open() if before else None, before, ours)


def gpu_caveats(before: Sequence[Gpu], seen: Sequence[Seen]) -> tuple[Caveat, ...]:
    """Caveats of a trial from what was seen of its GPUs. GPUs that the server does not use say nothing.

    Parameters:
        before: the GPUs before the server was started.
        seen: the same ones over the trial.
    """
    used = [index for index, one in enumerate(seen) if one.ours] or list(range(len(seen)))
    return tuple(
        caveat
        for index in used
        for caveat in (
            *_busy(index, before[index]),
            *_strangers(index, seen[index]),
            *_throttled(index, seen[index]),
        )
    )


def _busy(index: int, gpu: Gpu) -> Iterable[Caveat]:
    if gpu.utilisation is not None and gpu.utilisation >= BUSY_PERCENT:
        text = f"GPU {index} ({gpu.name}) was {gpu.utilisation} % busy before the server was started"
        yield Caveat(kind="foreign GPU use", message=text, line=None)


def _strangers(index: int, seen: Seen) -> Iterable[Caveat]:
    for pid, one in sorted(seen.strangers.items()):
        held = "unknown memory" if one.bytes is None else f"up to {one.bytes / 2**20:.0f} MiB"
        busy = "" if one.percent is None else f" and up to {one.percent} % of its processors"
        text = f"process {pid}, not the server's, held {held}{busy} on GPU {index} ({seen.name})"
        yield Caveat(kind="foreign GPU process", message=text, line=None)


def _throttled(index: int, seen: Seen) -> Iterable[Caveat]:
    for reason, count in seen.throttled.items():
        text = f"{reason} of GPU {index} ({seen.name}) in {count} of {seen.readings} readings"
        yield Caveat(kind="GPU throttled", message=text, line=None, count=count)
