"""Who kept the host's cores busy: a server that shares them is measured with its neighbours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostCpu:
    """Cores by who kept them busy, on average over an interval; of those that this process may use.

    Parameters:
        cores: how many there are.
        foreign: busy with neither the server nor this process, another machine on the same hardware (steal) included.
            Interrupts are nobody's.
        idle: free for anybody.
    """

    cores: int
    foreign: float
    idle: float

    @property
    def crowded(self) -> bool:
        """Whether others took what the server may have wanted: more than a twentieth, and less than half was idle."""
        return self.foreign > 0.05 * self.cores and self.idle < 0.5 * self.cores

    def __str__(self) -> str:
        return (
            f"other processes kept {self.foreign:.1f} of its {self.cores} cores busy, and {self.idle:.1f} of them idled"
        )
