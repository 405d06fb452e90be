"""What share of a profile lies inside the cache, by function: a pure function of py-spy's speedscope file."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from harness.errors import RecordError
from harness.records import FunctionShare

_PACKAGE = "prefix_cache"
"""Folder of the cache's code: this project's own package, and the one of that name inside vLLM-Omni."""
_DEPTH = 3
"""How far above its file a function's package may lie: prefix_cache/integrations/vllm/worker.py."""
_WAITS = frozenset(
    {
        ("threading.py", "wait"),
        ("threading.py", "_wait_for_tstate_lock"),
        ("selectors.py", "select"),
        ("thread.py", "_worker"),
        ("queue.py", "get"),
    }
)
"""File and function of the standard library in which a thread waits. A pool's worker takes its work there."""
_NAMED = re.compile(r'"(?P<name>[^"]+)"\s*$')


@dataclass(frozen=True, slots=True)
class Shares:
    """What a profile says of the cache.

    Parameters:
        samples: of threads that did something.
        waiting: left out of them, as the thread only waited for work.
        cache: those inside the cache by function and thread, most first.
    """

    samples: int
    waiting: int
    cache: tuple[FunctionShare, ...]


def profile_shares(speedscope: bytes | str) -> Shares:
    """The share of the cache in a profile.

    A sample belongs to the innermost function of the cache on its stack, whatever that called: the parts add up to
    the whole, and what torch does for the cache counts as the cache's. A thread that is just being woken looks busy
    from outside although it waits: such samples are left out, but where another thread than the cache's own waits
    inside the cache, for that is time the cache costs it.

    Raises:
        RecordError: not such a file.
    """
    total = waiting = 0
    inside: Counter[tuple[str, str, str]] = Counter()
    try:
        data = json.loads(speedscope)
        frames = data["shared"]["frames"]
        for profile in data["profiles"]:
            thread = _thread(profile["name"])
            for indices in profile["samples"]:
                # Written from the outermost frame to the innermost.
                stack = [frames[index] for index in indices]
                frame = next((each for each in reversed(stack) if in_cache(each)), None)
                if stack and _waits(stack[-1]) and (frame is None or _own_thread(stack)):
                    waiting += 1
                    continue
                total += 1
                if frame is not None:
                    inside[frame["name"], _short(frame["file"]), thread] += 1
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecordError(f"found no speedscope profile: {error!r}; allowed: what py-spy writes") from None
    shares = (FunctionShare(function=f, file=file, thread=t, samples=n) for (f, file, t), n in inside.items())
    ordered = sorted(shares, key=lambda one: (-one.samples, one.file, one.function, one.thread))
    return Shares(total, waiting, tuple(ordered))


def in_cache(frame: dict[str, Any]) -> bool:
    """Whether a frame's code is the cache's."""
    return _PACKAGE in PurePath(frame["file"] or "").parts[-1 - _DEPTH : -1]


def _waits(frame: dict[str, Any]) -> bool:
    """Whether a stack that ends here waits, in the standard library."""
    return (PurePath(frame["file"] or "").name, frame["name"].rpartition(".")[2]) in _WAITS


def _own_thread(stack: list[dict[str, Any]]) -> bool:
    """Whether the cache itself started the thread: below what threading does, its code comes first."""
    first = next((each for each in stack if PurePath(each["file"] or "").name != "threading.py"), None)
    return first is not None and in_cache(first)


def _short(file: str) -> str:
    parts = PurePath(file).parts
    return "/".join(parts[len(parts) - 1 - parts[::-1].index(_PACKAGE) :])


def _thread(name: str) -> str:
    found = _NAMED.search(name)
    # Nobody has named the threads of a process that never imported threading.
    return found.group("name") if found else "unnamed"
