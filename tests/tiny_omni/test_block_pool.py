"""The block pool against a naive one that keeps every block's whole prefix and a plain list of free blocks."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from harness.tiny_omni.block_pool import ROOT_HASH, BlockPool, hash_block

SIZE = 2
BLOCKS = 8


def hashes_of(tokens: tuple[int, ...]) -> list[bytes]:
    hashes: list[bytes] = []
    for end in range(SIZE, len(tokens) + 1, SIZE):
        hashes.append(hash_block(hashes[-1] if hashes else ROOT_HASH, tokens[end - SIZE : end]))
    return hashes


class PoolMachine(RuleBasedStateMachine):
    """Requests come, hit, publish and leave; the oracle replays each move on plain lists and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.references = dict.fromkeys(range(BLOCKS), 0)
        self.free = list(range(BLOCKS))
        self.prefix: dict[int, tuple[int, ...]] = {}

    held = Bundle("held")

    @rule(target=held, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple))
    def start(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Schedule a whole prompt: hit what is there, allocate the rest, publish its full blocks."""
        hashes = hashes_of(tokens)
        hits = self.pool.find(hashes[: (len(tokens) - 1) // SIZE])
        for index, block in enumerate(hits):
            assert self.prefix[block] == tokens[: (index + 1) * SIZE]
        longer = tokens[: (len(hits) + 1) * SIZE]
        if len(longer) < len(tokens) and len(longer) == (len(hits) + 1) * SIZE:
            assert longer not in self.prefix.values(), "a longer hit was there"
        fresh = -(-len(tokens) // SIZE) - len(hits)
        kept = sum(1 for block in hits if self.references[block] == 0)
        assert self.pool.fits(hits, fresh) == (fresh + kept <= len(self.free))
        if fresh + kept > len(self.free):
            return ()
        self.pool.share(hits)
        for block in hits:
            self.references[block] += 1
            if block in self.free:
                self.free.remove(block)
        new = self.pool.allocate(fresh)
        assert new == self.free[:fresh], "least recently freed first"
        del self.free[:fresh]
        for block in new:
            self.references[block] += 1
            self.prefix.pop(block, None)
        blocks = [*hits, *new]
        full = len(tokens) // SIZE
        self.pool.publish(blocks[len(hits) : full], hashes[len(hits) :])
        for index in range(len(hits), full):
            self.prefix[blocks[index]] = tokens[: (index + 1) * SIZE]
        return tuple(blocks)

    @rule(blocks=consumes(held))
    def end(self, blocks: tuple[int, ...]) -> None:
        self.pool.free(blocks)
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                self.free.append(block)

    @rule()
    def reset(self) -> None:
        idle = not any(self.references.values())
        assert self.pool.reset() == idle
        if idle:
            self.prefix.clear()

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.num_free == len(self.free) == sum(1 for n in self.references.values() if n == 0)
        assert self.pool.usage == pytest.approx(1 - len(self.free) / BLOCKS)

    @invariant()
    def every_published_prefix_is_found(self) -> None:
        for tokens in set(self.prefix.values()):
            hits = self.pool.find(hashes_of(tokens))
            assert [self.prefix[block] for block in hits] == [
                tokens[: (index + 1) * SIZE] for index in range(len(hits))
            ]
            reachable = 0
            while reachable < len(tokens) // SIZE and tokens[: (reachable + 1) * SIZE] in self.prefix.values():
                reachable += 1
            assert len(hits) == reachable


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestPoolMachine = PoolMachine.TestCase


def test_a_hash_tells_the_whole_prefix() -> None:
    """Equal blocks after different prefixes have different hashes, and block boundaries count."""
    assert hashes_of((1, 2, 3, 4))[1] != hashes_of((2, 1, 3, 4))[1]
    assert hashes_of((1, 2, 3, 4)) == hashes_of((1, 2, 3, 4, 5))
    assert hash_block(ROOT_HASH, (1, 2)) != hash_block(ROOT_HASH, (1, 2, 3))


def test_the_tail_of_a_freed_prefix_goes_first() -> None:
    """A freed request's last block is reused before its first, so that a shorter prefix can still be hit."""
    pool = BlockPool(3)
    tokens = (1, 2, 3, 4, 5, 6)
    blocks = pool.allocate(3)
    pool.publish(blocks, hashes_of(tokens))
    pool.free(blocks)
    assert pool.find(hashes_of(tokens)) == blocks
    assert pool.allocate(1) == [blocks[2]]
    assert pool.find(hashes_of(tokens)) == blocks[:2]


def test_a_second_holder_of_a_hash_survives_the_first() -> None:
    """When equal tokens were computed twice, the prefix stays findable until both blocks are reused."""
    pool = BlockPool(2)
    block_hash = hashes_of((1, 2))
    for block in pool.allocate(2):
        pool.publish([block], block_hash)
    pool.free([0])
    assert pool.allocate(1) == [0]
    assert pool.find(block_hash) == [1]


def test_more_blocks_than_are_free_are_refused() -> None:
    """Allocation never takes what is in use."""
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(ValueError, match="found 1 free blocks; asked for 2"):
        pool.allocate(2)
