"""The prefix caching that vLLM-Omni's shipped profiles come to: profile by profile, device by device, stage by stage.

Where vLLM-Omni is installed its own resolver answers, in its own interpreter, and ours is held against it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import HarnessFailure, UsageError
from harness.servers.arm import ResolvedArm
from harness.servers.deploy import ask_vllm_omni
from harness.servers.deploy.device import check_device
from harness.servers.deploy.fields import PLATFORMS
from harness.servers.deploy.installation import installation
from harness.servers.deploy.merge import Deploy, flatten
from harness.servers.deploy.profile import load_profile
from harness.servers.deploy.resolve import SERVER_DEFAULT, ResolvedStage, resolve
from harness.servers.interpreter import interpreter_path

SWITCH = "enable_prefix_caching"
COMPARED = (
    SWITCH,
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "gpu_memory_utilization",
    "enforce_eager",
    "async_scheduling",
    "async_chunk",
    "model_runner",
)
"""Settings in which the two resolvers must agree wherever a profile states them."""
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class StageDefault:
    """One stage of one profile on one device.

    Parameters:
        caching: None: nothing states it. vLLM then turns it on for a language model that can cache, which a diffusion
            stage and a generation stage (`execution`) are not: those stay off.
        execution: `llm_ar`, `llm_generation` or `diffusion`, None where only the profile was read.
        source: where the value was written.
    """

    stage_id: int
    caching: bool | None
    execution: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ProfileDefault:
    """One profile on one device; `refused` is why vLLM-Omni would not start it, None where it would."""

    profile: str
    platform: str
    stages: tuple[StageDefault, ...]
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Where our resolver and vLLM-Omni's own do not agree; a bug of ours, or a version that we do not know."""

    profile: str
    platform: str
    stage_id: int | None
    setting: str
    ours: Any
    theirs: Any


@dataclass(frozen=True, slots=True)
class Defaults:
    """The table.

    Parameters:
        folder: of the profiles.
        version: of the vLLM-Omni that answered; None: our resolver did, alone.
        compared: (profile, platform, stage) triples in which both resolvers were held against each other.
    """

    folder: str
    version: str | None
    platforms: tuple[str, ...]
    profiles: tuple[ProfileDefault, ...]
    compared: int
    disagreements: tuple[Disagreement, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def defaults_of_python(python: str | None, platforms: Sequence[str] = ()) -> Defaults:
    """What the profiles of an installed vLLM-Omni come to, by its own resolver.

    Parameters:
        python: the interpreter; None is the one that runs this harness.
        platforms: devices; none are `PLATFORMS`.

    Raises:
        UsageError: no vLLM-Omni in that interpreter, or a device that it does not know.
        HarnessFailure: its resolver could not be asked.
    """
    chosen = _known(platforms)
    arm = ResolvedArm("defaults", "vllm-omni", {}, {}, python, None, None, None)
    found = installation(arm)
    if found.profiles is None:
        what = found.problem or f"found {interpreter_path(arm)}, which has no vLLM-Omni"
        raise UsageError(
            f"bench defaults: {what}; give --python, an interpreter with vLLM-Omni, or --source, a checkout of it"
        )
    theirs = ask_resolver(interpreter_path(arm), found.profiles, chosen)
    profiles: list[ProfileDefault] = []
    disagreements: list[Disagreement] = []
    compared = 0
    for name, by_platform in theirs["profiles"].items():
        deploy = _read(found.profiles / name)
        for platform, told in by_platform.items():
            ours = _resolved(deploy, platform, [stage["stage_id"] for stage in told.get("stages", ())])
            profiles.append(_theirs(name, platform, told, ours))
            compared += len(told.get("stages", ()))
            disagreements += compare(name, platform, ours, told)
    return Defaults(str(found.profiles), theirs["version"], chosen, tuple(profiles), compared, tuple(disagreements))


def defaults_of_source(source: Path, platforms: Sequence[str] = ()) -> Defaults:
    """What the profiles of a checkout come to, by our resolver alone.

    Raises:
        UsageError: the folder is no checkout of vLLM-Omni, or a device that it does not know.
    """
    chosen = _known(platforms)
    folder = source / "vllm_omni" / "deploy"
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise UsageError(f"bench defaults: --source: found no profile in {folder}; allowed: a checkout of vLLM-Omni")
    read = [(file.name, _read(file)) for file in files]
    profiles = [_ours(name, platform, _resolved(deploy, platform)) for name, deploy in read for platform in chosen]
    return Defaults(str(folder), None, chosen, tuple(profiles), 0, ())


def compare(
    profile: str, platform: str, ours: tuple[ResolvedStage, ...] | UsageError, theirs: Mapping[str, Any]
) -> Iterator[Disagreement]:
    """Where our stages and those that vLLM-Omni's resolver told differ.

    What vLLM-Omni refuses on account of the pipeline cannot be seen in a profile, so only our refusing alone counts.
    A setting that no profile states may have any value that the pipeline, which we do not know, gives it; but prefix
    caching and the sizes of an autoregressive stage are left unstated there too.
    """
    if isinstance(ours, UsageError):
        if "refused" not in theirs:
            yield Disagreement(profile, platform, None, "refused", str(ours), None)
        return
    by_id = {stage.stage_id: stage for stage in ours}
    for told in theirs.get("stages", ()):
        stage = by_id[told["stage_id"]]
        for name in COMPARED:
            mine, other = stage.settings.get(name), told["settings"].get(name)
            stated = mine is not None and not (name == "async_chunk" and stage.sources[name] == SERVER_DEFAULT)
            unstated = (
                mine is None and told["execution"] == "llm_ar" and name not in ("enforce_eager", "async_scheduling")
            )
            if mine != other and (stated or unstated):
                yield Disagreement(profile, platform, stage.stage_id, name, mine, other)


def ask_resolver(
    python: str, folder: Path, platforms: Sequence[str], arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The answer of `ask_vllm_omni`, run by the interpreter that has vLLM-Omni.

    Raises:
        HarnessFailure: there was none.
    """
    with tempfile.TemporaryDirectory() as scratch:
        request, answer = Path(scratch) / "request.json", Path(scratch) / "answer.json"
        request.write_text(
            json.dumps({"folder": str(folder), "platforms": platforms, "arguments": arguments or {}}), encoding="utf-8"
        )
        command = [python, "-P", str(Path(ask_vllm_omni.__file__)), str(request), str(answer)]
        try:
            subprocess.run(
                command, check=True, timeout=_TIMEOUT_S, capture_output=True, text=True, errors="replace", cwd=scratch
            )
            told: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        except subprocess.CalledProcessError as error:
            raise HarnessFailure(f"{python}: vLLM-Omni's resolver failed: {error.stderr.strip()[-600:]}") from None
        except subprocess.TimeoutExpired:
            raise HarnessFailure(f"{python}: vLLM-Omni's resolver did not answer within {_TIMEOUT_S} s") from None
    return told


def _known(platforms: Sequence[str]) -> tuple[str, ...]:
    for platform in platforms:
        check_device(platform)
    return tuple(platforms) or PLATFORMS


def _read(file: Path) -> Deploy | UsageError:
    """A profile with its bases, or why it cannot be read."""
    try:
        return flatten(load_profile(file))
    except UsageError as error:
        return error


def _resolved(
    deploy: Deploy | UsageError, platform: str, stage_ids: Sequence[int] = ()
) -> tuple[ResolvedStage, ...] | UsageError:
    """Our stages, or why we refuse them."""
    if isinstance(deploy, UsageError):
        return deploy
    try:
        return resolve(deploy, platform, None, (0, *stage_ids))
    except UsageError as error:
        return error


def _theirs(
    name: str, platform: str, told: Mapping[str, Any], ours: tuple[ResolvedStage, ...] | UsageError
) -> ProfileDefault:
    sources = {} if isinstance(ours, UsageError) else {stage.stage_id: stage.sources for stage in ours}
    stages = tuple(
        StageDefault(
            stage["stage_id"],
            stage["settings"].get(SWITCH),
            # Of a pipeline that is assumed, the stages' kind is too.
            None if told["topology"] == "assumed" else stage["execution"],
            sources.get(stage["stage_id"], {}).get(SWITCH, SERVER_DEFAULT),
        )
        for stage in told.get("stages", ())
    )
    return ProfileDefault(name, platform, stages, told.get("refused"))


def _ours(name: str, platform: str, ours: tuple[ResolvedStage, ...] | UsageError) -> ProfileDefault:
    if isinstance(ours, UsageError):
        return ProfileDefault(name, platform, (), str(ours))
    stages = tuple(
        StageDefault(stage.stage_id, stage.settings.get(SWITCH), None, stage.sources.get(SWITCH, SERVER_DEFAULT))
        for stage in ours
    )
    return ProfileDefault(name, platform, stages)
