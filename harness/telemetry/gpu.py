"""GPU memory by process, through NVML."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class GpuMemory:
    """An open NVML session."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        """Take over an initialised NVML; use `GpuMemory.open`."""
        self._nvml, self._handles = nvml, handles

    @classmethod
    def open(cls) -> GpuMemory | None:
        """Start NVML; None where it is not installed, has no driver, or sees no GPU."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        if not handles:
            pynvml.nvmlShutdown()
            return None
        return cls(pynvml, handles)

    @property
    def names(self) -> tuple[str, ...]:
        """`NAME, BYTES bytes, driver VERSION` of each GPU."""
        driver = self._nvml.nvmlSystemGetDriverVersion()
        return tuple(
            f"{self._nvml.nvmlDeviceGetName(handle)}, {self._nvml.nvmlDeviceGetMemoryInfo(handle).total} bytes, "
            f"driver {driver}"
            for handle in self._handles
        )

    def read(self, pids: Collection[int]) -> int | None:
        """Bytes that these processes hold on all GPUs.

        None when the driver knows none of them (they hold nothing, or a container hides their ids) or does not tell.
        """
        held = []
        for handle in self._handles:
            try:
                processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except self._nvml.NVMLError:
                continue
            held += [p.usedGpuMemory for p in processes if p.pid in pids and p.usedGpuMemory is not None]
        return sum(held) if held else None

    def close(self) -> None:
        self._nvml.nvmlShutdown()
