"""Server kinds: what the runner must know about a sort of server, and the kinds there are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.errors import UsageError
from harness.scenario import Scenario
from harness.servers.arm import ResolvedArm, resolve_arm
from harness.servers.launch import Launch


@dataclass(frozen=True, slots=True)
class SettleRule:
    """How a server kind publishes its counters, so that a scrape can be trusted.

    Parameters:
        publish_delay_s: seconds to wait, once the server is idle, until it may publish again.
        probe: whether one more request is needed to make it publish what is outstanding.
        counters: prefixes of the series that must come to rest; others may count the scrapes themselves.
        read_interval_s: seconds between two reads.
    """

    publish_delay_s: float = 0.0
    probe: bool = False
    counters: tuple[str, ...] = ("vllm:", "prefix_cache:")
    read_interval_s: float = 0.05


class ServerKind(Protocol):
    """One sort of server under test."""

    @property
    def settle_rule(self) -> SettleRule: ...

    def check(self, arm: ResolvedArm, scenario: Scenario) -> None:
        """Find, before anything starts, what `command` or the server itself would refuse.

        Raises:
            UsageError: the setting, what was found and what is allowed.
        """
        ...

    def command(self, arm: ResolvedArm, scenario: Scenario, port: int, trial_dir: Path) -> Launch:
        """How to start the arm on this port; writes the files the server needs into the trial's folder."""
        ...

    def expects_caching(self, arm: ResolvedArm) -> bool | None:
        """Whether the arm's configuration turns the prefix cache of stage 0 on; None when it does not say."""
        ...

    def stage0_pid(self, guard_pid: int) -> int:
        """The process that is stage 0's engine, among the descendants of the guard."""
        ...

    def block_size(self, arm: ResolvedArm) -> int:
        """Tokens per KV block of stage 0."""
        ...

    def versions(self, arm: ResolvedArm | None = None) -> dict[str, str]:
        """Versions of the distributions the server runs on, by name."""
        ...


def server_kind(name: str) -> ServerKind:
    """The kind of that name.

    Raises:
        UsageError: the kind is not available.
    """
    # The kinds import this module's vocabulary.
    from harness.servers.tiny_omni import TinyOmni

    if name == "tiny-omni":
        return TinyOmni()
    raise UsageError(f"server.kind {name} is not available yet; available: tiny-omni")


def resolve_server(scenario: Scenario, file: Path) -> tuple[ServerKind, dict[str, ResolvedArm]]:
    """The server kind and every arm of a scenario, checked as far as that goes without starting a server.

    Raises:
        UsageError: an arm could not be started; the message begins with the scenario's file.
    """
    try:
        kind = server_kind(scenario.server.kind)
        arms = {name: resolve_arm(scenario, name) for name in scenario.arms}
        for arm in arms.values():
            kind.check(arm, scenario)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    return kind, arms
