"""Streams and events for a process without a device: work is done when its call returns; there is nothing to order.

vLLM-Omni's runners create CUDA streams and events for their asynchronous output without asking whether there is a
device. A worker process of this platform replaces these names, and only a worker process does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Event:
    """Recorded and reached at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, stream: object = None) -> None: ...

    def wait(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Stream:
    """The one order there is: the program's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - a stream of a device takes them
        self.device = torch.device("cpu")

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Event | None = None) -> Event:
        return event if event is not None else Event()


def install() -> None:
    """Replaces torch's streams and events in this process.

    Raises:
        RuntimeError: the process has a CUDA device, whose streams must stay what they are.
    """
    if torch.cuda.is_available():
        raise RuntimeError("vllm-omni-cpu-platform: found a CUDA device; it is for machines without: uninstall it here")
    the_stream = Stream()

    def the_only_stream(device: object = None) -> Stream:  # noqa: ARG001 - there is no device to choose by
        return the_stream

    @contextmanager
    def stream(_: object) -> Iterator[None]:
        yield

    torch.Event = Event  # type: ignore[assignment, misc]  # the same calls, without a device
    torch.cuda.Event = Event  # type: ignore[assignment, misc]
    torch.cuda.Stream = Stream  # type: ignore[assignment, misc]
    torch.cuda.current_stream = the_only_stream  # type: ignore[assignment]
    torch.cuda.default_stream = the_only_stream  # type: ignore[assignment]
    torch.cuda.stream = stream  # type: ignore[assignment]
    torch.cuda.set_device = lambda device: None  # noqa: ARG005 - there is none to set
    torch.cuda.synchronize = lambda device=None: None  # noqa: ARG005 - nothing is outstanding
