"""Provenance: where and with what a measurement was made."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import psutil

from harness.containers import container_limits
from harness.records import Host, SourceTree
from harness.telemetry.gpu import GpuMemory

_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
_DISTRIBUTIONS = (
    "omni-prefix-bench", "aiohttp", "matplotlib", "numpy", "pandas", "prometheus-client", "psutil", "pydantic",
    "scipy", "tokenizers", "torch", "vllm", "vllm-omni",
)  # fmt: skip


def host() -> Host:
    """The machine this runs on, and how busy it is now."""
    return Host(
        hostname=socket.gethostname(),
        platform=platform.platform(),
        kernel=platform.release(),
        cpu_model=_cpu_model(),
        cpu_count=psutil.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        load_1m=os.getloadavg()[0],
        gpus=_gpus(),
        container=container_limits(),
        autogroup=_autogroup(),
    )


def source_tree(path: Path, name: str) -> SourceTree:
    """The commit of the checkout that holds `path`, and whether its working tree differs (untracked files count).

    Both are null outside version control: no repository, a path the repository ignores (an environment inside a
    checkout), or no git program.
    """
    if _git(path, "rev-parse", "--is-inside-work-tree") != "true" or _git(path, "check-ignore", ".") is not None:
        return SourceTree(name=name, path=str(path.absolute()), commit=None, dirty=None)
    status = _git(path, "status", "--porcelain")
    return SourceTree(
        name=name,
        path=str(path.absolute()),
        commit=_git(path, "rev-parse", "--verify", "--quiet", "HEAD"),
        dirty=None if status is None else bool(status),
    )


def versions() -> dict[str, str]:
    """Versions of Python and of the installed distributions that matter, without importing any."""
    return {"python": platform.python_version(), **distribution_versions(_DISTRIBUTIONS)}


def distribution_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of those of the named distributions that are installed here."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def utc_now() -> str:
    """Now, as the records write instants: ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _git(path: Path, *arguments: str) -> str | None:
    """Standard output without the line end, None when git fails or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(path), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _autogroup() -> bool | None:
    """None where the kernel was built without it."""
    try:
        return _AUTOGROUP.read_text(encoding="ascii").strip() == "1"
    except OSError:
        return None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpus() -> tuple[str, ...]:
    gpus = GpuMemory.open()
    if gpus is None:
        return ()
    try:
        return gpus.names
    finally:
        gpus.close()
