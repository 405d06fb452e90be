"""Laying a profile over its base, by the rules of vLLM-Omni, while remembering where each value came from.

Top-level keys replace. `connectors` merge recursively. `stages` and `platforms.*.stages` merge by `stage_id` and per
key; a key's mapping replaces the base's, but for the few in `fields.DEEP_MERGED`, which merge recursively.
(`resolve_deploy_yaml` and what it calls, in `vllm_omni/config/stage_config.py`.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.errors import UsageError
from harness.servers.deploy import fields
from harness.servers.deploy.profile import Profile

Tree = dict[str, Any]
"""Nested mappings whose leaves are `Sourced`."""


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value that is no mapping, and where it was written."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Platform:
    """What a profile says for one sort of device."""

    settings: Tree = field(default_factory=dict)
    stages: dict[int, Tree] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deploy:
    """A profile with its bases merged in."""

    settings: Tree = field(default_factory=dict)
    connectors: Tree = field(default_factory=dict)
    stages: dict[int, Tree] = field(default_factory=dict)
    platforms: dict[str, Platform] = field(default_factory=dict)


def flatten(profile: Profile) -> Deploy:
    """The whole chain as one, the profile itself on top.

    Raises:
        UsageError: a part that has not the form of a deploy profile.
    """
    merged = Deploy()
    for link in reversed(list(profile.chain())):
        merged = merge(merged, read(link))
    return merged


def merge(base: Deploy, overlay: Deploy) -> Deploy:
    """`overlay` laid over `base`; neither is changed."""
    names = {**base.platforms, **overlay.platforms}
    return Deploy(
        settings={**base.settings, **overlay.settings},
        connectors=merge_trees(base.connectors, overlay.connectors),
        stages=_merge_stages(base.stages, overlay.stages),
        platforms={
            name: _merge_platform(base.platforms.get(name, Platform()), overlay.platforms.get(name, Platform()))
            for name in names
        },
    )


def merge_trees(base: Tree, overlay: Tree) -> Tree:
    """Recursive merge: mappings on both sides merge, anything else is replaced by the overlay's."""
    merged = dict(base)
    for key, value in overlay.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = merge_trees(below, value) if both else value  # type: ignore[arg-type]  # `both` says so
    return merged


def read(profile: Profile) -> Deploy:
    """One profile's own content, without its base."""
    where = str(profile.path or profile.label)
    data = profile.data
    if "stage_args" in data:
        raise UsageError(f"{where}: found stage_args; allowed: stages (vLLM-Omni has removed the older form)")
    parts = ("stages", "platforms", "connectors")
    platforms = {}
    for name, section in _mapping(data.get("platforms"), f"{where}: platforms").items():
        place = f"platforms.{name}"
        content = _mapping(section, f"{where}: {place}")
        platforms[name] = Platform(
            settings={k: sourced(v, f"{profile.label} {place}") for k, v in content.items() if k != "stages"},
            stages=_stages(content.get("stages"), f"{where}: {place}.stages", f"{profile.label} {place}"),
        )
    return Deploy(
        settings={k: sourced(v, f"{profile.label} top level") for k, v in data.items() if k not in parts},
        connectors=sourced(_mapping(data.get("connectors"), f"{where}: connectors"), f"{profile.label} connectors"),
        stages=_stages(data.get("stages"), f"{where}: stages", profile.label),
        platforms=platforms,
    )


def sourced(value: Any, source: str) -> Any:
    """A value as a tree, every leaf with that source."""
    if isinstance(value, Mapping):
        return {key: sourced(item, source) for key, item in value.items()}
    return Sourced(value, source)


def plain(tree: Any) -> Any:
    """A tree as the values alone."""
    if isinstance(tree, dict):
        return {key: plain(item) for key, item in tree.items()}
    return tree.value


def sources(tree: Any) -> tuple[str, ...]:
    """Where the leaves of a tree were written, each once; none for an empty mapping."""
    if isinstance(tree, dict):
        return tuple(dict.fromkeys(source for item in tree.values() for source in sources(item)))
    return (tree.source,)


def _merge_stages(base: dict[int, Tree], overlay: dict[int, Tree]) -> dict[int, Tree]:
    merged = dict(base)
    for stage_id, stage in overlay.items():
        merged[stage_id] = _merge_stage(merged[stage_id], stage) if stage_id in merged else stage
    return merged


def _merge_stage(base: Tree, overlay: Tree) -> Tree:
    deep = merge_trees(
        {key: value for key, value in base.items() if key in fields.DEEP_MERGED},
        {key: value for key, value in overlay.items() if key in fields.DEEP_MERGED},
    )
    return {**base, **overlay, **deep}


def _merge_platform(base: Platform, overlay: Platform) -> Platform:
    return Platform({**base.settings, **overlay.settings}, _merge_stages(base.stages, overlay.stages))


def _stages(stages: object, where: str, label: str) -> dict[int, Tree]:
    if stages is None:
        return {}
    if not isinstance(stages, list):
        raise UsageError(f"{where}: found {type(stages).__name__}; allowed: a list of stages")
    found: dict[int, Tree] = {}
    for index, entry in enumerate(stages):
        stage_id = entry.get("stage_id") if isinstance(entry, Mapping) else None
        if not isinstance(stage_id, int) or isinstance(stage_id, bool):
            raise UsageError(f"{where}[{index}]: found {entry!r}; allowed: a mapping with a whole number as stage_id")
        if stage_id in found:
            raise UsageError(f"{where}[{index}]: found stage_id {stage_id} twice; allowed: once")
        found[stage_id] = sourced({key: value for key, value in entry.items() if key != "stage_id"}, label)
    return found


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: found {value!r}; allowed: a mapping")
    return value
