"""KV blocks: reference counts, prefix hashes and LRU reuse, with the semantics of vLLM v1's block pool."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

ROOT_HASH = b""


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of one full block, chained: equal hashes mean equal tokens from the start of the prompt on."""
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


class BlockPool:
    """Blocks of the KV cache, each free (no references) or in use (at least one).

    A block's hash outlives its references: a free block can still be hit until it is given to somebody else.
    Free blocks are reused least recently freed first. Several blocks may carry one hash, when equal tokens were
    computed twice.

    Parameters:
        num_blocks: blocks 0 .. num_blocks - 1.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._cached: dict[bytes, OrderedDict[int, None]] = {}

    @property
    def num_free(self) -> int:
        """Blocks without references, hashed ones included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0 to 1."""
        return 1.0 - len(self._free) / self.num_blocks

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest prefix of `hashes` that is cached. Takes no reference."""
        blocks: list[int] = []
        for block_hash in hashes:
            holders = self._cached.get(block_hash)
            if holders is None:
                break
            blocks.append(next(iter(holders)))
        return blocks

    def fits(self, hits: Sequence[int], fresh: int) -> bool:
        """Whether `hits` can be kept and `fresh` more blocks be allocated."""
        kept = sum(1 for block in hits if not self._references[block])
        return fresh + kept <= len(self._free)

    def share(self, blocks: Sequence[int]) -> None:
        """Take one reference to each of `blocks`, which `find` returned."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks with one reference each; their old hashes are forgotten.

        Raises:
            ValueError: fewer than `count` blocks are free.
        """
        if count > len(self._free):
            raise ValueError(f"allocate: found {len(self._free)} free blocks; asked for {count}")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._forget(block)
            self._references[block] = 1
        return blocks

    def publish(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Make `blocks`, which the caller holds and which are not yet published, findable by `hashes`."""
        for block, block_hash in zip(blocks, hashes, strict=True):
            self._hashes[block] = block_hash
            self._cached.setdefault(block_hash, OrderedDict())[block] = None

    def free(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each of a request's `blocks`, in the request's order.

        They join the free queue last block first, so that the tail of a prefix is reused before its head.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None

    def reset(self) -> bool:
        """Forget every hash. False, and nothing is done, while any block is in use."""
        if len(self._free) != self.num_blocks:
            return False
        self._cached.clear()
        self._hashes = [None] * self.num_blocks
        return True

    def _forget(self, block: int) -> None:
        block_hash = self._hashes[block]
        if block_hash is None:
            return
        self._hashes[block] = None
        holders = self._cached[block_hash]
        del holders[block]
        if not holders:
            del self._cached[block_hash]
