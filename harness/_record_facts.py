"""The records of provenance: machine, model, GPUs and profile of one trial. What could not be learned is null."""

from __future__ import annotations

from typing import Literal

from harness._record_base import Record


class SourceTree(Record):
    """A source tree involved in the measurement. `commit` is null outside version control."""

    name: str
    path: str
    commit: str | None
    dirty: bool | None

    @property
    def state(self) -> str:
        """The commit, and whether the tree differed from it, in words."""
        return f"{self.commit or 'outside version control'}{' with local changes' if self.dirty else ''}"


class Container(Record):
    """What a control group (version 2) allows this process, the tightest limit from it up to the root."""

    cpus: float | None
    """Processors; null: no limit."""
    memory_bytes: int | None


class GpuProcess(Record):
    """A process that the driver sees on a GPU. `bytes` is null where the driver does not tell."""

    pid: int
    bytes: int | None


class Gpu(Record):
    """One GPU at one instant. Clocks are MHz, power is watts."""

    name: str
    uuid: str | None
    driver: str | None
    memory_bytes: int | None
    sm_clock: int | None
    sm_clock_max: int | None
    memory_clock: int | None
    power_limit: float | None
    utilisation: int | None
    """Percent of the last sampling period of the driver."""
    temperature: int | None
    throttle: tuple[str, ...] | None
    """Why its clocks are held down now, idleness aside."""
    processes: tuple[GpuProcess, ...] | None


class Model(Record):
    """Which weights were served."""

    id: str
    path: str | None
    """Their folder; null where the server finds or makes them itself."""
    revision: str | None
    """Commit on the model hub, of a snapshot folder."""
    config_sha256: str | None
    weights_sha256: str | None
    """Of the index of the safetensors files, and of each weight file's name and size: not of its content."""
    weights_bytes: int | None


class Host(Record):
    """Where it ran."""

    hostname: str
    platform: str
    kernel: str
    cpu_model: str
    cpu_count: int
    memory_bytes: int
    python: str
    load_1m: float
    gpus: tuple[str, ...] = ()
    container: Container | None = None
    """Null where no version 2 control group is to be seen, and in runs from before it was recorded."""
    autogroup: bool | None = None
    """Whether the kernel shares the CPUs among sessions before it does among their processes
    (`kernel.sched_autogroup_enabled`); null where it does not tell."""


class FunctionShare(Record):
    """Samples whose innermost frame inside the cache is this function, on one thread."""

    function: str
    file: str
    thread: str
    samples: int


class Profile(Record):
    """A sampled profile of stage 0 under one bench's load, in a pass of its own that is never measured."""

    bench: str
    seconds: float
    reported: Literal[False] = False
    file: str | None
    """In the trial's folder, in speedscope's format; null where there is none."""
    passes: int
    """Times the load was begun while the profiler was attached."""
    samples: int
    """Of threads that did something."""
    waiting: int = 0
    """Samples left out, of threads that only waited for work."""
    cache: tuple[FunctionShare, ...]
    """What of the samples lies inside the cache, most first."""
    failure: str | None = None
    """Why there is no profile."""
