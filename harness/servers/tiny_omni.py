"""The kind `tiny-omni`: the reference server of this project, one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil
import yaml

from harness.errors import HarnessFailure, UsageError
from harness.provenance import distribution_versions
from harness.scenario import Scenario
from harness.servers.arm import ResolvedArm, check_references
from harness.servers.interpreter import ask, checkout, interpreter_path
from harness.servers.kinds import SettleRule, block_size_setting
from harness.servers.launch import Launch, expanded
from harness.servers.process import ServerProcess
from harness.telemetry.counters import cache_config
from harness.telemetry.scrape import Scrape
from harness.tiny_omni.config import EngineConfig
from harness.tiny_omni.options import check_options

_DISTRIBUTIONS = ("omni-prefix-bench", "torch", "numpy", "tokenizers", "aiohttp")
_PACKAGE = "harness/tiny_omni"


class TinyOmni:
    """Starts `python -m harness.tiny_omni`; stage 0 is the server process itself."""

    proves_cache = False

    def settle_rule(self, scrape: Scrape) -> SettleRule:  # noqa: ARG002  # every server of this kind has the same
        return SettleRule()

    def check(self, arm: ResolvedArm, scenario: Scenario) -> None:
        """See `ServerKind.check`. Arguments are checked where the server runs the code and interpreter of this harness.

        Another interpreter is asked for its versions, which shows that it is one.
        """
        check_references(arm)
        if not scenario.model or scenario.model.startswith("-"):
            raise UsageError(f"model: found {scenario.model!r}; allowed: a name that does not start with a dash")
        checkout(arm, _PACKAGE)
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

    def check_installed(self, arm: ResolvedArm, scenario: Scenario) -> None:
        """Nothing is needed beside what runs this."""

    def command(self, arm: ResolvedArm, scenario: Scenario, port: int, trial_dir: Path) -> Launch:
        trial_dir = trial_dir.absolute()
        argv = [interpreter_path(arm), "-m", "harness.tiny_omni", "--host", "127.0.0.1", "--port", str(port)]
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
            cwd=checkout(arm, _PACKAGE) or trial_dir,
            log_path=trial_dir / "server.log",
            base_url=f"http://127.0.0.1:{port}",
            port=port,
            model_name=scenario.model,
        )

    def start(self, launch: Launch, stop_timeout: float) -> ServerProcess:
        return ServerProcess.start(launch, stop_timeout)

    def expects_caching(self, arm: ResolvedArm) -> bool | None:
        value = arm.setting("enable-prefix-caching")
        return EngineConfig().enable_prefix_caching if value is None else bool(value)

    def live_config(self, scrape: Scrape, log: Path) -> dict[str, str]:  # noqa: ARG002  # the page of metrics says it all
        return cache_config(scrape)

    def verify_stages(self, arm: ResolvedArm, log: Path) -> None:
        """The other stage has no cache."""

    def unchecked(self, arm: ResolvedArm) -> tuple[str, ...]:  # noqa: ARG002  # nothing is left unchecked, of any arm
        return ()

    def stage0_pid(self, root_pid: int) -> int:
        try:
            children = psutil.Process(root_pid).children()
        except psutil.NoSuchProcess:
            children = []
        if not children:
            raise HarnessFailure(f"the guard (pid {root_pid}) has no server process")
        # Orphans that the guard adopts come later than the server it started.
        return min(children, key=lambda child: (child.create_time(), child.pid)).pid

    def block_size(self, arm: ResolvedArm) -> int:
        return block_size_setting(arm, arm.setting("block-size")) or EngineConfig().block_size

    def max_model_len(self, arm: ResolvedArm) -> int | None:
        value = arm.setting("max-model-len")
        return value if isinstance(value, int) else EngineConfig().max_model_len

    def versions(self, arm: ResolvedArm | None = None) -> dict[str, str]:
        if arm is None or arm.python is None:
            return distribution_versions(_DISTRIBUTIONS)
        return dict(ask(arm, _DISTRIBUTIONS).versions)


def runs_tiny_omni(words: Sequence[str]) -> bool:
    """Whether a command line runs the reference server in its own process.

    That the words stand somewhere in it is not enough: `ssh -L 8000:127.0.0.1:8000 host bench serve tiny-omni` forwards
    to one elsewhere.
    """
    if not words or not Path(words[0]).name.lower().startswith("python"):
        return False
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        del rest[: 2 if rest[0] in ("-W", "-X") else 1]
    match rest:
        case ["-m", "harness.tiny_omni", *_] | ["-m", "harness.cli", "serve", "tiny-omni", *_]:
            return True
        case [script, "serve", "tiny-omni", *_]:
            return Path(script).name == "bench"
        case _:
            return False


def _needs_audio(scenario: Scenario) -> bool:
    return any("audio" in bench.modalities for bench in scenario.loads)


def _flags(arm: ResolvedArm, scenario: Scenario) -> list[str]:
    # Speech needs a program that is not everywhere.
    quiet = not _needs_audio(scenario) and arm.args.keys().isdisjoint(("audio", "no-audio"))
    return [
        *(["--no-audio"] if quiet else []),
        *arm.words(),
    ]
