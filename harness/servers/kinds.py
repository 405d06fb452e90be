"""Server kinds: what the runner must know about a sort of server, and the kinds there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, assert_never

from harness.errors import UsageError
from harness.scenario import Scenario
from harness.scenario import ServerKind as KindName
from harness.servers.arm import ResolvedArm, resolve_arm
from harness.servers.launch import Launch
from harness.servers.running import RunningServer
from harness.telemetry.scrape import Scrape


@dataclass(frozen=True, slots=True)
class SettleRule:
    """How a server kind publishes its counters, so that a scrape can be trusted.

    Parameters:
        publish_delay_s: seconds to wait, once the server is idle, until it may publish again.
        probe: whether one more request is needed to make it publish what is outstanding.
        gauges: the series that count requests in the server, all 0 when it is idle; they must not be stale.
        counters: prefixes of the series that must come to rest; others may count the scrapes themselves.
        read_interval_s: seconds between two reads.
    """

    publish_delay_s: float = 0.0
    probe: bool = False
    gauges: tuple[str, ...] = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    counters: tuple[str, ...] = ("vllm:", "prefix_cache:")
    read_interval_s: float = 0.05


class ServerKind(Protocol):
    """One sort of server under test."""

    def settle_rule(self, scrape: Scrape) -> SettleRule:
        """How the running server publishes; of a server that is not ours, the series it has tell."""
        ...

    @property
    def proves_cache(self) -> bool:
        """Whether the bundled cache says in the server's log, by its line of proof, that it is the one in use."""
        ...

    def check(self, arm: ResolvedArm, scenario: Scenario) -> None:
        """Find, before anything starts, what `command` or the server itself would refuse of the settings.

        Raises:
            UsageError: the setting, what was found and what is allowed.
        """
        ...

    def check_installed(self, arm: ResolvedArm, scenario: Scenario) -> None:
        """Find, before anything starts, what a run needs of this machine and does not have.

        Raises:
            UsageError: the setting, what was found and what is allowed.
        """
        ...

    def command(self, arm: ResolvedArm, scenario: Scenario, port: int, trial_dir: Path) -> Launch:
        """How to start the arm on this port; writes the files the server needs into the trial's folder."""
        ...

    def start(self, launch: Launch, stop_timeout: float) -> RunningServer:
        """Start the server, or attach to one that runs.

        Raises:
            HarnessFailure: it could not be started.
        """
        ...

    def expects_caching(self, arm: ResolvedArm) -> bool | None:
        """Whether the arm's configuration turns the prefix cache of stage 0 on; None when it does not say."""
        ...

    def live_config(self, scrape: Scrape, log: Path) -> dict[str, str]:
        """What the running server says of stage 0's KV cache: `enable_prefix_caching`, `block_size` and what else.

        Parameters:
            log: the server's log up to now.

        Raises:
            MetricAbsent: it says nothing.
        """
        ...

    def verify_stages(self, arm: ResolvedArm, log: Path) -> None:
        """Check the settings of every stage as far as its engine shows them.

        Raises:
            ArmMismatch: a stage is not what the arm says.
        """
        ...

    def unchecked(self, arm: ResolvedArm) -> tuple[str, ...]:
        """The checks of a trial that cannot be made of this arm, one sentence each."""
        ...

    def stage0_pid(self, root_pid: int) -> int:
        """The process that holds stage 0's model and caches, in the tree below the root."""
        ...

    def block_size(self, arm: ResolvedArm) -> int | None:
        """Tokens per KV block of stage 0 by the arm's configuration; None where it is the server's choice.

        Raises:
            UsageError: the setting is no whole number above 0.
        """
        ...

    def max_model_len(self, arm: ResolvedArm) -> int | None:
        """Tokens that a request may have in stage 0, prompt and answer; None where the configuration does not say."""
        ...

    def versions(self, arm: ResolvedArm | None = None) -> dict[str, str]:
        """Versions of the distributions the server runs on, by name."""
        ...


def server_kind(name: KindName) -> ServerKind:
    """The kind of that name."""
    # The kinds import this module's vocabulary.
    match name:
        case "tiny-omni":
            from harness.servers.tiny_omni import TinyOmni

            return TinyOmni()
        case "vllm":
            from harness.servers.vllm import Vllm

            return Vllm()
        case "vllm-omni":
            from harness.servers.vllm_omni import VllmOmni

            return VllmOmni()
        case "external":
            from harness.servers.external import External

            return External()
        case _:
            assert_never(name)


def block_size_setting(arm: ResolvedArm, value: object) -> int | None:
    """A block size as it stands in a configuration.

    Raises:
        UsageError: it is no whole number above 0.
    """
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"arms.{arm.name}: block size: found {value!r}; allowed: a whole number above 0")
    return value


def common_block_size(kind: ServerKind, arms: Iterable[ResolvedArm]) -> int | None:
    """Tokens per KV block in all arms that cache; None where an arm leaves it to the server, or none caches.

    Raises:
        UsageError: they differ, so that their hit rates could not be compared.
    """
    sizes = {kind.block_size(arm) for arm in arms if kind.expects_caching(arm) is not False}
    stated = sorted(size for size in sizes if size is not None)
    if len(stated) > 1:
        raise UsageError(f"arms: found block sizes {stated}; allowed: one for all arms that cache")
    return sizes.pop() if len(sizes) == 1 else None


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
            kind.check_installed(arm, scenario)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    return kind, arms


def voice_in_prompt(kind: KindName) -> bool:
    """Whether a server writes a chat's reference voice into the prompt; vLLM-Omni hands it to the Talker beside it."""
    return kind == "tiny-omni"
