"""What one batch, or one fresh cache, measured. All times in nanoseconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

SHARES = (0.01, 0.1, 1.0)
"""How full a cache is when its memory is read."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch of a case.

    Parameters:
        begin: wall time of the call in each step, on the engine's thread; likewise `save` and `consume`, which is
            materialize, and letting go of what it returned, or discard.
        slots: wall time of the slot mapping, where the case is only that.
        thread: CPU time of the engine's thread inside the timed calls of each step.
        process: CPU time per step of the whole process, less what the driver spent between the timed calls.
        copy: a plain copy of the same bytes into warm memory, after each step, where the case has one.
        gather: the gather of each step's hit, by the cache's own timer; empty where it has none.
    """

    begin: list[int] = field(default_factory=list)
    save: list[int] = field(default_factory=list)
    consume: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    process: float = 0.0
    copy: list[int] = field(default_factory=list)
    gather: list[float] = field(default_factory=list)

    @property
    def wall(self) -> list[int]:
        """Wall time on the engine's thread of each step's timed calls together."""
        if self.slots:
            return self.slots
        return [sum(calls) for calls in zip(self.begin, self.save, self.consume, strict=True)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Sample:
        return cls(**{item.name: value[item.name] for item in fields(cls)})


@dataclass(frozen=True, slots=True)
class FirstSaves:
    """A fresh cache's first saves against its later ones: one time of `save` alone, see `FirstTimes`.

    Parameters:
        arrival: its very first save, a step in which every request is new.
        arrival_fresh: such saves later, on blocks never written before, whose memory is not resident yet.
        arrival_steady: such saves later, on blocks written before.
        decode: the first save of a step that only decodes; empty where the case has none.
        decode_steady: such saves later.
    """

    arrival: list[int]
    arrival_fresh: list[int]
    arrival_steady: list[int]
    decode: list[int]
    decode_steady: list[int]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FirstSaves:
        return cls(**value)


@dataclass(frozen=True, slots=True)
class FirstTimes:
    """The same saves in wall time and in CPU time of the engine's thread, which waiting for a core does not raise."""

    wall: FirstSaves
    thread: FirstSaves

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FirstTimes:
        return cls(FirstSaves.from_json(value["wall"]), FirstSaves.from_json(value["thread"]))


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory of a store that is partly full, in a process of its own.

    Parameters:
        written: bytes of rows written, by share of the cache that is full.
        grown: by how much the process's resident memory grew meanwhile.
    """

    written: dict[str, int]
    grown: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Resident:
        return cls(**value)
