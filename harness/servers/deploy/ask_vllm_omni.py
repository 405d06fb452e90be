"""What an installed vLLM-Omni itself makes of its profiles. A program: its own interpreter runs it, by path.

    python -P ask_vllm_omni.py REQUEST ANSWER

REQUEST is a JSON file `{"folder": ..., "platforms": [...], "arguments": {...}}`, arguments of the command line by name
being optional and those of one stage called `stage_0_...`; ANSWER is written as
`{"version": ..., "profiles": {NAME: {PLATFORM: {"topology": ..., "stages": [...]} | {"refused": ...}}}}`.

A profile does not say which pipeline it is for unless it names one. It is then that whose default profile is in the
chain of its bases (`default`), else the one whose name its own begins with (`name`), else language-model stages in a
row (`assumed`).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class Resolver:
    """vLLM-Omni's own modules, and the pipelines it knows."""

    def __init__(self) -> None:
        # By name: the interpreter that checks this file's types has no vLLM-Omni.
        self.stage_config: Any = importlib.import_module("vllm_omni.config.stage_config")
        self.omni_config: Any = importlib.import_module("vllm_omni.config.omni_config")
        self.stage_init: Any = importlib.import_module("vllm_omni.engine.stage_init_utils")
        self.platforms: Any = importlib.import_module("vllm_omni.platforms")
        registry: Any = importlib.import_module("vllm_omni.config.pipeline_registry")
        self.pipelines: dict[str, Any] = {}
        self.by_default: dict[str, Any] = {}
        for name, entry in registry.OMNI_PIPELINES.items():
            for pipeline in self._variants(entry):
                self.pipelines.setdefault(name, pipeline)
                self.by_default.setdefault(pipeline.default_deploy_config_name, pipeline)

    def profile(self, path: Path, platforms: list[str], arguments: dict[str, Any]) -> dict[str, Any]:
        deploy = self.stage_config.load_deploy_config(path)
        topology, pipeline = self._pipeline(path, deploy)
        return {
            platform: {"topology": topology, **self._resolved(pipeline, deploy, platform, arguments)}
            for platform in platforms
        }

    def _resolved(self, pipeline: Any, deploy: Any, platform: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.platforms.current_omni_platform.device_name = platform
        try:
            # It works on a copy of the profile.
            config = self.omni_config.VllmOmniConfig.from_pipeline_config(
                pipeline, user_deploy_config=deploy, cli_overrides=arguments
            )
        except (NotImplementedError, TypeError, ValueError) as error:
            return {"refused": str(error)}
        return {"stages": [self._stage(stage) for stage in config.stage_configs]}

    def _stage(self, stage: Any) -> dict[str, Any]:
        arguments = dict(self.stage_init._project_omni_stage_engine_args(stage))
        arguments["model_runner"] = "v2" if arguments.pop("use_v2_model_runner", False) else "v1"
        arguments["devices"] = stage.runtime_config.devices
        arguments["num_replicas"] = stage.runtime_config.num_replicas
        arguments["default_sampling_params"] = stage.model_config.default_sampling_params
        return {
            "stage_id": stage.stage_id,
            "execution": stage.stage_pipeline_config.execution_type.value,
            "settings": {name: value for name, value in arguments.items() if value is not None and _is_json(value)},
        }

    def _pipeline(self, path: Path, deploy: Any) -> tuple[str, Any]:
        if deploy.pipeline is not None:
            return "named", self.pipelines[deploy.pipeline]
        for name in _chain(path, self.stage_config.load_yaml_config):
            if name in self.by_default:
                return "default", self.by_default[name]
        names = {Path(name).stem: found for name, found in self.by_default.items() if name}
        fitting = [name for name in {**self.pipelines, **names} if path.stem.startswith(name)]
        if fitting:
            return "name", {**self.pipelines, **names}[max(fitting, key=len)]
        return "assumed", self._in_a_row([stage.stage_id for stage in deploy.stages] or [0])

    def _in_a_row(self, stage_ids: list[int]) -> Any:
        stages = tuple(
            self.stage_config.StagePipelineConfig(
                stage_id=stage_id,
                model_stage=f"stage{stage_id}",
                input_sources=(stage_ids[place - 1],) if place else (),
                final_output=stage_id == stage_ids[-1],
                async_chunk_process_next_stage_input_func="assumed",
            )
            for place, stage_id in enumerate(stage_ids)
        )
        return self.stage_config.PipelineConfig(model_type="assumed", stages=stages)

    def _variants(self, entry: Any) -> Iterator[Any]:
        kind = self.stage_config.PipelineConfig
        if isinstance(entry, kind):
            yield entry
        else:
            # A function of the checkpoint's configuration: its module holds what it chooses from, the usual one first.
            yield from (found for found in vars(sys.modules[entry.__module__]).values() if isinstance(found, kind))


def answer(folder: Path, platforms: list[str], arguments: dict[str, Any]) -> dict[str, Any]:
    """Every profile of a folder on every platform."""
    resolver = Resolver()
    return {
        "version": importlib.metadata.version("vllm-omni"),
        "profiles": {path.name: resolver.profile(path, platforms, arguments) for path in sorted(folder.glob("*.yaml"))},
    }


def _chain(path: Path, load: Callable[[Path], Any]) -> Iterator[str]:
    """File names from a profile down its bases."""
    while True:
        yield path.name
        base = load(path).get("base_config")
        if base is None:
            return
        path = path.parent / base


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def main(request: Path, written: Path) -> None:
    asked = json.loads(request.read_text(encoding="utf-8"))
    told = answer(Path(asked["folder"]), asked["platforms"], asked.get("arguments", {}))
    written.write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
