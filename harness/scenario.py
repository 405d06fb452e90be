"""A scenario: one YAML file that defines a run, as frozen, validated objects (docs/design.md, section 4).

`load_scenario` turns a file into a `Scenario` or raises one `ScenarioError`; nothing here starts anything.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import shlex
from collections.abc import Sequence

from harness._scenario_accuracy import Accept, Check, Measure, Sim, Wer
from harness._scenario_bench import RESERVED_BODY, Bench, Block, Dataset, Endpoint, Modality
from harness._scenario_load import load_scenario
from harness._scenario_model import Arm, Order, Profiling, Scenario, Server, ServerKind, Until, Validity
from harness._scenario_types import Scalar
from harness.errors import UsageError

__all__ = [
    "RESERVED_BODY",
    "Accept",
    "Arm",
    "Bench",
    "Block",
    "Check",
    "Dataset",
    "Endpoint",
    "Measure",
    "Modality",
    "Order",
    "Profiling",
    "Scalar",
    "Scenario",
    "Server",
    "ServerKind",
    "Sim",
    "Until",
    "Validity",
    "Wer",
    "load_scenario",
    "narrow",
    "scenario_sha256",
]


def scenario_sha256(scenario: Scenario) -> str:
    """Hex digest of the resolved scenario as canonical JSON: equal digests mean the same run is defined."""
    text = json.dumps(scenario.resolved(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def narrow(
    scenario: Scenario, only: Sequence[str] = (), rounds: int | None = None, arms: Sequence[str] = ()
) -> Scenario:
    """The part of a scenario that the command line asked for.

    Parameters:
        only: names or glob patterns of benches and accuracy checks; empty keeps all. `warm` always stays.
        rounds: in place of the file's.
        arms: arm names; empty keeps all.

    Raises:
        UsageError: a name or pattern that fits nothing, no round, or the baseline arm left out.
    """
    names = [bench.name for bench in scenario.loads]
    for pattern in only:
        if not fnmatch.filter(names, pattern):
            begun = [name for name in names if pattern and name.startswith(pattern)]
            meant = f": {shlex.quote(pattern + '*')} fits {', '.join(begun)}" if begun else ""
            raise UsageError(
                f"--only: found {pattern!r}; allowed: {', '.join(names)} (or a pattern that fits one{meant})"
            )
    for arm in arms:
        if arm not in scenario.arms:
            raise UsageError(f"--arms: found {arm!r}; allowed: {', '.join(scenario.arms)}")
    if arms and scenario.baseline not in arms:
        raise UsageError(f"--arms: found no baseline; allowed: a choice with the baseline arm, {scenario.baseline}")
    if rounds is not None and rounds < 1:
        raise UsageError(f"--rounds: found {rounds}; allowed: 1 or more")

    def wanted(name: str) -> bool:
        return not only or name == "warm" or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)

    kept = {name: arm for name, arm in scenario.arms.items() if not arms or name in arms}
    return scenario.model_copy(
        update={
            "benches": tuple(bench for bench in scenario.benches if wanted(bench.name)),
            "checks": tuple(check for check in scenario.checks if wanted(check.name)),
            "rounds": rounds or scenario.rounds,
            "arms": kept,
            "profile": scenario.profile if scenario.profile and wanted(scenario.profile.bench) else None,
            # A Latin square of one arm is one arm after the other.
            "order": "alternate" if len(kept) == 1 and scenario.order in ("latin", "aa") else scenario.order,
        }
    )
