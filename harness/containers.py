"""The limits of the control group this process runs in: half a processor measures half a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.records import Container

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def container_limits(root: Path = _ROOT, own: Path = _OWN) -> Container | None:
    """The tightest limits from this process' version 2 group up to the root; None where there is no such group.

    Parameters:
        root: where the hierarchy is mounted.
        own: which group a process is in (`0::/path`).
    """
    place = _group(_read(own))
    # Version 1 alone has a line for the unified hierarchy too, with nothing mounted for it.
    if place is None or not (root / "cgroup.controllers").is_file():
        return None
    groups = [root / place, *(root / parent for parent in place.parents)]
    cpus = [limit for group in groups for limit in parse_cpu_max(_read(group / "cpu.max"))]
    memory = [limit for group in groups for limit in parse_memory_max(_read(group / "memory.max"))]
    return Container(cpus=min(cpus, default=None), memory_bytes=min(memory, default=None))


def parse_cpu_max(text: str) -> Iterator[float]:
    """Processors out of `cpu.max` (`QUOTA PERIOD` in microseconds); nothing for `max` and for no such file."""
    words = text.split()
    if len(words) == 2 and words[0] != "max":
        yield int(words[0]) / int(words[1])


def parse_memory_max(text: str) -> Iterator[int]:
    """Bytes out of `memory.max`; nothing for `max` and for no such file."""
    if text.strip().isdecimal():
        yield int(text)


def _group(text: str) -> Path | None:
    for line in text.splitlines():
        if line.startswith("0::/"):
            return Path(line.removeprefix("0::/"))
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
