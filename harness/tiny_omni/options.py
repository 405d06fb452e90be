"""The reference server's settings: command line over deploy file over defaults, resolved before anything is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

import yaml

from harness.errors import UsageError
from harness.tiny_omni.config import EngineConfig, ModelConfig
from harness.tiny_omni.faults import Faults, fault_forms, parse_faults

STAGE = 0
_MODEL_SETTINGS = ("hidden_size", "num_layers", "seed")
_ENGINE_SETTINGS = (
    "block_size",
    "num_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "num_threads",
    "min_step_ms",
)
_SETTINGS: dict[str, type] = {
    "enable_prefix_caching": bool,
    **dict.fromkeys((*_ENGINE_SETTINGS, *_MODEL_SETTINGS), int),
}
"""What both the command line and a deploy file's stage 0 may set, with the type."""


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that defines one server."""

    host: str
    port: int
    served_model_name: str
    audio: bool
    engine: EngineConfig
    faults: Faults

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """The options of one command line.

    Raises:
        SystemExit: the command line itself is wrong (code 2), or asked for help (code 0).
        UsageError: a value, a fault or the deploy file is wrong.
    """
    given = _parser(argparse.ArgumentParser).parse_args(argv)
    return _options(given, _read_deploy(given.deploy_config) if given.deploy_config else {})


def check_options(argv: Sequence[str], deploy: object, where: str) -> Options:
    """What `parse_options` would make of a command line and a deploy file, before either is used.

    Parameters:
        deploy: content of the deploy file, None for no file.
        where: what the file is called in a message.

    Raises:
        UsageError: the server would refuse them.
    """
    given = _parser(_RaisingParser).parse_args(argv)
    return _options(given, {} if deploy is None else _deploy_settings(deploy, where))


class _RaisingParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"found {message}; allowed: what `bench serve tiny-omni --help` lists")


def _options(given: argparse.Namespace, settings: dict[str, Any]) -> Options:
    settings |= {name: value for name in _SETTINGS if (value := getattr(given, name)) is not None}
    model = {name: settings.pop(name) for name in _MODEL_SETTINGS if name in settings}
    return Options(
        host=given.host,
        port=given.port,
        served_model_name=given.served_model_name,
        audio=given.audio,
        engine=EngineConfig(model=ModelConfig(**model), **settings),
        faults=parse_faults(given.fault),
    )


def _parser(form: type[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    defaults = {field.name: field.default for kind in (ModelConfig, EngineConfig) for field in fields(kind)}
    parser = form(
        prog="python -m harness.tiny_omni",
        description="The reference server: a small, real omni engine.",
        allow_abbrev=False,
        add_help=form is argparse.ArgumentParser,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=port, default=8000, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--served-model-name", default="tiny-omni", metavar="NAME", help="default: %(default)s")
    parser.add_argument(
        "--audio", action=argparse.BooleanOptionalAction, default=True, help="speech, which needs the program flite"
    )
    parser.add_argument("--deploy-config", type=Path, metavar="FILE", help="YAML: stages: [{stage_id: 0, ...}]")
    faults = f"{', '.join(fault_forms())}; slow-step=0.05 makes every step 5 percent longer"
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME[=VALUE]", help=f"for tests, repeatable: {faults}"
    )
    for name, kind in _SETTINGS.items():
        flag, text = "--" + name.replace("_", "-"), f"default: {defaults[name]}"
        if kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            parser.add_argument(flag, type=int, metavar="N", help=text)
    return parser


def port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"found {number}; allowed: 0 to 65535")
    return number


def _read_deploy(path: Path) -> dict[str, Any]:
    """Stage 0's settings of a deploy file in vLLM-Omni's form."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not YAML: {error}") from None
    return _deploy_settings(document, str(path))


def _deploy_settings(document: object, path: str) -> dict[str, Any]:
    if not isinstance(document, Mapping) or set(document) != {"stages"}:
        found = ", ".join(map(str, document)) if isinstance(document, Mapping) else repr(document)
        raise UsageError(f"{path}: found {found or 'nothing'}; allowed: the one key stages")
    stages = document["stages"]
    if not isinstance(stages, list) or not all(isinstance(stage, Mapping) for stage in stages):
        raise UsageError(f"{path}: stages: found {stages!r}; allowed: a list of mappings")
    if [stage.get("stage_id") for stage in stages] not in ([], [STAGE]):
        found = ", ".join(repr(stage.get("stage_id")) for stage in stages)
        raise UsageError(f"{path}: stages: found stage_id {found}; allowed: one stage, stage_id: {STAGE}")
    settings = {key: value for stage in stages for key, value in stage.items() if key != "stage_id"}
    for key, value in settings.items():
        if key not in _SETTINGS:
            raise UsageError(f"{path}: stages[0]: found {key!r}; allowed: stage_id, {', '.join(_SETTINGS)}")
        # bool is an int to Python, and `block_size: true` is a slip.
        if type(value) is not _SETTINGS[key]:
            allowed = "true or false" if _SETTINGS[key] is bool else "a whole number"
            raise UsageError(f"{path}: stages[0].{key}: found {value!r}; allowed: {allowed}")
    return settings
