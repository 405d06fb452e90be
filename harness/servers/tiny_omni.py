"""The kind `tiny-omni`: the reference server of this project, one process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import yaml

from harness.errors import HarnessFailure, UsageError
from harness.provenance import distribution_versions
from harness.scenario import Scalar, Scenario
from harness.servers.arm import ResolvedArm, check_references
from harness.servers.kinds import SettleRule
from harness.servers.launch import Launch, expanded
from harness.tiny_omni.config import EngineConfig
from harness.tiny_omni.options import check_options

_DISTRIBUTIONS = ("omni-prefix-bench", "torch", "numpy", "tokenizers", "aiohttp")
_ASK_VERSIONS = """
import importlib.metadata as m, json, sys
found = {d.metadata["Name"]: d.version for d in m.distributions() if d.metadata["Name"] in sys.argv[1:]}
print(json.dumps(found))
"""


class TinyOmni:
    """Starts `python -m harness.tiny_omni`; stage 0 is the server process itself."""

    @property
    def settle_rule(self) -> SettleRule:
        return SettleRule()

    def check(self, arm: ResolvedArm, scenario: Scenario) -> None:
        """See `ServerKind.check`. Arguments are checked where the server runs the code and interpreter of this harness.

        Another interpreter is asked for its versions, which shows that it is one.
        """
        check_references(arm)
        if not scenario.model or scenario.model.startswith("-"):
            raise UsageError(f"model: found {scenario.model!r}; allowed: a name that does not start with a dash")
        if arm.source is not None:
            _source(arm, arm.source)
        if _needs_audio(scenario) and arm.args.get("audio") is False:
            raise UsageError(f"arms.{arm.name}: found no audio; allowed: audio, which a bench asks for")
        if arm.python is not None:
            self.versions(arm)
        if arm.python is None and arm.source is None:
            words = [expanded(word, f"arms.{arm.name}.args") for word in _flags(arm, scenario)]
            try:
                check_options(words, arm.deploy, "deploy")
            except UsageError as error:
                raise UsageError(f"arms.{arm.name}: {error}") from None

    def command(self, arm: ResolvedArm, scenario: Scenario, port: int, trial_dir: Path) -> Launch:
        trial_dir = trial_dir.absolute()
        argv = [_interpreter(arm), "-m", "harness.tiny_omni", "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--served-model-name", scenario.model, *_flags(arm, scenario)]
        if arm.deploy is not None:
            overlay = trial_dir / "deploy.yaml"
            overlay.write_text(yaml.safe_dump(dict(arm.deploy), sort_keys=False), encoding="utf-8")
            argv += ["--deploy-config", str(overlay)]
        return Launch(
            argv=tuple(argv),
            # Without it the last lines of a killed server are lost with its buffer.
            env={"PYTHONUNBUFFERED": "1", **arm.env},
            # `python -m` looks in the working directory first, so a checkout's own code runs.
            cwd=trial_dir if arm.source is None else _source(arm, arm.source),
            log_path=trial_dir / "server.log",
            base_url=f"http://127.0.0.1:{port}",
            port=port,
            model_name=scenario.model,
        )

    def expects_caching(self, arm: ResolvedArm) -> bool | None:
        value = arm.setting("enable-prefix-caching")
        return EngineConfig().enable_prefix_caching if value is None else bool(value)

    def stage0_pid(self, guard_pid: int) -> int:
        try:
            children = psutil.Process(guard_pid).children()
        except psutil.NoSuchProcess:
            children = []
        if not children:
            raise HarnessFailure(f"the guard (pid {guard_pid}) has no server process")
        # Orphans that the guard adopts come later than the server it started.
        return min(children, key=lambda child: (child.create_time(), child.pid)).pid

    def block_size(self, arm: ResolvedArm) -> int:
        value = arm.setting("block-size")
        if value is None:
            return EngineConfig().block_size
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"arms.{arm.name}: block size: found {value!r}; allowed: a whole number above 0")
        return value

    def versions(self, arm: ResolvedArm | None = None) -> dict[str, str]:
        if arm is None or arm.python is None:
            return distribution_versions(_DISTRIBUTIONS)
        # -P: what lies in the working directory is not what that interpreter has installed.
        where, command = f"arms.{arm.name}.python", [_interpreter(arm), "-P", "-c", _ASK_VERSIONS, *_DISTRIBUTIONS]
        try:
            asked = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=True)
            versions: dict[str, str] = json.loads(asked.stdout)
        except subprocess.CalledProcessError as error:
            told = error.stderr.strip()[-300:]
            raise UsageError(f"{where}: found {arm.python}, which does not run: {told}; allowed: Python") from None
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{where}: found {arm.python}, which is no Python: {error}; allowed: Python") from None
        return versions


def _interpreter(arm: ResolvedArm) -> str:
    if arm.python is None:
        return sys.executable
    try:
        path = shutil.which(Path(arm.python).expanduser())
    except (OSError, RuntimeError, ValueError):
        path = None
    if path is None:
        raise UsageError(f"arms.{arm.name}.python: found {arm.python}, which is no program; allowed: an interpreter")
    # Not resolved further: a virtual environment's interpreter is known by the link it was called through.
    return str(Path(path).absolute())


def _source(arm: ResolvedArm, source: str) -> Path:
    try:
        path = Path(source).expanduser().absolute()
        holds = (path / "harness" / "tiny_omni").is_dir()
    except (OSError, RuntimeError, ValueError):
        holds = False
    if not holds:
        raise UsageError(
            f"arms.{arm.name}.source: found {source}, which holds no harness/tiny_omni; allowed: a checkout of it"
        )
    return path


def _needs_audio(scenario: Scenario) -> bool:
    return any("audio" in bench.modalities for bench in scenario.benches)


def _flags(arm: ResolvedArm, scenario: Scenario) -> list[str]:
    # Speech needs a program that is not everywhere.
    quiet = not _needs_audio(scenario) and arm.args.keys().isdisjoint(("audio", "no-audio"))
    return [
        *(["--no-audio"] if quiet else []),
        *(word for key, value in arm.args.items() for word in _flag(key, value)),
    ]


def _flag(key: str, value: Scalar) -> list[str]:
    if isinstance(value, bool):
        return [f"--{key}" if value else f"--no-{key}"]
    return [f"--{key}", str(value)]
