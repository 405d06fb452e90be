"""The consumer that the environment names."""

from __future__ import annotations

import json

import pytest

from prefix_cache import ConfigError
from prefix_cache.integrations.vllm.consumer import VARIABLE, load_consumer


@pytest.mark.parametrize("environ", [{}, {VARIABLE: ""}])
def test_none_is_named(environ: dict[str, str]) -> None:
    """Not set, or set to nothing: there is no consumer."""
    assert load_consumer(environ) is None


def test_a_function_is_found_by_its_module() -> None:
    """`module:function`, imported where the worker runs."""
    assert load_consumer({VARIABLE: "json:dumps"}) is json.dumps


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("json", "found 'json'; allowed: module:function"),
        (":dumps", "found ':dumps'; allowed: module:function"),
        ("json:", "found 'json:'; allowed: module:function"),
        ("no_such_module:f", "cannot be imported: No module named 'no_such_module'"),
        ("json:no_such_function", "cannot be imported: module 'json' has no attribute 'no_such_function'"),
        ("json:__name__", "found 'json:__name__', a str; allowed: a function"),
    ],
)
def test_what_cannot_be_called_is_refused(found: str, message: str) -> None:
    """With what was found and what is allowed, before the engine is built."""
    with pytest.raises(ConfigError, match=message):
        load_consumer({VARIABLE: found})
