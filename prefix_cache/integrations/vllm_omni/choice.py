"""What the environment asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prefix_cache.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Choice:
    """Which cache a stage gets.

    Parameters:
        bundled: this project's instead of vLLM-Omni's own.
        threaded: whether the bundled one has a thread of its own.
        timing: folder for the timings of every call, of either cache.
    """

    bundled: bool
    threaded: bool = True
    timing: Path | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Choice:
        """
        Raises:
            ConfigError: names the variable, what was found and what is allowed.
        """
        cache = environ.get("PREFIX_CACHE", "") or "builtin"
        if cache not in ("builtin", "bundled"):
            raise ConfigError(f"PREFIX_CACHE: found {cache!r}; allowed: builtin, bundled")
        inline = environ.get("PREFIX_CACHE_INLINE", "") or "0"
        if inline not in ("0", "1"):
            raise ConfigError(f"PREFIX_CACHE_INLINE: found {inline!r}; allowed: 0, 1")
        folder = environ.get("PREFIX_CACHE_TIMING", "")
        return cls(cache == "bundled", threaded=inline == "0", timing=Path(folder) if folder else None)
