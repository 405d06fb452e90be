"""The live server: what it says of itself once it runs, checked against what its arm claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ArmMismatch
from harness.servers.arm import ResolvedArm
from harness.servers.kinds import ServerKind, SettleRule
from harness.telemetry.counters import verify_arm
from harness.telemetry.proof import verify_proof
from harness.telemetry.scrape import Scrape


@dataclass(frozen=True, slots=True)
class Live:
    """What a running server is.

    Parameters:
        config: its own word on stage 0's KV cache.
        caching: whether stage 0's prefix cache is on: the arm's claim, or where it makes none the server's word; None
            where nobody says, and for a server that is not ours, of which nothing is claimed.
        block_size: tokens per KV block of stage 0, by the server's word or else the arm's; None where neither says.
        pages: addresses of its workers' own pages of series.
        rule: how it publishes its counters.
    """

    config: Mapping[str, str]
    caching: bool | None
    block_size: int | None
    pages: tuple[str, ...]
    rule: SettleRule


def verify(kind: ServerKind, arm: ResolvedArm, scrape: Scrape, log: Path) -> Live:
    """Check a running server against its arm, after its first request.

    Parameters:
        scrape: its counters.
        log: its log.

    Raises:
        ArmMismatch: it is not what the arm says.
        MetricAbsent: it does not say what is needed to check it.
    """
    config = kind.live_config(scrape, log)
    claimed = kind.expects_caching(arm)
    verify_arm(claimed, config)
    kind.verify_stages(arm, log)
    pages: tuple[str, ...] = ()
    if kind.proves_cache:
        proofs = verify_proof(arm.name, arm.prefix_cache == "bundled", log)
        pages = tuple(dict.fromkeys(proof.page for proof in proofs if proof.page is not None))
    says = {"true": True, "false": False}.get(config.get("enable_prefix_caching", "").lower())
    if arm.prefix_cache is not None and says is False:
        raise ArmMismatch(
            f"arm {arm.name} has prefix_cache {arm.prefix_cache}, but the server says enable_prefix_caching=False, so "
            "that nothing can hit"
        )
    return Live(
        config=config,
        caching=says if claimed is None and arm.url is None else claimed,
        block_size=_block_size(arm, kind.block_size(arm), config.get("block_size")),
        pages=pages,
        rule=kind.settle_rule(scrape),
    )


def _block_size(arm: ResolvedArm, claimed: int | None, says: str | None) -> int | None:
    if says is None or not says.isdecimal():
        return claimed
    if claimed is not None and int(says) != claimed:
        raise ArmMismatch(f"arm {arm.name} sets a block size of {claimed}, but the server says block_size={says}")
    return int(says)
