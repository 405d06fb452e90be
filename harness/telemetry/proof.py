"""The line of proof: a worker's word in the server's log that the bundled cache is the one in use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ArmMismatch, RecordError

PROOF = "prefix_cache: bundled in use"
"""How the line begins (`prefix_cache.integrations.exposition.PROOF`); `key=value` words follow."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WORD = re.compile(r"(\w+)=(\S+)")
_ABOUT = re.compile(r"prefix_cache|prefix-cache|\bplugins?\b|model_runner", re.IGNORECASE)
_NOT_ABOUT = re.compile(r"enable_prefix_caching|non-default args")
_SHOWN, _SHOWN_CHARS = 4, 300
_REASONS = (
    "the cache is not installed in the server's environment or its import failed, VLLM_PLUGINS leaves its plugin out, "
    "or model_runner v2 never asks for it"
)


@dataclass(frozen=True, slots=True)
class Proof:
    """One worker's line.

    Parameters:
        facts: its words, such as `pid`, `stage` and `engine`.
    """

    facts: Mapping[str, str]

    @property
    def page(self) -> str | None:
        """Address of the worker's own page of `prefix_cache:*` series."""
        return self.facts.get("metrics")


def read_proofs(log: Path) -> tuple[Proof, ...]:
    """The lines of proof in a server's log, in its order.

    Raises:
        RecordError: the log cannot be read.
    """
    proofs = []
    for line in _lines(log):
        _, found, words = line.partition(PROOF)
        if found:
            proofs.append(Proof(dict(_WORD.findall(words))))
    return tuple(proofs)


def verify_proof(arm: str, bundled: bool, log: Path) -> tuple[Proof, ...]:
    """Check that the bundled cache is in use where the arm says so, and only there.

    Parameters:
        arm: its name.
        bundled: whether it asks for the bundled cache.
        log: the server's log, after its first request.

    Returns:
        The lines of proof.

    Raises:
        ArmMismatch: a server that fell back to another cache without a word, or took this one unasked; with what its
            log says of plugins.
    """
    proofs = read_proofs(log)
    if bundled and not proofs:
        raise ArmMismatch(
            f"arm {arm} asks for prefix_cache: bundled, but no worker says {PROOF!r} in {log} after the first request: "
            f"{_REASONS}{_told(log)}"
        )
    if proofs and not bundled:
        facts = " ".join(f"{key}={value}" for key, value in proofs[0].facts.items())
        raise ArmMismatch(
            f"arm {arm} does not ask for prefix_cache: bundled, but a worker says {PROOF!r} ({facts}) in {log}: "
            "PREFIX_CACHE or --worker-cls comes from somewhere else"
        )
    return proofs


def _told(log: Path) -> str:
    about = [line for line in _lines(log) if _ABOUT.search(line) and not _NOT_ABOUT.search(line)]
    if not about:
        return "; the log has no line about plugins"
    more = f"\n  ... and {len(about) - _SHOWN} more" if len(about) > _SHOWN else ""
    return "; the log says of plugins:\n" + "\n".join(f"  {line[:_SHOWN_CHARS]}" for line in about[:_SHOWN]) + more


def _lines(log: Path) -> list[str]:
    try:
        return _COLOUR.sub("", log.read_text(encoding="utf-8", errors="replace")).splitlines()
    except OSError as error:
        raise RecordError(f"{log}: the server's log cannot be read: {error.strerror}") from error
