"""From block tables to slots, in one vectorised expression."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]

_FEW = 24  # requests up to which a loop over plain integers beats the fixed cost of six numpy calls
_SEVERAL = 128  # slots up to which plain integers beat the fixed cost of two


def slots_of(
    block_table: npt.NDArray[np.int32],
    computed: npt.NDArray[np.integer],
    counts: npt.NDArray[np.integer] | int,
    block_size: int,
) -> Slots:
    """Slots of a step's tokens, request after request.

    Parameters:
        block_table: int32 [>=R, max_blocks], the physical block of each logical one.
        computed: [>=R], tokens each request had computed before the step.
        counts: [R], tokens each request computes in the step; or R itself, where each computes one.
        block_size: tokens per block.

    Returns:
        int64 [sum(counts)], `block_id * block_size + offset` of every token.
    """
    if isinstance(counts, int) and counts <= _FEW:
        block, size = block_table.item, block_size
        found = [block(row, at // size) * size + at % size for row, at in enumerate(computed[:counts].tolist())]
        return np.array(found, dtype=np.int64)
    if isinstance(counts, int):
        row: npt.NDArray[np.integer] = np.arange(counts)
        position: npt.NDArray[np.integer] = computed[:counts]
    else:
        requests = len(counts)
        row = np.repeat(np.arange(requests), counts)
        first = np.cumsum(counts) - counts
        position = np.repeat(computed[:requests] - first, counts) + np.arange(len(row))
    logical = position // block_size
    # physical * size + offset, with offset = position - logical * size
    slots: Slots = np.subtract(block_table[row, logical], logical, dtype=np.int64)
    slots *= block_size
    slots += position
    return slots


def outside(indices: Slots, size: int) -> bool:
    """Whether one of `indices` is no index of something of `size`."""
    if len(indices) <= _SEVERAL:
        found = indices.tolist()
        return bool(found) and (min(found) < 0 or max(found) >= size)
    # Seen as unsigned, a negative index is larger than any size.
    return int(indices.view(np.uint64).max()) >= size


def block_slots(blocks: Slots, block_size: int) -> Slots:
    """All slots of `blocks` [B] in order: int64 [B * block_size]."""
    slots: Slots = (blocks[:, None] * block_size + np.arange(block_size)).ravel()
    return slots
