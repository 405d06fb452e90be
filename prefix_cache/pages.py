"""Memory whose pages become resident where it is first written, in pages of a chosen size."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor


def lazy_pages(nbytes: int, *, huge: bool) -> Tensor:
    """uint8 [nbytes], zeros.

    Parameters:
        huge: whether the system may make 2 MiB resident at a time: fewer and cheaper faults and lookups for memory
            that is used as a whole, a waste for memory of which single rows are.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):
        return torch.zeros(nbytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice = getattr(mmap, "MADV_HUGEPAGE" if huge else "MADV_NOHUGEPAGE", None)
    if advice is not None:
        # A kernel without huge pages refuses either.
        with suppress(OSError):
            memory.madvise(advice)
    return torch.frombuffer(memory, dtype=torch.uint8)
