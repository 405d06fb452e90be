"""What a run needs of this machine: `bench run` refuses without it, and `bench check` notes that it is not here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from harness.check_notes import grouped
from harness.client import VllmBench, check_vllm_bench
from harness.errors import MissingDependency, UsageError
from harness.scenario import Scenario
from harness.servers.arm import ResolvedArm
from harness.servers.kinds import ServerKind
from harness.workloads import find_tokenizer


def need_tokenizer(scenario: Scenario, base: Path) -> Path:
    """Where the model's tokenizer lies, as `find_tokenizer` says.

    Parameters:
        base: folder of the scenario file.

    Raises:
        MissingDependency: it is not on this machine.
        UsageError: the scenario names one that is not there.
    """
    folder = find_tokenizer(scenario, base)
    if folder is None:
        raise MissingDependency(
            f"tokenizer: found none for model {scenario.model}; allowed: a folder that holds tokenizer.json, as "
            "`tokenizer:`"
        )
    return folder


def need_vllm_bench(scenario: Scenario, arms: Sequence[ResolvedArm]) -> dict[str, VllmBench]:
    """The client of each arm for benches with `client: vllm-bench`; empty where there is none.

    Raises:
        MissingDependency: an arm's interpreter lacks vLLM, or vLLM-Omni where a bench needs it.
        UsageError: a bench that this client cannot run, or arms whose clients differ.
    """
    pythons = {arm.name: arm.python or sys.executable for arm in arms}
    trusting = [arm.name for arm in arms if arm.args.get("trust-remote-code")]
    return check_vllm_bench(scenario.benches, scenario.server.kind, pythons, trusting)


def lacking(kind: ServerKind, scenario: Scenario, arms: Sequence[ResolvedArm], base: Path) -> list[str]:
    """What of all this a run of the scenario would be refused for on this machine, one note each.

    Parameters:
        base: folder of the scenario file.

    Raises:
        UsageError: what no machine would run.
    """
    installed = {arm.name: _lack(partial(kind.check_installed, arm, scenario), UsageError) for arm in arms}
    beside = (_lack(partial(need_vllm_bench, scenario, arms)), _lack(partial(need_tokenizer, scenario, base)))
    return [*grouped("arms.", installed), *filter(None, beside)]


def _lack(need: Callable[[], object], lacks: type[UsageError] = MissingDependency) -> str | None:
    try:
        need()
    except lacks as error:
        return f"a run needs more than this machine has: {error}"
    return None
