"""The command line of `vllm serve --omni` as far as it changes what a stage gets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.errors import UsageError
from harness.scenario import Scalar
from harness.servers.deploy import fields
from harness.servers.deploy.merge import Sourced, Tree, merge_trees, sourced

_OVERRIDES = "stage_overrides"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Arguments that reach stages.

    Parameters:
        every_stage: settings of all stages.
        stages: settings of one stage, by id (`--stage-overrides`); they beat the others.
        async_chunk: the pipeline-wide switch, where it is given.
    """

    every_stage: Tree = field(default_factory=dict)
    stages: Mapping[int, Tree] = field(default_factory=dict)
    async_chunk: Sourced | None = None


def read_command_line(args: Mapping[str, Scalar]) -> CommandLine:
    """An arm's arguments, names with dashes; what only the front end takes is left out.

    Raises:
        UsageError: a `stage-overrides` that is not what the server takes.
    """
    every: Tree = {}
    chunked: Sourced | None = None
    overrides: dict[int, Tree] = {}
    for name, value in args.items():
        # `--compilation-config.mode 3` is a key inside the argument's mapping.
        key, *inside = name.replace("-", "_").split(".")
        content: Any = _parsed(value)
        if key.startswith("no_") and isinstance(value, bool) and key not in fields.COMMAND_LINE:
            key, content = key.removeprefix("no_"), not value
        for part in reversed(inside):
            content = {part: content}
        if key == "async_chunk":
            chunked = Sourced(bool(content), f"args {name}")
        elif key == _OVERRIDES:
            overrides = _stages(content, name)
        elif key in fields.COMMAND_LINE:
            every = merge_trees(every, {key: sourced(content, f"args {name}")})
    return CommandLine(every, overrides, chunked)


def _parsed(value: Scalar) -> Any:
    """A JSON mapping as such; all else as it stands."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _stages(content: object, name: str) -> dict[int, Tree]:
    where = f"args {name}"
    if not isinstance(content, Mapping):
        raise UsageError(f"{where}: found {content!r}; allowed: a JSON mapping from stage ids to settings")
    found: dict[int, Tree] = {}
    for stage_id, settings in content.items():
        if not stage_id.isascii() or not stage_id.isdigit() or not isinstance(settings, Mapping):
            raise UsageError(f"{where}: found {stage_id!r}: {settings!r}; allowed: a stage's number and a mapping")
        kept = {
            key: value for key, value in settings.items() if key not in fields.NEVER_PER_STAGE and value is not None
        }
        found[int(stage_id)] = sourced(kept, where)
    return found
