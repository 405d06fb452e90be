"""The resolved arm: a scenario's server settings with one arm's changes laid over them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from harness._scenario_secrets import HIDDEN, is_secret, is_secret_arg, redacted
from harness.errors import UsageError
from harness.scenario import Scalar, Scenario
from harness.servers.launch import expanded
from harness.stage0 import stage0_setting

_ADDRESS_ARGS = {
    "host": "servers listen on 127.0.0.1",
    "port": "the harness picks a free port for each trial",
    "served-model-name": "it is the scenario's `model`",
    "deploy-config": "write the overlay under `deploy`",
}
_ARG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_PREFIX_CACHES = {
    "tiny-omni": ("bundled",),
    "vllm": ("bundled",),
    "vllm-omni": ("bundled", "builtin"),
    "external": (),
}
"""Cache implementations that an arm of each server kind can choose from."""


@dataclass(frozen=True, slots=True)
class ResolvedArm:
    """One server configuration, complete: what `Launch` is made from.

    Parameters:
        name: the arm's name in the scenario.
        kind: the server kind.
        args: command-line arguments by name, words joined by dashes.
        env: environment variables to add or override.
        python: the interpreter to run, None for the harness' own.
        source: the checkout to run from, None for the installed code.
        deploy: the deploy overlay, None for none.
        prefix_cache: the cache implementation, None for the server's default.
        url: where a server that runs already answers, without a trailing slash; None where the harness starts it.
    """

    name: str
    kind: str
    args: Mapping[str, Scalar]
    env: Mapping[str, str]
    python: str | None
    source: str | None
    deploy: Mapping[str, Any] | None
    prefix_cache: str | None
    url: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The configuration for a record, ready for JSON; `...` stands for every secret."""
        return {
            "name": self.name,
            "kind": self.kind,
            "args": {
                key: HIDDEN if is_secret_arg(key) and not isinstance(value, bool) else redacted(value)
                for key, value in self.args.items()
            },
            "env": {key: HIDDEN if is_secret(key) else redacted(value) for key, value in self.env.items()},
            "python": self.python,
            "source": self.source,
            "deploy": None if self.deploy is None else redacted(self.deploy),
            "prefix_cache": self.prefix_cache,
            **({} if self.url is None else {"url": redacted(self.url)}),
        }

    @property
    def sha256(self) -> str:
        """Digest of `as_dict()`, so of the form without secrets, whatever the order in which keys were written."""
        text = json.dumps(self.as_dict(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def words(self) -> list[str]:
        """`args` as words of a command line: `--key value`, true as the bare flag, false as `--no-key`."""
        return [word for key, value in self.args.items() for word in _flag(key, value)]

    def setting(self, name: str) -> Scalar | None:
        """See `stage0_setting`."""
        value: Scalar | None = stage0_setting(self.args, self.deploy, name)
        return value


def resolve_arm(scenario: Scenario, arm: str) -> ResolvedArm:
    """Lay one arm over the scenario's server settings.

    `args` and `env` merge by key, `python` and `source` replace, `deploy` merges its `stages` by `stage_id` and key
    and replaces other top-level keys.

    Raises:
        UsageError: no such arm, an argument that belongs to the harness, a name that is none, a stage without
            `stage_id`, or a cache implementation that the server kind does not have.
    """
    server = scenario.server
    change = scenario.arms.get(arm)
    if change is None:
        raise UsageError(f"no arm {arm!r} in scenario {scenario.name}; there are: {', '.join(scenario.arms)}")
    allowed = _PREFIX_CACHES[server.kind]
    if change.prefix_cache is not None and change.prefix_cache not in allowed:
        raise UsageError(
            f"arms.{arm}.prefix_cache: found {change.prefix_cache!r}; "
            f"allowed with server kind {server.kind}: {', '.join(allowed) or 'none'}"
        )
    if server.kind != "external" and (server.url or change.url) is not None:
        where = "server" if change.url is None else f"arms.{arm}"
        raise UsageError(
            f"{where}.url: found an address with server kind {server.kind}; "
            "allowed: none (the harness starts the server), or kind external"
        )
    return ResolvedArm(
        name=arm,
        kind=server.kind,
        args=_arguments(server.args, "server.args") | _arguments(change.args, f"arms.{arm}.args"),
        env={**_variables(server.env, "server.env"), **_variables(change.env, f"arms.{arm}.env")},
        python=change.python if change.python is not None else server.python,
        source=change.source if change.source is not None else server.source,
        deploy=_overlay(server.deploy, change.deploy, arm),
        prefix_cache=change.prefix_cache,
        url=_address(server.url, "server.url") if change.url is None else _address(change.url, f"arms.{arm}.url"),
    )


def _arguments(args: Mapping[str, Scalar], where: str) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for key, value in args.items():
        name = key.lstrip("-").replace("_", "-")
        if not _ARG_NAME.fullmatch(name):
            raise UsageError(f"{where}: found the name {key!r}; allowed: letters, digits, dots and dashes")
        if name in _ADDRESS_ARGS:
            raise UsageError(f"{where}: found {key}; allowed: any other argument ({_ADDRESS_ARGS[name]})")
        if name in found:
            raise UsageError(f"{where}: found {key} twice, once with dashes and once with underscores; allowed: one")
        found[name] = value
    return found


def _flag(key: str, value: Scalar) -> list[str]:
    if isinstance(value, bool):
        return [f"--{key}" if value else f"--no-{key}"]
    return [f"--{key}", str(value)]


def _address(url: str | None, where: str) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        whole = False
    if not whole or parts.query or parts.fragment:
        raise UsageError(f"{where}: found {redacted(url)!r}; allowed: an address such as http://127.0.0.1:8000")
    return url.rstrip("/")


def _variables(env: Mapping[str, str], where: str) -> Mapping[str, str]:
    for key in env:
        if not key or "=" in key or "\0" in key:
            raise UsageError(f"{where}: found the name {key!r}; allowed: a name without = in it")
    return env


def check_references(arm: ResolvedArm) -> None:
    """Make sure that every `${NAME}` of the arm can be looked up here.

    Raises:
        UsageError: one cannot.
    """
    for part, settings in (("args", arm.args), ("env", arm.env)):
        for key, value in settings.items():
            expanded(str(value), f"arms.{arm.name}.{part}.{key}")


def _overlay(base: Mapping[str, Any] | None, change: Mapping[str, Any] | None, arm: str) -> Mapping[str, Any] | None:
    stages = _stages(base, "server.deploy")
    for stage_id, settings in _stages(change, f"arms.{arm}.deploy").items():
        stages[stage_id] = {**stages.get(stage_id, {}), **settings}
    if base is None and change is None:
        return None
    merged = {**(base or {}), **(change or {})}
    if stages:
        merged["stages"] = list(stages.values())
    return merged


def _stages(deploy: Mapping[str, Any] | None, where: str) -> dict[int, dict[str, Any]]:
    stages = [] if deploy is None else deploy.get("stages", [])
    if not isinstance(stages, list):
        raise UsageError(f"{where}.stages: found {type(stages).__name__}; allowed: a list of stages")
    found: dict[int, dict[str, Any]] = {}
    for index, stage in enumerate(stages):
        stage_id = stage.get("stage_id") if isinstance(stage, dict) else None
        if not isinstance(stage_id, int) or isinstance(stage_id, bool):
            raise UsageError(f"{where}.stages[{index}]: found {stage!r}; allowed: a mapping with an integer stage_id")
        if stage_id in found:
            raise UsageError(f"{where}.stages[{index}]: found stage_id {stage_id} twice; allowed: once")
        found[stage_id] = dict(stage)
    return found
