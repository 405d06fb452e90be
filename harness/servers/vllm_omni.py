"""The kind `vllm-omni`: vLLM-Omni, a pipeline of stages below one API server; stage 0 is the one under test."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from harness.errors import UsageError
from harness.scenario import Scenario
from harness.servers.arm import ResolvedArm
from harness.servers.deploy.arm_deploy import ArmDeploy, arm_deploy, write_overlay
from harness.servers.interpreter import interpreter_path
from harness.servers.kinds import SettleRule, block_size_setting
from harness.servers.launch import Launch
from harness.servers.process import ServerProcess
from harness.servers.titles import engine_worker
from harness.servers.vllm import check_model, check_settings, how_to_install, launch, look, require, versions_of
from harness.telemetry.engine_log import stage_config, stage_configs, verify_stage
from harness.telemetry.scrape import Scrape

SELECTS = "PREFIX_CACHE"
"""The variable by which a server takes its cache."""
_PLUGINS = "vllm_omni.general_plugins"
_PLUGIN = "prefix_cache"
_ALLOWED_PLUGINS = "VLLM_PLUGINS"
_ENGINE = "VLLM::StageEngineCoreProc_stage0_replica0"
FRONT_END = "vllm_omni:"
"""How the series of the API server itself begin."""
SETTLE_RULE = SettleRule(
    publish_delay_s=1.1,
    probe=True,
    gauges=(f"{FRONT_END}num_requests_running", f"{FRONT_END}num_requests_waiting"),
)


class VllmOmni:
    """Starts `vllm serve --omni`.

    A stage's scheduler publishes its statistics with a step, at most once a second (`OmniSchedulerMixin.make_stats`),
    and what it publishes then is everything up to that step's own scheduling. So after more than a second of rest one
    more step, the probe's, brings the counters up to date, the probe's own tokens among them. The gauges `vllm:*` of
    a stage are as old as its last publication; those of `vllm_omni:*` are counted by the front end and are not.
    """

    proves_cache = True

    def settle_rule(self, scrape: Scrape) -> SettleRule:  # noqa: ARG002  # every server of this kind has the same
        return SETTLE_RULE

    def check(self, arm: ResolvedArm, scenario: Scenario) -> None:
        check_settings(arm, scenario)
        deploy = arm_deploy(arm)
        block_size_setting(arm, deploy.block_size)
        where = f"arms.{arm.name}"
        if SELECTS in arm.env:
            raise UsageError(
                f"{where}.env: found {SELECTS}; allowed: any other variable (it is the arm's prefix_cache)"
            )
        for stage in deploy.stages:
            switch = stage.settings.get("enable_prefix_caching")
            # vLLM-Omni reads some words as it likes; which, nobody who compares arms should have to know.
            if switch is not None and not isinstance(switch, bool):
                raise UsageError(
                    f"{where}.deploy: stage {stage.stage_id}: enable_prefix_caching: found {switch!r}; allowed: true "
                    "or false, without quotes"
                )
        if arm.prefix_cache != "bundled":
            return
        if deploy.expects_caching is False:
            raise UsageError(f"{where}.prefix_cache: found bundled with prefix caching off in stage 0; allowed: on")
        if deploy.setting("model_runner") == "v2":
            raise UsageError(
                f"{where}: found model_runner v2, which asks for no output cache; allowed with bundled: v1"
            )
        listed = arm.env.get(_ALLOWED_PLUGINS, os.environ.get(_ALLOWED_PLUGINS))
        if listed is not None and _PLUGIN not in listed.split(","):
            raise UsageError(
                f"{where}: found {_ALLOWED_PLUGINS}={listed!r}, which leaves the cache's plugin out; allowed with "
                f"prefix_cache: bundled: unset, or a list with {_PLUGIN}"
            )

    def check_installed(self, arm: ResolvedArm, scenario: Scenario) -> None:
        check_model(scenario)
        installed = look(arm, "vllm_omni", (_PLUGINS,))
        for package in ("vllm", "vllm_omni"):
            require(arm, installed, package, "scripts/setup_vllm_omni_cpu.sh makes an environment")
        if arm.prefix_cache == "bundled" and _PLUGIN not in installed.plugins[_PLUGINS]:
            found = ", ".join(installed.plugins[_PLUGINS]) or "none"
            raise UsageError(
                f"arms.{arm.name}.python: found {interpreter_path(arm)} without this project's plugin (of {_PLUGINS} "
                f"it has {found}); allowed with prefix_cache: bundled: an interpreter with omni-prefix-bench installed "
                f"({how_to_install(arm)})"
            )
        missing = arm_deploy(arm).missing
        if missing is not None:
            raise UsageError(missing)

    def command(self, arm: ResolvedArm, scenario: Scenario, port: int, trial_dir: Path) -> Launch:
        words = ["vllm_omni.entrypoints.cli.main", "serve", scenario.server.model_path or scenario.model, "--omni"]
        overlay = write_overlay(arm, trial_dir.absolute())
        if overlay is not None:
            words += ["--deploy-config", str(overlay)]
        prepared = launch(arm, scenario, port, trial_dir, [*words, *arm.words()], "vllm_omni")
        # Empty where the arm leaves it open, so that a variable of our own environment does not choose.
        return replace(prepared, env={**prepared.env, SELECTS: arm.prefix_cache or ""})

    def start(self, launch: Launch, stop_timeout: float) -> ServerProcess:
        return ServerProcess.start(launch, stop_timeout)

    def expects_caching(self, arm: ResolvedArm) -> bool | None:
        return arm_deploy(arm).expects_caching

    def live_config(self, scrape: Scrape, log: Path) -> dict[str, str]:  # noqa: ARG002  # it publishes none there
        return stage_config(log)

    def verify_stages(self, arm: ResolvedArm, log: Path) -> None:
        deploy, live = arm_deploy(arm), stage_configs(log)
        for stage in deploy.stages:
            if stage.stage_id in live:
                verify_stage(arm.name, stage.stage_id, stage.settings, live[stage.stage_id])

    def unchecked(self, arm: ResolvedArm) -> tuple[str, ...]:
        return tuple(_unchecked(arm_deploy(arm)))

    def stage0_pid(self, root_pid: int) -> int:
        return engine_worker(root_pid, _ENGINE)

    def block_size(self, arm: ResolvedArm) -> int | None:
        return block_size_setting(arm, arm_deploy(arm).block_size)

    def max_model_len(self, arm: ResolvedArm) -> int | None:
        value = arm_deploy(arm).setting("max_model_len")
        return value if isinstance(value, int) else None

    def versions(self, arm: ResolvedArm | None = None) -> dict[str, str]:
        return versions_of(arm, "vllm_omni")


def _unchecked(deploy: ArmDeploy) -> list[str]:
    found = []
    if deploy.expects_caching is None:
        found.append("nothing states prefix caching for stage 0: what its engine says is taken for the claim")
    if deploy.block_size is None:
        found.append(
            "nothing states stage 0's block_size, and the server does not publish it: no ideal hit rate to compare with"
        )
    return found
