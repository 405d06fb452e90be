"""What each engine of a server says of itself in the log when it starts: its resolved configuration.

vLLM-Omni publishes no `vllm:cache_config_info` (0.30), so this line is the running server's own word:
`(StageEngineCoreProc_stage0_replica0 pid=856) INFO ... Initializing a V1 LLM engine (v0.30.0) with config: model=...,
max_seq_len=8192, ..., enable_prefix_caching=True, ...`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from harness.errors import ArmMismatch, MetricAbsent, RecordError

_LINE = re.compile(r"StageEngineCoreProc_stage(?P<stage>\d+)_replica\d+\D.*LLM engine .*? with config: (?P<config>.*)$")
# Values that are mappings or objects hold keys of their own; these are plain words at the top level.
_WORD = re.compile(r"(?<![\w'])(\w+)=([\w./+-]+)(?=,|$)")
_PUBLISHED = {
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "enforce_eager": "enforce_eager",
    "max_model_len": "max_seq_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
}
"""Settings of a stage that the line shows, by the name it shows them under."""

StageConfigs = Mapping[int, Mapping[str, str]]


def stage_configs(log: Path) -> StageConfigs:
    """By stage, the settings that its engines show. Where replicas differ, all their values, joined by `|`.

    Raises:
        RecordError: the log cannot be read.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RecordError(f"{log}: the server's log cannot be read: {error.strerror}") from error
    shown = set(_PUBLISHED.values())
    found: dict[int, dict[str, set[str]]] = {}
    for line in text.splitlines():
        told = _LINE.search(line)
        if told is None:
            continue
        stage = found.setdefault(int(told["stage"]), {})
        first: dict[str, str] = {}
        for name, value in _WORD.findall(told["config"]):
            first.setdefault(name, value)
        for name in shown & first.keys():
            stage.setdefault(name, set()).add(first[name])
    return {
        stage: {name: "|".join(sorted(values)) for name, values in sorted(config.items())}
        for stage, config in sorted(found.items())
    }


def stage_config(log: Path, stage: int = 0) -> dict[str, str]:
    """The settings that the engines of one stage show.

    Raises:
        MetricAbsent: they show none.
    """
    config = stage_configs(log).get(stage)
    if not config:
        raise MetricAbsent(
            f"stage {stage} logs no configuration of its engine in {log}, so the arm cannot be checked; allowed: a "
            "VLLM_LOGGING_LEVEL of INFO or DEBUG"
        )
    return dict(config)


def verify_stage(arm: str, stage: int, wanted: Mapping[str, object], live: Mapping[str, str]) -> None:
    """Check what a stage should have got against what its engine shows; settings that do not show are passed over.

    Parameters:
        wanted: the stage's settings by their names in a deploy profile.
        live: what the engine shows.

    Raises:
        ArmMismatch: they differ.
    """
    for name, shown in _PUBLISHED.items():
        value = wanted.get(name)
        plain = isinstance(value, bool) or (isinstance(value, int) and value > 0)
        if plain and shown in live and live[shown] != str(value):
            raise ArmMismatch(
                f"arm {arm} sets {name}={value} for stage {stage}, but its engine says {shown}={live[shown]}"
            )
