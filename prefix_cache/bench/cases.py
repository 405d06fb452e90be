"""What is measured: sizes, cases and the catalogue."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

Kind = Literal["decode", "prefill", "hit", "slots", "first", "resident"]
Consume = Literal["materialize", "discard"]
Mode = Literal["inline", "threaded"]

MODES: tuple[Mode, ...] = ("inline", "threaded")
KEYS = ("hidden", "layer_0", "layer_24")
"""The first is required; the others are optional, as a two-layer speech model's are."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The engine that is imitated.

    Parameters:
        width: elements of one row of one key, bfloat16.
        block_size: tokens per KV block.
        num_blocks: blocks of the KV cache.
        step_tokens: the most tokens one step computes.
        decode_blocks: the most blocks a decoding request owns; it starts over in them when they are full.
        hit_own: tokens a request with a hit computes itself.
        resident_blocks: blocks of the cache whose memory is measured.
    """

    width: int = 2048
    block_size: int = 16
    num_blocks: int = 4096
    step_tokens: int = 8192
    decode_blocks: int = 64
    hit_own: int = 64
    resident_blocks: int = 10240

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's rows of all keys."""
        return len(KEYS) * self.width * 2


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of step, repeated.

    Parameters:
        requests: requests of a step.
        tokens: tokens that each of them computes.
        hit: tokens that each finds in the cache.
        prefetched: whether the engine computes long enough for a hit to be read meanwhile.
        consume: what happens to the step's rows.
        steps: steps of one batch; a multiple of the block size where steps are buffered, so that each batch has its
            share of flushes.
    """

    name: str
    kind: Kind
    requests: int = 1
    tokens: int = 1
    hit: int = 0
    prefetched: bool = False
    consume: Consume = "materialize"
    steps: int = 1

    @property
    def has_yardstick(self) -> bool:
        """Whether a plain copy of the same bytes is timed beside it."""
        return self.kind in ("prefill", "hit")

    @property
    def is_step(self) -> bool:
        """Whether it is begin + save + consume."""
        return self.kind in ("decode", "prefill", "hit")

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Case:
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def decode(requests: int, consume: Consume, steps: int) -> Case:
    return Case(f"decode-{requests}-{consume}", "decode", requests, consume=consume, steps=steps)


def prefill(tokens: int, steps: int) -> Case:
    return Case(f"prefill-{tokens}", "prefill", tokens=tokens, steps=steps)


def hit(tokens: int, own: int, *, prefetched: bool, steps: int) -> Case:
    name = f"hit-{tokens}-{'prefetched' if prefetched else 'at-once'}"
    return Case(name, "hit", tokens=own, hit=tokens, prefetched=prefetched, steps=steps)


def slots(requests: int, tokens: int, steps: int) -> Case:
    name = f"slots-decode-{requests}" if tokens == 1 else f"slots-prefill-{tokens}"
    return Case(name, "slots", requests, tokens, steps=steps)


def catalogue(sizes: Sizes) -> tuple[Case, ...]:
    """Every case, in the order it runs."""
    both: tuple[Consume, ...] = ("discard", "materialize")
    steps = {1: 128, 16: 128, 64: 64, 256: 32}
    hits = {512: 12, 4096: 8, 16384: 4}
    return (
        *(decode(requests, consume, steps[requests]) for requests in steps for consume in both),
        prefill(512, 16),
        prefill(8192, 4),
        *(hit(n, sizes.hit_own, prefetched=early, steps=hits[n]) for n in hits for early in (True, False)),
        slots(16, 1, 200),
        slots(64, 1, 100),
        slots(1, 8192, 50),
        Case("first-decode-64", "first", 64, 1, steps=1),
        Case("first-prefill-512", "first", 1, 512, steps=1),
        Case("resident", "resident"),
    )


def select(cases: tuple[Case, ...], only: list[str], *, quick: bool, block_size: int) -> tuple[Case, ...]:
    """The cases whose name matches one of the globs; none given: all. Quick ones have about a quarter of the steps."""
    chosen = tuple(case for case in cases if not only or any(fnmatchcase(case.name, glob) for glob in only))
    if not quick:
        return chosen
    return tuple(replace(case, steps=_fewer(case, block_size)) for case in chosen)


def _fewer(case: Case, block_size: int) -> int:
    if case.kind == "decode":
        return max(block_size, case.steps // 4 // block_size * block_size)
    return max(1, case.steps // 4)
