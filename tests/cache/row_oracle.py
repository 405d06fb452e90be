"""What every row must be, computed without any cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

START = 0


@dataclass(frozen=True, slots=True)
class Key:
    """One per-token output of the simulated engine."""

    name: str
    shape: tuple[int, ...]
    dtype: str


HIDDEN = Key("hidden", (3,), "float64")
AUX = Key("aux", (2, 2), "float32")
CODE = Key("code", (5,), "int16")
KEYS = {key.name: key for key in (HIDDEN, AUX, CODE)}


def next_state(state: int, token: int) -> int:
    """Names a token together with all tokens before it."""
    digest = hashlib.blake2b(b"%d %d" % (state, token), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def hidden_rows(states: Sequence[int]) -> np.ndarray:
    """Rows [N, 3] of tokens: functions of all tokens up to each, as a transformer's are."""
    array = np.array(states, dtype=np.uint64)
    parts = [array >> np.uint64(shift) & np.uint64(0x1FFFFF) for shift in (0, 21, 42)]
    return np.stack(parts, axis=-1).astype(HIDDEN.dtype)


def stamped_rows(key: Key, first: int, count: int) -> np.ndarray:
    """Rows [count, *shape] that no other token ever has, so that a stale one cannot pass for a fresh one."""
    stamps = np.arange(first, first + count, dtype=np.int64)
    low, high = stamps % 10_000 + 1, stamps // 10_000 % 10_000 + 1
    columns = [low if column % 2 == 0 else high for column in range(int(np.prod(key.shape)))]
    return np.stack(columns, axis=-1).reshape(count, *key.shape).astype(key.dtype)


class NaiveStore:
    """A dictionary per key, written and read in program order."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, np.ndarray]] = {name: {} for name in KEYS}
        self.zeroed = 0

    def write(self, slots: Sequence[int], rows: Mapping[str, np.ndarray]) -> None:
        for name, table in self._rows.items():
            if name in rows:
                table.update(zip(slots, rows[name], strict=True))
            else:
                for slot in slots:
                    table.pop(slot, None)

    def read(self, name: str, slots: Iterable[int], *, required: bool) -> np.ndarray:
        """Rows [N, *shape]; zeros for an optional row that the slot's last tenant did not emit."""
        key, table, found = KEYS[name], self._rows[name], []
        for slot in slots:
            row = table.get(slot)
            if row is None:
                assert not required, f"the simulated engine hit {name} at slot {slot}, which it never computed"
                self.zeroed += 1
                row = np.zeros(key.shape, key.dtype)
            found.append(row)
        return np.array(found, dtype=key.dtype).reshape(-1, *key.shape)
