"""One engine step as the model reads it: flat token, position and slot arrays and the attention's index work.

Everything that depends on the step but not on the layer is computed here, once, in vectorised expressions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

PADDED_KEYS_BUDGET = 32_768
"""Keys one batched decode gather may hold, padding included, so that one long context does not pad all others."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Neighbouring one-token requests whose attention is one batched call.

    Parameters:
        rows: the group's rows of the step.
        kv_slots: int64 [B * L], slots of each request's context, padded by repeating its last slot.
        mask: bool [B, 1, 1, L], true where a key is one of the request's own.
    """

    rows: slice
    kv_slots: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One request's chunk of several tokens.

    Parameters:
        rows: the chunk's rows of the step.
        kv_slots: int64 [context], slots of everything the chunk may attend to; None when the chunk is the
            whole context, whose keys are then the step's own.
        mask: bool [count, context], causal over the earlier context; None exactly when `kv_slots` is.
    """

    rows: slice
    kv_slots: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One flattened step of N tokens and R requests; one-token requests may stand anywhere.

    Parameters:
        token_ids, positions, slots: int64 [N].
        decodes, chunks: together they cover every row once.
        sample_rows: int64 [S], rows whose logits are wanted.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]
    sample_rows: torch.Tensor


def positions_of(computed: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of a step's tokens within their requests, request after request: int64 [N]."""
    starts = np.cumsum(counts) - counts
    positions: NDArray[np.int64] = np.arange(int(counts.sum())) + np.repeat(computed - starts, counts)
    return positions


def build_input(
    token_ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    block_tables: NDArray[np.int32],
    computed: NDArray[np.int64],
    counts: NDArray[np.int64],
    slots: NDArray[np.int64],
    sample_rows: NDArray[np.int64],
    block_size: int,
) -> ModelInput:
    """Lay out one step for the model.

    Parameters:
        token_ids, positions: [N], the requests' tokens one after the other (see `positions_of`).
        block_tables: [R, C], entries past a request's context are not read.
        computed: [R], tokens of each request already in the KV cache.
        counts: [R], tokens of each request in this step, at least 1; they sum to N.
        slots: [N], where each token's K and V go.
        sample_rows: [S], rows to take logits from.
    """
    starts = np.cumsum(counts) - counts
    decodes = tuple(
        _decode_group(block_tables[first:last], computed[first:last] + 1, int(starts[first]), block_size)
        for first, last in _runs_of_single(counts, computed + 1)
    )
    chunks = tuple(
        _prefill_chunk(table, int(done), int(count), int(start), block_size)
        for table, done, count, start in zip(block_tables, computed, counts, starts, strict=True)
        if count > 1
    )
    return ModelInput(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        decodes=decodes,
        chunks=chunks,
        sample_rows=torch.from_numpy(sample_rows),
    )


def _runs_of_single(counts: NDArray[np.int64], contexts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of neighbouring one-token requests, each within the budget of padded keys."""
    runs: list[tuple[int, int]] = []
    first, longest = -1, 0
    for request, (count, context) in enumerate(zip(counts.tolist(), contexts.tolist(), strict=True)):
        if count > 1:
            if first >= 0:
                runs.append((first, request))
            first, longest = -1, 0
            continue
        padded = max(longest, context)
        if first >= 0 and padded * (request - first + 1) > PADDED_KEYS_BUDGET:
            runs.append((first, request))
            first, padded = request, context
        first, longest = (first if first >= 0 else request), padded
    if first >= 0:
        runs.append((first, len(counts)))
    return runs


def _decode_group(
    block_tables: NDArray[np.int32], contexts: NDArray[np.int64], start: int, block_size: int
) -> DecodeGroup:
    keys = np.arange(int(contexts.max()), dtype=np.int64)
    # Padding repeats the last real key: unwritten KV memory may hold NaN, which no mask survives.
    index = np.minimum(keys[None, :], contexts[:, None] - 1)
    blocks = np.take_along_axis(block_tables, index // block_size, axis=1)
    kv_slots = blocks * np.int64(block_size) + index % block_size
    mask = torch.from_numpy(keys[None, :] < contexts[:, None])
    return DecodeGroup(
        rows=slice(start, start + len(contexts)),
        kv_slots=torch.from_numpy(kv_slots.reshape(-1)),
        mask=mask[:, None, None, :],
    )


def _prefill_chunk(
    block_table: NDArray[np.int32], computed: int, count: int, start: int, block_size: int
) -> PrefillChunk:
    rows = slice(start, start + count)
    if computed == 0:
        return PrefillChunk(rows, None, None)
    keys = np.arange(computed + count, dtype=np.int64)
    kv_slots = block_table[keys // block_size] * np.int64(block_size) + keys % block_size
    mask = keys[None, :] <= np.arange(computed, computed + count, dtype=np.int64)[:, None]
    return PrefillChunk(rows, torch.from_numpy(kv_slots), torch.from_numpy(mask))
