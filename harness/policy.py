"""The policy of a gate: one YAML file of rules, as frozen, validated objects.

    schema: 1
    rules:
      - {bench: "*_h0_*", metric: request_throughput, at_least: -0.03}
      - {bench: "*_h94_*", metric: request_throughput, at_least: 1.0}
      - {bench: "*", metric: median_ttft_ms, at_most: 0.05}
      - {metric: memory_peak_rss, at_most: 0.10}
      - {bench: "*", metric: median_e2el_ms, reported: true}

A bound is a change against the baseline arm of the same run, as a share: -0.03 is three percent less. With a stored
run as the baseline it is the change of that ratio between the two runs.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from harness._scenario_errors import first_error
from harness._scenario_types import Frozen, refusal
from harness._scenario_yaml import read_document

GateMetric = Literal[
    "request_throughput",
    "output_throughput",
    "audio_throughput",
    "median_ttft_ms",
    "median_tpot_ms",
    "median_e2el_ms",
    "mean_e2el_ms",
    "p90_e2el_ms",
    "median_audio_ttfp_ms",
    "median_audio_rtf",
    "memory_ready_rss",
    "memory_end_rss",
    "memory_peak_rss",
]
Change = Annotated[float, Field(gt=-1.0)]


class Rule(Frozen):
    """One bound on one metric, for the benches and arms that the patterns fit."""

    bench: str = "*"
    arm: str = "*"
    metric: GateMetric
    at_least: Change | None = None
    at_most: Change | None = None
    reported: bool = False
    """True: shown, and never a reason to fail."""
    optional: bool = False
    """True: a pattern that fits no bench of the run is no error."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        bounds = [name for name in ("at_least", "at_most") if getattr(self, name) is not None]
        if self.reported == bool(bounds):
            found = f"reported beside {' and '.join(bounds)}" if bounds else "no bound"
            raise refusal(found, "at_least, at_most or both, or else reported: true")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise refusal(f"at_least {self.at_least:g} above at_most {self.at_most:g}", "a range", "at_least")
        if self.at_most is not None and self.at_most > 1.0:
            raise refusal(f"{self.at_most:g}", "a share of at most 1: 0.1 is ten percent more", "at_most")
        return self

    @property
    def of_memory(self) -> bool:
        return self.metric.startswith("memory_")

    def fits(self, bench: str, arm: str) -> bool:
        return fnmatch.fnmatchcase(bench, self.bench) and fnmatch.fnmatchcase(arm, self.arm)


class Policy(Frozen):
    """All rules of a gate. A run passes when every one holds."""

    schema_version: Literal[1] = Field(alias="schema")
    rules: Annotated[list[Rule], Field(min_length=1)]
    accuracy: Literal["required"] | None = None
    """`required`: a run without an accuracy check that has limits is refused."""

    @property
    def deciding(self) -> list[Rule]:
        """The rules that have bounds, and do not only report."""
        return [rule for rule in self.rules if not rule.reported]


def load_policy(path: Path) -> Policy:
    """Read and validate a policy file.

    Raises:
        ScenarioError: the one thing to correct first.
    """
    document = read_document(path)
    try:
        return Policy.model_validate(document.data)
    except ValidationError as error:
        raise first_error(error, Policy, document.data, document.error, lambda loc: document.line(loc) or 0) from None
