"""Packages that only scoring needs, imported when a score is wanted."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

from harness.errors import MissingDependency

INSTALL = {
    "jiwer": "pip install 'jiwer>=4'",
    "transformers": "pip install transformers",
    "whisper": (
        "pip install 'omni-prefix-bench[accuracy]' && pip install --no-deps openai-whisper==20250625 "
        "(its own requirements bring a gigabyte of GPU packages along)"
    ),
}


def load_package(name: str, wanted_by: str) -> ModuleType:
    """Import `name`, a module of a package that is an extra.

    Parameters:
        name: dotted name; its first part is one of those we know how to install.
        wanted_by: what cannot be done without it, for the message.

    Raises:
        MissingDependency: it does not import; says how to install it.
    """
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency(f"{wanted_by}: {error}; install it: {INSTALL[package]}") from None


def brief(error: Exception) -> str:
    """Kind and first sentence of another package's error, whose whole text can be pages long."""
    sentence = re.split(r"[.:;]?\s*\n|\.\s", str(error).strip(), maxsplit=1)[0]
    return f"{type(error).__name__}: {sentence}"
