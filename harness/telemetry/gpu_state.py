"""What NVML says of each GPU now: clocks, power cap, use, throttling, and the processes on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from harness.records import Gpu, GpuProcess

T = TypeVar("T")

# Bits of `nvmlDeviceGetCurrentClocksThrottleReasons`. An idle GPU's clocks are down as well, which holds nobody up;
# the power cap is where a busy GPU is expected to be, and is recorded as a number.
_REASONS = {
    "nvmlClocksThrottleReasonSwThermalSlowdown": "software thermal slowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksThrottleReasonSwPowerCap": "power cap",
}
POWER_CAP = _REASONS["nvmlClocksThrottleReasonSwPowerCap"]


class Nvml:
    """An open NVML session.

    Parameters:
        library: pynvml, initialised.
    """

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        self._seen_us = [0] * len(self._handles)

    @classmethod
    def open(cls) -> Nvml | None:
        """Start NVML; None where it is not installed, has no driver, or sees no GPU."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        session = cls(pynvml)
        if not session._handles:
            session.close()
            return None
        return session

    def read(self) -> tuple[Gpu, ...]:
        """Every GPU now; what the driver does not tell is None."""
        return tuple(self._gpu(handle) for handle in self._handles)

    def busy(self, gpu: int) -> dict[int, int]:
        """Percent of a GPU's processors each process kept busy since the last call; empty where nobody tells."""
        samples = self._ask(lambda: self._nvml.nvmlDeviceGetProcessUtilization(self._handles[gpu], self._seen_us[gpu]))
        found: dict[int, int] = {}
        for sample in samples or ():
            found[sample.pid] = max(found.get(sample.pid, 0), sample.smUtil)
            self._seen_us[gpu] = max(self._seen_us[gpu], sample.timeStamp)
        return found

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _gpu(self, handle: Any) -> Gpu:
        nvml = self._nvml
        milliwatts = self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        return Gpu(
            name=nvml.nvmlDeviceGetName(handle),
            uuid=self._ask(lambda: nvml.nvmlDeviceGetUUID(handle)),
            driver=self._ask(nvml.nvmlSystemGetDriverVersion),
            memory_bytes=self._ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
            sm_clock=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            sm_clock_max=self._ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            power_limit=None if milliwatts is None else milliwatts / 1000.0,
            utilisation=self._ask(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            temperature=self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            throttle=self._ask(lambda: self._throttle(handle)),
            processes=self._ask(lambda: self._processes(handle)),
        )

    def _throttle(self, handle: Any) -> tuple[str, ...]:
        bits = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return tuple(said for name, said in _REASONS.items() if bits & getattr(self._nvml, name))

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return tuple(GpuProcess(pid=one.pid, bytes=one.usedGpuMemory) for one in sorted(found, key=lambda one: one.pid))

    def _ask(self, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except self._nvml.NVMLError:
            return None
