"""vLLM-Omni's OmniPrefixCacheManager under measurement. Imported in the peer's interpreter only."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from vllm_omni.core.prefix_cache import (
    FullAttentionGroupView,
    OmniPrefixCacheManager,
    PrefixCacheConfig,
    controller,
)
from vllm_omni.core.prefix_cache.interface import HIDDEN_KEY

from .cases import KEYS, Mode, Sizes
from .engine import Engine, Step


class _Stream:
    """A CUDA stream on a machine without one: copies between host tensors are done when they return."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...


class _StagingPool(controller.StagingBufferPool):  # type: ignore[misc]  # its base is not typed here
    def _buf(self, key: str, width: int, dtype: torch.dtype, pin: bool) -> Any:  # noqa: ARG002
        # Pinning needs a CUDA driver.
        return super()._buf(key, width, dtype, False)


def pretend_streams() -> None:
    """Lets the manager run its threads on a CPU. This process runs nothing else, so its torch.cuda may be replaced."""
    torch.cuda.Stream, torch.cuda.Event = _Stream, _Event  # type: ignore[misc,assignment]
    torch.cuda.stream = contextlib.nullcontext  # type: ignore[assignment]
    controller.StagingBufferPool = _StagingPool


@dataclass(frozen=True, slots=True)
class _Native:
    output: SimpleNamespace
    ids: list[str]
    hidden: Tensor
    others: dict[str, Tensor]
    total: int


class _BlockTables(list[SimpleNamespace]):
    @property
    def block_tables(self) -> list[SimpleNamespace]:
        return list(self)


class _Batch:
    """The parts of vLLM's input batch that the manager reads, over the engine's own arrays."""

    def __init__(self, sizes: Sizes, engine: Engine) -> None:
        self.req_ids: list[str] = []
        self.req_id_to_index: dict[str, int] = {}
        self.num_computed_tokens_cpu = engine.computed
        table = SimpleNamespace(
            block_table=SimpleNamespace(cpu=torch.from_numpy(engine.table)),
            use_hybrid_blocks=False,
            blocks_per_kv_block=1,
            dcp_world_size=1,
            kv_cache_block_size=sizes.block_size,
        )
        self.block_table = _BlockTables([table])


class Peer:
    def __init__(self, sizes: Sizes, mode: Mode, engine: Engine) -> None:
        if mode == "threaded":
            pretend_streams()
        self._batch = _Batch(sizes, engine)
        self._view = FullAttentionGroupView(self._batch, sizes.block_size)
        config = PrefixCacheConfig(
            num_blocks=sizes.num_blocks,
            block_size=sizes.block_size,
            staging_capacity_tokens=sizes.step_tokens,
            # Large enough that nothing is forced out early.
            gpu_staging_bytes=4 << 30,
        )
        self._manager = OmniPrefixCacheManager(config, self._view, eager=mode == "inline")

    def prepare(self, step: Step, rows: Mapping[str, Tensor]) -> _Native:
        ids = step.ids
        self._batch.req_ids = ids
        self._batch.req_id_to_index = {request: row for row, request in enumerate(ids)}
        new = [
            SimpleNamespace(req_id=arrival.id, num_computed_tokens=arrival.computed, block_ids=[arrival.blocks])
            for arrival in step.arrivals
        ]
        output = SimpleNamespace(
            num_scheduled_tokens=step.scheduled, scheduled_new_reqs=new, finished_req_ids=set(step.finished)
        )
        others = {key: rows[key] for key in KEYS[1:]}
        return _Native(output, ids, rows[KEYS[0]], others, step.total)

    def begin(self, native: _Native) -> None:
        self._manager.new_step_starts(native.output)

    def save(self, native: _Native) -> int:
        handle: int = self._manager.save_outputs(
            native.hidden, native.others, num_tokens_unpadded=native.total, num_tokens_padded=native.total
        )
        return handle

    def materialize(self, handle: int, native: _Native) -> Any:
        return self._manager.materialize(handle, native.ids)

    def discard(self, handle: int) -> None:
        self._manager.discard_step(handle)

    def slots(self, native: _Native) -> Any:
        return self._view.step_slots_cpu(native.ids, native.output.num_scheduled_tokens)

    def rows(self, outputs: Any) -> dict[str, dict[str, Tensor]]:
        hidden = outputs.hidden_states
        if hidden is None:
            raise RuntimeError(f"the peer returned no {HIDDEN_KEY} rows")
        return {KEYS[0]: hidden, **outputs.mm_outputs}

    def slot_array(self, slots: Tensor) -> npt.NDArray[np.int64]:
        return slots.numpy()

    def gather_seconds(self) -> None:
        return None

    def shutdown(self) -> None:
        self._manager.shutdown()
