"""The persistent input batch: block table and token ids of the running requests, one row each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class InputBatch:
    """Arrays that outlive a step and change by what changed, so that a step's inputs are vectorised look-ups.

    Attributes:
        block_table: int32 [max_num_seqs, max_blocks], valid up to each row's number of blocks.
        token_ids: int64 [max_num_seqs, max_model_len], valid up to each row's number of tokens.
    """

    def __init__(self, max_num_seqs: int, max_blocks: int, max_model_len: int) -> None:
        self.block_table: NDArray[np.int32] = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self.token_ids: NDArray[np.int64] = np.zeros((max_num_seqs, max_model_len), dtype=np.int64)
        self._free_rows = list(range(max_num_seqs))[::-1]

    def acquire(self, token_ids: Sequence[int]) -> int:
        """Give a request a row that holds its tokens."""
        row = self._free_rows.pop()
        self.token_ids[row, : len(token_ids)] = token_ids
        return row

    def release(self, row: int) -> None:
        self._free_rows.append(row)

    def append_blocks(self, row: int, start: int, blocks: Sequence[int]) -> None:
        self.block_table[row, start : start + len(blocks)] = blocks

    def append_token(self, row: int, position: int, token_id: int) -> None:
        self.token_ids[row, position] = token_id
