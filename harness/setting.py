"""The setting of a trial: machine, GPUs, weights and source trees, looked at just before the server is started."""

from __future__ import annotations

import os
from dataclasses import dataclass

from harness.provenance import host
from harness.records import Gpu, Host, Model, SourceTree
from harness.scenario import Scenario
from harness.servers.arm import ResolvedArm
from harness.servers.launch import expanded
from harness.servers.sources import our_source, server_sources
from harness.telemetry.gpu_state import Nvml
from harness.weights import model_facts


@dataclass(frozen=True, slots=True)
class Setting:
    """What a trial starts from.

    Parameters:
        gpus: empty where NVML shows none.
        sources: this harness' own tree first, then the server's.
    """

    host: Host
    gpus: tuple[Gpu, ...]
    model: Model
    sources: tuple[SourceTree, ...]


def look_around(scenario: Scenario, arm: ResolvedArm) -> Setting:
    """The setting now.

    Raises:
        UsageError: the arm's interpreter is no Python.
    """
    return Setting(host=host(), gpus=_gpus(), model=_model(scenario, arm), sources=(our_source(), *server_sources(arm)))


def _gpus() -> tuple[Gpu, ...]:
    nvml = Nvml.open()
    if nvml is None:
        return ()
    try:
        return nvml.read()
    finally:
        nvml.close()


def _model(scenario: Scenario, arm: ResolvedArm) -> Model:
    if arm.kind in ("tiny-omni", "external"):
        # The reference server makes its weights; another's are not to be seen from here.
        return Model(
            id=scenario.model, path=None, revision=None, config_sha256=None, weights_sha256=None, weights_bytes=None
        )
    revision = arm.args.get("revision")
    environment = {**os.environ, **{name: expanded(value, f"env {name}") for name, value in arm.env.items()}}
    return model_facts(
        scenario.model, scenario.server.model_path, environment, None if revision is None else str(revision)
    )
