# ruff: noqa: N802, N815 - the names are pynvml's
"""An NVML behind pynvml's own names, whose GPU a test changes as it likes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """What pynvml raises for everything."""


@dataclass
class Card:
    """One GPU: memory by process, percent busy by process, throttle bits; `silent` names are refused."""

    name: str = "NVIDIA H200"
    processes: dict[int, int | None] = field(default_factory=dict)
    busy: dict[int, int] = field(default_factory=dict)
    throttle: int = 0
    utilisation: int = 0
    silent: tuple[str, ...] = ()


class FakeNvml:
    """The part of pynvml that is used here."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlClocksThrottleReasonSwPowerCap = 0x4
    nvmlClocksThrottleReasonHwSlowdown = 0x8
    nvmlClocksThrottleReasonSwThermalSlowdown = 0x20
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40
    nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80

    def __init__(self, *cards: Card) -> None:
        self.cards = list(cards)
        self.closed = False
        self.asked = 0

    def nvmlInit(self) -> None:
        self.closed = False

    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self.cards[index]

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetName": lambda card: card.name,
            "nvmlDeviceGetUUID": lambda _: "GPU-1",
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=141 * 2**30),
            "nvmlDeviceGetClockInfo": lambda _, clock: 1755 if clock == self.NVML_CLOCK_SM else 3201,
            "nvmlDeviceGetMaxClockInfo": lambda *_: 1980,
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
            "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=card.utilisation, memory=0),
            "nvmlDeviceGetTemperature": lambda *_: 41,
            "nvmlDeviceGetCurrentClocksThrottleReasons": self._throttle,
            "nvmlDeviceGetComputeRunningProcesses": lambda card: [
                SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in card.processes.items()
            ],
            "nvmlDeviceGetProcessUtilization": lambda card, since: [
                SimpleNamespace(pid=pid, smUtil=percent, timeStamp=since + 1) for pid, percent in card.busy.items()
            ],
        }
        if name not in answers:
            raise AttributeError(name)

        def ask(card: Card, *rest: Any) -> Any:
            if name in card.silent:
                raise NVMLError(name)
            return answers[name](card, *rest)

        return ask

    def _throttle(self, card: Card) -> int:
        self.asked += 1
        return card.throttle
