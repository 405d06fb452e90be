"""Outputs of a step that are no rows: copied out of the engine's buffers, handed out request by request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from prefix_cache.copier import CudaLanding, Landing

PayloadElement = Callable[..., Any]
"""`vllm_omni.utils.mm_outputs.to_payload_element`: one request's part of a value."""


class Passthrough:
    """The values of one step, by key.

    Parameters:
        values: tensors on the host, in containers or not.
        landing: what their copies from a device wait for; None when there were none.
    """

    __slots__ = ("_landing", "_values")

    def __init__(self, values: Mapping[str, Any], landing: Landing | None) -> None:
        self._values, self._landing = values, landing

    @classmethod
    def take(cls, values: Mapping[str, Any]) -> Passthrough:
        """Copies `values`, ordered with the engine's own work; it does not wait for a device."""
        from_device: list[torch.device] = []
        copied = {key: _copy(value, from_device) for key, value in values.items()}
        return cls(copied, CudaLanding.recorded(from_device[0]) if from_device else None)

    def values(self, timeout: float) -> Mapping[str, Any]:
        """What was taken, in ordinary host memory.

        Raises:
            CacheTimeout: copies did not arrive within `timeout` seconds.
        """
        if self._landing is not None:
            self._landing.wait(timeout)
            self._values, self._landing = {key: _unpin(value) for key, value in self._values.items()}, None
        return self._values


class HandedOut(Mapping[str, Any]):
    """One value's part of each request, made when it is first asked for, and then the same object.

    Parameters:
        spans: first and last-plus-one token of every request of the step, in the batch's order.
        ids: the requests that may be asked for.
    """

    __slots__ = ("_element", "_ids", "_made", "_order", "_spans", "_total", "_value")

    def __init__(
        self, value: Any, spans: Mapping[str, tuple[int, int]], ids: Sequence[str], element: PayloadElement
    ) -> None:
        self._value, self._spans, self._element = value, spans, element
        self._ids = dict.fromkeys(ids)
        self._order = {request: index for index, request in enumerate(spans)}
        self._total = max((stop for _, stop in spans.values()), default=0)
        self._made: dict[str, Any] = {}

    def __getitem__(self, request: str) -> Any:
        if request not in self._ids:
            raise KeyError(request)
        if request not in self._made:
            start, stop = self._spans[request]
            self._made[request] = self._element(
                self._value, self._order[request], start=start, end=stop, pass_lists_through=True, seq_len=self._total
            )
        return self._made[request]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def _copy(value: Any, from_device: list[torch.device]) -> Any:
    if isinstance(value, Tensor):
        if not value.is_cuda:
            return value.detach().clone(memory_format=torch.contiguous_format)
        from_device.append(value.device)
        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        return host.copy_(value.detach(), non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _copy(each, from_device) for key, each in value.items()}
    if isinstance(value, list):
        return [_copy(each, from_device) for each in value]
    if isinstance(value, tuple):
        return tuple(_copy(each, from_device) for each in value)
    return value


def _unpin(value: Any) -> Any:
    # Whoever keeps a value for long must not keep page-locked memory.
    if isinstance(value, Tensor):
        return value.clone() if value.is_pinned() else value
    if isinstance(value, Mapping):
        return {key: _unpin(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_unpin(each) for each in value]
    if isinstance(value, tuple):
        return tuple(_unpin(each) for each in value)
    return value
