"""An arm's deploy overlay: what its stages will get, what of it loses, and the file the server is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UsageError
from harness.servers.arm import ResolvedArm
from harness.servers.deploy import fields
from harness.servers.deploy.command_line import read_command_line
from harness.servers.deploy.installation import Installation, installation
from harness.servers.deploy.merge import Deploy, flatten
from harness.servers.deploy.profile import BASE, MissingBase, Profile, overlay_profile
from harness.servers.deploy.resolve import ResolvedStage, resolve

ASSUMED_PLATFORM = "cuda"


@dataclass(frozen=True, slots=True)
class ArmDeploy:
    """What an arm's overlay comes to.

    Parameters:
        arm: its name.
        platform: the device it was resolved for, in vLLM-Omni's words.
        platform_assumed: nothing on this machine says that it is that device.
        stages: what each stage gets, by id.
        platforms: the devices that it or a profile below it has a section for.
        missing: a profile it builds on that is not on this machine; the stages are then those of the rest.
        lost: settings the overlay writes and a stage does not get, each as one sentence.
    """

    arm: str
    platform: str
    platform_assumed: bool
    stages: tuple[ResolvedStage, ...]
    platforms: tuple[str, ...]
    missing: MissingBase | None
    lost: tuple[str, ...]

    def setting(self, name: str, stage_id: int = 0) -> Any:
        """A setting of one stage; None where nothing states it and the engine decides."""
        return next((stage.settings.get(name) for stage in self.stages if stage.stage_id == stage_id), None)

    @property
    def expects_caching(self) -> bool | None:
        """Whether stage 0's prefix cache is on; None: nothing says so (vLLM turns it on for a model that can)."""
        value = self.setting("enable_prefix_caching")
        return None if value is None else bool(value)

    @property
    def block_size(self) -> int | None:
        """Tokens per KV block of stage 0; None: the engine decides."""
        value: int | None = self.setting("block_size")
        return value


def arm_deploy(arm: ResolvedArm, platform: str | None = None, found: Installation | None = None) -> ArmDeploy:
    """Resolve an arm's overlay and command line for one device.

    Without an overlay vLLM-Omni takes the model's own profile, which only the server knows: the stages are then what
    the command line alone says.

    Parameters:
        platform: vLLM-Omni's name of the device; None: that of the arm's interpreter, or else assumed.
        found: what the arm's interpreter has; None: it is asked.

    Raises:
        UsageError: an overlay or profile that vLLM-Omni would refuse.
    """
    found = found or installation(arm)
    profile = _profile(arm, found)
    deploy = flatten(profile)
    chosen = platform or found.platform or ASSUMED_PLATFORM
    command_line = read_command_line(arm.args)
    try:
        stages = resolve(deploy, chosen, command_line)
    except UsageError as error:
        raise UsageError(f"arms.{arm.name}: {error}") from None
    missing = next((link.missing for link in profile.chain() if link.missing is not None), None)
    if missing is not None or arm.deploy is None:
        stages = tuple(stage.stated() for stage in stages)
    return ArmDeploy(
        arm=arm.name,
        platform=chosen,
        platform_assumed=platform is None and found.platform is None,
        stages=stages,
        platforms=tuple(sorted(deploy.platforms)),
        missing=missing,
        lost=tuple(_lost(profile, deploy, stages, chosen)),
    )


def expects_caching(arm: ResolvedArm, platform: str | None = None) -> bool | None:
    """Whether stage 0's prefix cache is on for this arm; None: nothing on this machine says."""
    return arm_deploy(arm, platform).expects_caching


def block_size(arm: ResolvedArm, platform: str | None = None) -> int | None:
    """Tokens per KV block of stage 0 for this arm; None: the engine decides."""
    return arm_deploy(arm, platform).block_size


def write_overlay(arm: ResolvedArm, folder: Path, found: Installation | None = None) -> Path | None:
    """Write the file for `--deploy-config`, with absolute bases, into a folder; None: the arm has no overlay.

    Raises:
        UsageError: the profile it builds on is not on this machine.
    """
    if arm.deploy is None:
        return None
    return _written(_profile(arm, found or installation(arm)).whole(), folder)


def profile_folders(arm: ResolvedArm, found: Installation) -> tuple[Path, ...]:
    """Where an arm's bases are looked for: its checkout's profiles, then its interpreter's."""
    source = None if arm.source is None else Path(arm.source) / "vllm_omni" / "deploy"
    return tuple(folder for folder in (source, found.profiles) if folder is not None)


def _profile(arm: ResolvedArm, found: Installation) -> Profile:
    return overlay_profile(arm.deploy or {}, f"arms.{arm.name}.deploy", profile_folders(arm, found))


def _written(profile: Profile, folder: Path, depth: int = 0) -> Path:
    """The profile as a file in the folder. Its base is copied too where vLLM-Omni would not find all below it."""
    content = dict(profile.data)
    if profile.base is not None:
        path = profile.base.path
        whole = path is not None and all(link.beside for link in profile.base.chain())
        base = path.absolute() if path is not None and whole else _written(profile.base, folder, depth + 1)
        content = {BASE: str(base), **content}
    file = folder / ("deploy.yaml" if depth == 0 else f"deploy-{depth}-{profile.label}")
    file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return file


def _lost(profile: Profile, deploy: Deploy, stages: tuple[ResolvedStage, ...], platform: str) -> Iterator[str]:
    """What the overlay writes and the stages do not get, and what is no setting at all."""
    by_id = {stage.stage_id: stage for stage in stages}
    below = None if profile.base is None else flatten(profile.base)
    for key in fields.PIPELINE_WIDE:
        value = profile.data.get(key)
        if value is not None:
            for stage in stages:
                yield from _beaten(f"{key}: {_shown(value)} for every stage", key, value, stage)
    for place, entries in _entries(profile.data, platform):
        for entry in entries:
            stage_id = entry["stage_id"]
            if place != "stages" and stage_id not in deploy.stages:
                yield f"{place}: stage {stage_id} has no entry under stages, so this one is ignored"
                continue
            if below is not None and below.stages and stage_id not in below.stages:
                yield f"{place}: stage {stage_id} is in no profile it builds on, and ignored unless the pipeline has it"
            for key, value in _flat(entry):
                if key not in fields.ENGINE | fields.OWN_ATTRIBUTES | fields.STAGE_METADATA:
                    yield f"stage {stage_id} {key} is no setting of a stage in vLLM-Omni {fields.READ_FROM}"
                elif value is not None and key != "async_chunk":
                    yield from _beaten(f"stage {stage_id} {key}: {_shown(value)}", key, value, by_id[stage_id])


def _beaten(written: str, key: str, value: Any, stage: ResolvedStage) -> Iterator[str]:
    got = stage.settings.get(key)
    if not _holds(got, value):
        source = stage.sources.get(key, "an extra of that name that is null")
        where = "" if written.startswith("stage ") else f" in stage {stage.stage_id}"
        yield f"{written} is overridden{where} by {source}: {_shown(got)}"


def _entries(data: Mapping[str, Any], platform: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    yield "stages", data.get("stages") or []
    section = (data.get("platforms") or {}).get(platform) or {}
    yield f"platforms.{platform}.stages", section.get("stages") or []


def _flat(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every setting a stage entry writes, the mappings for engine arguments opened."""
    for key, value in entry.items():
        if key in ("engine_args", "engine_extras", "runtime"):
            yield from (value or {}).items()
        elif key != "stage_id":
            yield key, value


def _holds(got: Any, value: Any) -> bool:
    """Whether a resolved value still holds what was written: a mapping may have gained keys."""
    if isinstance(value, Mapping) and isinstance(got, Mapping):
        return all(key in got and _holds(got[key], item) for key, item in value.items())
    return bool(got == value)


def _shown(value: Any) -> str:
    """As YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else "unset" if value is None else str(value)
