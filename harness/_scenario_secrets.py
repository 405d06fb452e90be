"""Secrets: how they are recognised, kept out of records, and refused in a scenario file.

A secret is the value behind a name that says so (`HF_TOKEN`, `--api-key`), the user information of an address
(`https://user:password@host`), or a `Bearer ...`. A scenario names the variable of the environment instead, as
`${NAME}`; it is looked up when a server is started, and recorded nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness._scenario_yaml import Document, Loc
from harness.errors import ScenarioError

HIDDEN = "..."
"""What a record holds in a secret's place."""

_NAME = re.compile(
    r"TOKEN(?!I[SZ])|KEY|SECRET|(?<!BY)PASS(?!THR|IV)|AUTH(?!OR(?!I))|CREDENTIAL|COOKIE|BEARER", re.IGNORECASE
)
# Tighter than the rule for variables: `--tokenizer` and `--max-num-batched-tokens` are no secrets.
_ARG_NAME = re.compile(
    r"(?:^|[-_])(?:(?:api)?keys?|token|secrets?|pass(?:word|wd|phrase|code)?s?|auth|authorization|credentials?"
    r"|cookies?|bearer)$",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_BEARER = re.compile(r"(?<=\bbearer)(\s+)[^\s\"']+", re.IGNORECASE)
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable of the environment, `${NAME}`."""


def is_secret(name: str) -> bool:
    """Whether an environment variable's name says that its value must not be recorded."""
    return _NAME.search(name) is not None


def is_secret_arg(name: str) -> bool:
    """Whether a command-line argument's name (`api-key`) says that its value must not be recorded."""
    return _ARG_NAME.search(name) is not None


def redacted(value: Any) -> Any:
    """Data without what its text shows of secrets; everything else unchanged."""
    if isinstance(value, str):
        return _BEARER.sub(rf"\1{HIDDEN}", _USERINFO.sub(HIDDEN, value))
    if isinstance(value, Mapping):
        return {key: redacted(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(below) for below in value]
    return value


def refuse_secrets(document: Document) -> None:
    """Make sure that a scenario file holds no secret.

    Raises:
        ScenarioError: it does; the message does not repeat it.
    """
    for loc, reference in _secrets(document.data):
        allowed = (
            "${NAME}, a variable of the environment in which bench is run"
            if reference
            else "text without one: it would be recorded"
        )
        raise _error(document, loc, allowed)


def _error(document: Document, loc: Loc, allowed: str) -> ScenarioError:
    return document.error(loc, "a secret written out", allowed)


def _secrets(data: Mapping[str, Any]) -> Iterator[tuple[Loc, bool]]:
    """Places of secrets, and whether a reference may stand there."""
    places: list[tuple[Loc, object]] = [(("server",), data.get("server"))]
    places += ((("arms", arm), settings) for arm, settings in _mapping(data.get("arms")).items())
    for place, given in places:
        settings = _mapping(given)
        for key, value in _mapping(settings.get("env")).items():
            if (is_secret(key) and _literal(value)) or _shows_secret(value):
                yield (*place, "env", key), True
        for key, value in _mapping(settings.get("args")).items():
            if (is_secret_arg(key) and _literal(value)) or _shows_secret(value):
                yield (*place, "args", key), True
        if _shows_secret(settings.get("deploy")):
            yield (*place, "deploy"), False
    for section in ("workloads", "accuracy"):
        blocks = data.get(section)
        for position, block in enumerate(blocks if isinstance(blocks, list) else ()):
            for key in ("extra_body", "media"):
                if _shows_secret(_mapping(block).get(key)):
                    yield (section, position, key), False


def _literal(value: object) -> bool:
    """Whether anything but references stands behind a secret's name; a flag is no secret."""
    return not isinstance(value, bool | None) and REFERENCE.sub("", str(value)) != ""


def _shows_secret(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_shows_secret, value.values()))
    if isinstance(value, list):
        return any(map(_shows_secret, value))
    if not isinstance(value, str):
        return False
    rest = REFERENCE.sub("", value)
    if _BEARER.search(rest):
        return True
    for user, colon, password in (found.group().partition(":") for found in _USERINFO.finditer(rest)):
        if password or (user and not colon):
            return True
    return False


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
