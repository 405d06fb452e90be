"""One step's rows, request by request, with what they hit in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from prefix_cache.errors import AbsentRow, CacheFailed
from prefix_cache.pool import BufferPool, layout_of
from prefix_cache.staging import StagedRows

Span = tuple[int, int]
Prefix = tuple[int, Mapping[str, Tensor]]
"""Rows that a request hits: how many, and by key with room behind them for its own."""

_VIEW_SHARE = 4  # a request with at least a quarter of the step's rows is handed a view of them


@dataclass(frozen=True, slots=True)
class Merged:
    rows: dict[str, dict[str, Tensor]]
    copied_bytes: int


def merge(
    staged: StagedRows,
    spans: Mapping[str, Span],
    ids: Sequence[str],
    prefixes: Mapping[str, Prefix],
    required: frozenset[str],
    pool: BufferPool,
    timeout: float,
) -> Merged:
    """Rows of `ids` by key and request.

    A request keeps alive no more memory than about four times its own rows: where its rows are a small part of what
    they lie in, they are copied out.

    Parameters:
        spans: first and last-plus-one row of every request of the step.
        prefixes: of the requests that hit something.
    """
    rows = staged.host(timeout)
    total = max((stop for _, stop in spans.values()), default=0)
    copied = [
        request
        for request in ids
        if request not in prefixes and (staged.shared or _length(spans[request]) * _VIEW_SHARE < total)
    ]
    copies, nbytes = _copy(rows, [spans[request] for request in copied], pool)
    own = dict(zip(copied, range(len(copied)), strict=True))
    merged: dict[str, dict[str, Tensor]] = {}
    for key, value in rows.items():
        by_id = {}
        for request in ids:
            if request in own:
                by_id[request] = copies[key][own[request]]
                continue
            start, stop = spans[request]
            if request in prefixes:
                by_id[request] = _prepend(key, value[start:stop], prefixes[request], required)
                nbytes += value[start:stop].nbytes
            else:
                by_id[request] = value[start:stop]
        merged[key] = by_id
    return Merged(merged, nbytes)


def _copy(rows: Mapping[str, Tensor], spans: Sequence[Span], pool: BufferPool) -> tuple[dict[str, list[Tensor]], int]:
    """Copies of the spans, in one piece of memory, and its bytes."""
    lengths = [_length(span) for span in spans]
    if not spans:
        return {key: [] for key in rows}, 0
    targets = pool.lease_rows(layout_of(rows), sum(lengths))
    first, last = spans[0][0], spans[-1][1]
    adjacent = last - first == sum(lengths) and all(a[1] == b[0] for a, b in pairwise(spans))
    nbytes = 0
    for key, value in rows.items():
        if adjacent:
            targets[key].copy_(value[first:last])
        else:
            torch.cat([value[start:stop] for start, stop in spans], out=targets[key])
        nbytes += targets[key].nbytes
    return {key: list(target.split(lengths)) for key, target in targets.items()}, nbytes


def _prepend(key: str, own: Tensor, prefix: Prefix, required: frozenset[str]) -> Tensor:
    length, rows = prefix
    out = rows.get(key)
    if out is None:
        # The key was first written after the read: none of the prefix's tokens emitted it.
        if key in required:
            raise CacheFailed(f"a hit has no {key!r} rows") from AbsentRow(key)
        out = torch.zeros((length + len(own), *own.shape[1:]), dtype=own.dtype)
    out[length:] = own
    return out


def _length(span: Span) -> int:
    return span[1] - span[0]
