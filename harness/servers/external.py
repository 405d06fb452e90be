"""The kind `external`: a server that somebody else started, measured where it runs and left running."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from harness._scenario_secrets import redacted
from harness.errors import HarnessFailure, MetricAbsent, UsageError
from harness.scenario import Scenario
from harness.servers.arm import ResolvedArm
from harness.servers.kinds import SettleRule
from harness.servers.launch import Launch
from harness.servers.listening import listener, port_of, same_place
from harness.servers.process import StopReport
from harness.servers.tiny_omni import runs_tiny_omni
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
        self._pid: int | None = None

    @property
    def ours(self) -> bool:
        return False

    @property
    def pid(self) -> int | None:
        """The process that listens at the address, where it is recognised as a server.

        Looked for again until it is found: a server may listen, or have its engine, only once it is ready.
        """
        if self._pid is None:
            found = listener(self.launch.base_url)
            self._pid = None if found is None or stage0_of(found) is None else found
        return self._pid

    @property
    def root_pid(self) -> int | None:
        return self.pid

    @property
    def alive(self) -> bool:
        """True: whether it lives shows only in its answers."""
        return True

    @property
    def returncode(self) -> int | None:
        return None

    def owns_port(self) -> bool:
        return True

    def look_at_shared_memory(self) -> None:
        """Nothing: it is never stopped, so that whatever it has stays its own."""

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
            port=port_of(arm.url),
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
        pid = listener(arm.url)
        if pid is None:
            return (*_UNCHECKED, "memory: the server's process is not to be seen from here")
        if stage0_of(pid) is None:
            return (
                *_UNCHECKED,
                f"memory: not measured, the process that listens at the address ({_name(pid)}) is not recognised as a "
                "server (it may forward to one)",
            )
        return _UNCHECKED

    def stage0_pid(self, root_pid: int) -> int:
        pid = stage0_of(root_pid)
        if pid is None:
            raise HarnessFailure(f"process {root_pid} ({_name(root_pid)}) is no longer recognised as a server")
        return pid

    def block_size(self, arm: ResolvedArm) -> int | None:  # noqa: ARG002  # only the server knows
        return None

    def max_model_len(self, arm: ResolvedArm) -> int | None:  # noqa: ARG002  # as above
        return None

    def versions(self, arm: ResolvedArm | None = None) -> dict[str, str]:  # noqa: ARG002  # not known
        return {}


def stage0_of(root_pid: int) -> int | None:
    """The process that holds stage 0's model, by what a server's processes call themselves; None where none does.

    Any program may listen at an address and pass on what it gets (ssh -L, kubectl port-forward), and its memory says
    nothing of the server.
    """
    for engine in _ENGINES:
        with contextlib.suppress(HarnessFailure):
            return engine_worker(root_pid, engine)
    with contextlib.suppress(psutil.Error):
        if runs_tiny_omni(psutil.Process(root_pid).cmdline()):
            return root_pid
    return None


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "unknown"


def _check_alone(arm: ResolvedArm, scenario: Scenario) -> None:
    # A run of the baseline against itself (order: aa) asks one server twice on purpose.
    if scenario.order == "aa" or arm.url is None:
        return
    for name, other in scenario.arms.items():
        if name == arm.name:
            return  # those after it are compared when their turn comes
        url = other.url or scenario.server.url
        if url is not None and same_place(url, arm.url):
            raise UsageError(
                f"arms.{arm.name}.url: found {redacted(arm.url)}, where arm {name} is too ({redacted(url)}); allowed: "
                "a server for each arm, at an address or port of its own (bench run --aa measures one against itself)"
            )
