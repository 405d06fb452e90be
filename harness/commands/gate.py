"""`bench gate`: a policy applied to a recorded run, told to a person, to machines and to a CI job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from harness.gate import GateResult
from harness.gate_text import gate_json, gate_markdown, render_gate
from harness.gating import gate_run
from harness.github import append_summary
from harness.junit import write_junit
from harness.policy import Policy, load_policy
from harness.store import RunStore


@dataclass(frozen=True, slots=True)
class Judged:
    """A gate's result in every form."""

    result: GateResult
    table: RenderableType
    data: dict[str, Any]

    @property
    def exit_code(self) -> int:
        return self.result.exit_code


def policy_of(path: Path) -> Policy:
    """The policy in a file.

    Raises:
        ScenarioError: the one thing to correct first.
    """
    return load_policy(path)


def judged(store: RunStore, policy: Policy, stored: RunStore | None = None, junit: Path | None = None) -> Judged:
    """Gates a run and writes what CI reads of it.

    Raises:
        UsageError: a rule fits nothing, or a file cannot be written.
        RecordError: a record is missing or unreadable.
    """
    return publish(gate_run(store, policy, stored), store, junit)


def publish(result: GateResult, store: RunStore, junit: Path | None = None) -> Judged:
    """A result in every form; JUnit XML and the summary page are written where they are wanted."""
    manifest = store.manifest()
    if junit is not None:
        write_junit(junit, result, manifest)
    append_summary(gate_markdown(result, manifest.run))
    return Judged(result, render_gate(result, manifest.run), gate_json(result, manifest.run))
