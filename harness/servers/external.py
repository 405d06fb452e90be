"""The kind `external`: a server that somebody else started, measured where it runs and left running."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psutil

from harness._scenario_secrets import redacted
from harness.errors import HarnessFailure, MetricAbsent, UsageError
from harness.scenario import Scenario
from harness.servers.arm import ResolvedArm
from harness.servers.kinds import SettleRule
from harness.servers.launch import Launch
from harness.servers.process import StopReport
from harness.servers.titles import engine_worker
from harness.servers.vllm_omni import FRONT_END, SETTLE_RULE
from harness.telemetry.counters import cache_config
from harness.telemetry.scrape import Scrape

_ENGINES = ("VLLM::EngineCore", "VLLM::StageEngineCoreProc_stage0_replica0")
_UNCHECKED = (
    "the server was running already and is left running: it is not fresh, and what it held before counts as hits",
    "command line, environment and versions of the server are not known, nor what its log says",
    "what of its configuration it does not publish cannot be checked against the arm",
)


class AttachedServer:
    """A server at an address. Nothing of it is ever started or stopped."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.started = time.monotonic()
        self._pid = listener(launch.base_url)

    @property
    def ours(self) -> bool:
        return False

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def root_pid(self) -> int | None:
        return self._pid

    @property
    def alive(self) -> bool:
        """True: whether it lives shows only in its answers."""
        return True

    @property
    def returncode(self) -> int | None:
        return None

    def owns_port(self) -> bool:
        return True

    def stop(self) -> StopReport:
        return StopReport("left running", 0.0, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class External:
    """Attaches to `url`. How the server publishes is told by the series it has."""

    proves_cache = False

    def settle_rule(self, scrape: Scrape) -> SettleRule:
        front_end = any(sample.name.startswith(FRONT_END) for sample in scrape.samples)
        return SETTLE_RULE if front_end else SettleRule()

    def check(self, arm: ResolvedArm, scenario: Scenario) -> None:
        where = f"arms.{arm.name}"
        if arm.url is None:
            raise UsageError(
                f"{where}.url: found none; allowed: the address of a running server, here or as server.url"
            )
        loaded_by_vllm = any(bench.client == "vllm-bench" for bench in scenario.benches)
        for key in ("args", "env", *(() if loaded_by_vllm else ("python",)), "source", "deploy"):
            if getattr(arm, key):
                raise UsageError(
                    f"{where}.{key}: found one with server kind external; allowed: url alone, and python where a bench "
                    "has client: vllm-bench"
                )
        if scenario.server.model_path is not None and not Path(scenario.server.model_path).is_dir():
            raise UsageError(
                f"server.model_path: found {scenario.server.model_path}, which is no folder; allowed: the folder of "
                "the model's tokenizer, or none"
            )
        _check_alone(arm, scenario)

    def check_installed(self, arm: ResolvedArm, scenario: Scenario) -> None:
        """Nothing is needed on this machine."""

    def command(self, arm: ResolvedArm, scenario: Scenario, port: int, trial_dir: Path) -> Launch:  # noqa: ARG002  # the server has a port
        assert arm.url is not None
        log = trial_dir.absolute() / "server.log"
        log.write_text("This server was not started here; its log is elsewhere.\n", encoding="utf-8")
        return Launch(
            argv=(),
            env={},
            cwd=trial_dir.absolute(),
            log_path=log,
            base_url=arm.url,
            port=_port(arm.url),
            model_name=scenario.model,
        )

    def start(self, launch: Launch, stop_timeout: float) -> AttachedServer:  # noqa: ARG002  # it is never stopped
        return AttachedServer(launch)

    def expects_caching(self, arm: ResolvedArm) -> bool | None:  # noqa: ARG002  # no arm claims anything
        return None

    def live_config(self, scrape: Scrape, log: Path) -> dict[str, str]:  # noqa: ARG002  # the log is elsewhere
        try:
            return cache_config(scrape)
        except MetricAbsent:
            return {}

    def verify_stages(self, arm: ResolvedArm, log: Path) -> None:
        """Nothing is claimed."""

    def unchecked(self, arm: ResolvedArm) -> tuple[str, ...]:
        assert arm.url is not None
        memory = ("memory: the server's process is not to be seen from here",) if listener(arm.url) is None else ()
        return (*_UNCHECKED, *memory)

    def stage0_pid(self, root_pid: int) -> int:
        for engine in _ENGINES:
            with contextlib.suppress(HarnessFailure):
                return engine_worker(root_pid, engine)
        return root_pid

    def block_size(self, arm: ResolvedArm) -> int | None:  # noqa: ARG002  # only the server knows
        return None

    def max_model_len(self, arm: ResolvedArm) -> int | None:  # noqa: ARG002  # as above
        return None

    def versions(self, arm: ResolvedArm | None = None) -> dict[str, str]:  # noqa: ARG002  # not known
        return {}


def _check_alone(arm: ResolvedArm, scenario: Scenario) -> None:
    # A run of the baseline against itself (order: aa) asks one server twice on purpose.
    if scenario.order == "aa" or arm.url is None:
        return
    for name, other in scenario.arms.items():
        url = other.url or scenario.server.url
        if name != arm.name and url is not None and _address(url) == _address(arm.url):
            raise UsageError(
                f"arms.{arm.name}.url: found {redacted(arm.url)}, where arm {name} is too; allowed: a server for each "
                "arm (bench run --aa measures one against itself)"
            )


def _address(url: str) -> tuple[str | None, int, str]:
    parts = urlsplit(url)
    return parts.hostname, _port(url), parts.path.rstrip("/")


def listener(url: str) -> int | None:
    """The process of this machine that listens at an address; None where it is elsewhere or not ours to see."""
    host, port = urlsplit(url).hostname, _port(url)
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        connections = psutil.net_connections(kind="tcp")
    except (OSError, psutil.Error):
        return None
    everywhere = {"0.0.0.0", "::"}
    ours = {str(address.address) for each in psutil.net_if_addrs().values() for address in each}
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or not connection.laddr or connection.laddr.port != port:
            continue
        bound = connection.laddr.ip
        if bound in addresses or (bound in everywhere and addresses & ours):
            return connection.pid
    return None


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)
