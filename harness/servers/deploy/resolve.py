"""What each stage really gets: a merged profile, one platform's section, and the command line on top.

From lowest to highest: what is pipeline-wide, a stage's declared fields, its extras (an undeclared key of the stage
beats the same key inside `engine_extras`, and `engine_args` beats both), with the platform's section written into
fields and extras as it falls, then the command line, then `--stage-overrides`. So a declared field set by a platform
still loses to an extra of the same name, while an undeclared key such as `enable_prefix_caching` wins.
(`_parse_stage_deploy`, `_apply_platform_overrides`, `VllmOmniConfig.from_pipeline_config` of vLLM-Omni.)

The pipeline itself is not in a profile: its stages are taken to be language-model stages, and as many as are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import UsageError
from harness.servers.deploy import fields
from harness.servers.deploy.command_line import CommandLine
from harness.servers.deploy.merge import Deploy, Platform, Sourced, Tree, merge_trees, plain, sources

SERVER_DEFAULT = "vLLM-Omni's default"
SINGLE_STAGE = "a single stage"


@dataclass(frozen=True, slots=True)
class ResolvedStage:
    """One stage as the server would start it.

    Parameters:
        settings: by name, only what is stated somewhere, beside `async_chunk`, `model_runner` and `session_mode`;
            for any other the engine of the stage decides.
        sources: for each setting, where its value was written.
    """

    stage_id: int
    settings: Mapping[str, Any]
    sources: Mapping[str, str]

    def stated(self) -> ResolvedStage:
        """Without what holds only if the whole profile is known."""
        kept = {name: said for name, said in self.sources.items() if said not in (SERVER_DEFAULT, SINGLE_STAGE)}
        return ResolvedStage(self.stage_id, {name: self.settings[name] for name in kept}, kept)


def resolve(
    deploy: Deploy, platform: str | None, command_line: CommandLine | None = None, stage_ids: Iterable[int] = (0,)
) -> tuple[ResolvedStage, ...]:
    """Every stage the profile names, by id, and those of `stage_ids`, which the pipeline has in any case.

    Parameters:
        platform: vLLM-Omni's name of the device (`cuda`, `npu`, ...); None applies no platform's section.

    Raises:
        UsageError: what vLLM-Omni refuses when it starts.
    """
    typed = command_line or CommandLine()
    section = Platform() if platform is None else deploy.platforms.get(platform, Platform())
    whole = _whole(deploy, section, platform, typed)
    stages = []
    for stage_id in sorted({*stage_ids, *deploy.stages}):
        stage = _Stage.parsed(deploy.stages.get(stage_id, {}), stage_id)
        if stage_id in deploy.stages and stage_id in section.stages:
            stage.apply(section.stages[stage_id], stage_id)
        settings = _settings(stage, deploy)
        for layer in (typed.every_stage, typed.stages.get(stage_id, {})):
            settings = _laid_over(settings, layer)
        settings |= _decided(stage, whole, settings)
        stages.append(
            ResolvedStage(
                stage_id,
                {name: plain(value) for name, value in sorted(settings.items())},
                {name: ", ".join(sources(value)) or SERVER_DEFAULT for name, value in sorted(settings.items())},
            )
        )
    return tuple(stages)


@dataclass(slots=True)
class _Stage:
    """A stage entry while it is read: declared fields with the entry's own attributes, and extras."""

    fields: Tree
    extras: Tree

    @classmethod
    def parsed(cls, entry: Tree, stage_id: int) -> _Stage:
        flat = {key: value for key, value in entry.items() if key not in fields.RESERVED}
        for key, value in _tree(entry.get("engine_args"), stage_id, "engine_args").items():
            both = isinstance(value, dict) and isinstance(flat.get(key), dict)
            flat[key] = merge_trees(flat[key], value) if both else value
        runtime = _tree(entry.get("runtime"), stage_id, "runtime")
        own = {key: entry[key] for key in fields.OWN_ATTRIBUTES - {"engine_extras"} if key in entry}
        own |= {key: runtime[key] for key in ("devices", "num_replicas", "env") if key in runtime}
        own |= {key: flat.pop(key) for key in fields.DECLARED if key in flat}
        return cls(own, merge_trees(_tree(entry.get("engine_extras"), stage_id, "engine_extras"), flat))

    def apply(self, entry: Tree, stage_id: int) -> None:
        """Write a platform's entry over this one."""
        if "engine_args" in entry:
            # Beside engine_args, an entry's flat keys are not looked at.
            runtime = _tree(entry.get("runtime"), stage_id, "runtime")
            changes = _tree(entry["engine_args"], stage_id, "engine_args") | {
                key: value for key, value in runtime.items() if key in ("devices", "num_replicas", "env")
            }
        else:
            changes = entry
        for key, value in changes.items():
            if key in ("devices", "env") and _unset(value):
                continue
            if key == "engine_extras":
                self.extras = {**self.extras, **_tree(value, stage_id, key)}
            elif key not in fields.DECLARED | fields.OWN_ATTRIBUTES:
                self.extras[key] = value
            else:
                below = self.fields.get(key)
                together = (key == "env" or key in fields.DEEP_MERGED) and isinstance(below, dict)
                self.fields[key] = {**below, **value} if together and isinstance(value, dict) else value  # type: ignore[dict-item]  # mappings both


def _settings(stage: _Stage, deploy: Deploy) -> Tree:
    extras = {key: value for key, value in stage.extras.items() if key not in fields.STAGE_METADATA}
    declared = {key: value for key, value in stage.fields.items() if not _unset(value)}
    # An extra that is null takes the declared value away with it.
    found = {key: value for key, value in {**declared, **extras}.items() if not _unset(value)}
    for key in fields.PIPELINE_WIDE:
        value = deploy.settings.get(key)
        taken = key in found or (key == "quantization" and "quantization_config" in found)
        if value is not None and not _unset(value) and not taken:
            found[key] = value
    return found


def _laid_over(settings: Tree, layer: Tree) -> Tree:
    laid = dict(settings)
    for key, value in layer.items():
        both = isinstance(laid.get(key), dict) and isinstance(value, dict) and key != "omni_kv_config"
        laid[key] = merge_trees(laid[key], value) if both else value
    return laid


def _whole(deploy: Deploy, section: Platform, platform: str | None, typed: CommandLine) -> Tree:
    """What is decided once for all stages."""
    defaults = {"async_chunk": True, "session_mode": "turn", "model_runner": "v1"}
    whole: Tree = {name: deploy.settings.get(name, Sourced(value, SERVER_DEFAULT)) for name, value in defaults.items()}
    if typed.async_chunk is not None:
        whole["async_chunk"] = typed.async_chunk
    if "model_runner" in section.settings:
        whole["model_runner"] = section.settings["model_runner"]
    runner = whole["model_runner"]
    allowed = " or ".join(fields.RUNNERS)
    if plain(runner) not in fields.RUNNERS:
        raise UsageError(f"{', '.join(sources(runner))}: model_runner: found {plain(runner)!r}; allowed: {allowed}")
    if plain(runner) == "v2" and platform in fields.V1_PLATFORMS:
        raise UsageError(f"{runner.source}: model_runner: found v2 on {platform}; allowed: v1, all that {platform} has")
    if len(deploy.stages) == 1:
        whole["async_chunk"] = Sourced(False, SINGLE_STAGE)
    return whole


def _decided(stage: _Stage, whole: Tree, settings: Tree) -> Tree:
    """What the server fixes last, for one stage."""
    chunked = whole["async_chunk"]
    own = stage.fields.get("async_chunk")
    if plain(chunked) and own is not None and plain(own) is False:
        chunked = own
    runner = whole["model_runner"]
    if "use_v2_model_runner" in settings:
        wanted = settings["use_v2_model_runner"]
        runner = Sourced("v2" if wanted.value else "v1", wanted.source)
    return {
        "async_chunk": Sourced(bool(plain(chunked)), ", ".join(sources(chunked))),
        "model_runner": runner,
        "session_mode": whole["session_mode"],
    }


def _tree(value: Any, stage_id: int, key: str) -> Tree:
    if value is None or _unset(value):
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{value.source}: stage {stage_id} {key}: found {value.value!r}; allowed: a mapping")
    return value


def _unset(value: Any) -> bool:
    return isinstance(value, Sourced) and value.value is None
