"""Memory that stage 0 goes on taking while its load stays the same: a caveat of the trial."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Caveat, CellInfo, CellRecord

GROWTH_SHARE = 0.05
"""Of the memory that growth is counted from."""
GROWTH_BYTES = 64 * 2**20
_RESIDENT = "prefix_cache:resident_bytes"


def memory_growth(cells: Sequence[CellRecord]) -> tuple[Caveat, ...]:
    """Whether stage 0 grew by more than 5 % and 64 MiB over what the cache's own rows explain.

    With more than one pass over the benches, from the end of the first pass to the end of the last: the load was the
    same. With one, from the end of the first reported bench to the end of the last; benches differ, so that is only a
    hint, and what accuracy checks ask for is no part of it. Rows that the cache says it holds more are its purpose,
    and are taken off.

    Parameters:
        cells: of one trial, in the order they ran.
    """
    known = [one.cell for one in cells if one.cell.memory is not None]
    if known and known[-1].pass_number > 1:
        ends = [[cell for cell in known if cell.pass_number == 1][-1:], known[-1:]]
    else:
        reported = [cell for cell in known if cell.reported]
        ends = [reported[:1], reported[1:][-1:]]
    if not all(ends):
        return ()
    [first], [last] = ends
    assert first.memory is not None
    assert last.memory is not None
    rows = max(_resident(last) - _resident(first), 0.0)
    grown = last.memory.rss - first.memory.rss
    if grown - rows <= max(GROWTH_BYTES, GROWTH_SHARE * first.memory.rss):
        return ()
    text = (
        f"stage 0's VmRSS grew by {grown / 2**20:.0f} MiB from the end of {_place(first)} to the end of "
        f"{_place(last)}, {rows / 2**20:.0f} MiB of it rows in the cache"
    )
    return (Caveat(kind="memory growth", message=text, line=None),)


def _resident(cell: CellInfo) -> float:
    """Bytes of rows that the cache says it holds, over its keys; 0 where there is no cache to say so."""
    samples = cell.metrics.after if cell.metrics is not None else ()
    return sum(one.value for one in samples if one.name == _RESIDENT)


def _place(cell: CellInfo) -> str:
    return cell.bench if cell.pass_number == 1 else f"{cell.bench} in pass {cell.pass_number}"
