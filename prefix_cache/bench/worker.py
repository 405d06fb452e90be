"""The measured process: executes commands, one JSON object a line, and answers each with one.

Standard output belongs to the answers; whatever a library prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import IO, Any

import torch

from .cases import Case, Sizes
from .driver import Driver
from .subject import SubjectFactory


def factory(side: str) -> tuple[SubjectFactory, str]:
    """What to measure, and its name and version."""
    if side == "peer":
        from importlib.metadata import version

        from .peer import Peer

        return Peer, f"vllm-omni {version('vllm-omni')}"
    from .ours import Ours

    return Ours, "prefix_cache"


def execute(driver: Driver, command: dict[str, Any]) -> Any:
    match command["do"]:
        case "start":
            return driver.start(Case.from_json(command["case"]))
        case "batch":
            return driver.batch().to_json()
        case "verify":
            return driver.verify()
        case "first":
            return driver.first_saves(Case.from_json(command["case"])).to_json()
        case "resident":
            return driver.resident().to_json()
        case other:
            raise ValueError(f"no command {other!r}")


def serve(commands: IO[str], answers: IO[str]) -> None:
    """Serves until `commands` ends: the parent's death ends this process too."""
    setup = json.loads(commands.readline())
    make, name = factory(setup["side"])
    torch.set_num_threads(1)
    driver = Driver(make, Sizes(**setup["sizes"]), setup["mode"], setup["forward_seconds"])
    _answer(answers, {"ok": {"name": name, "torch": torch.__version__, "python": sys.version.split()[0]}})
    for line in commands:
        try:
            answer = {"ok": execute(driver, json.loads(line))}
        except Exception:
            answer = {"error": traceback.format_exc(limit=-6)}
        _answer(answers, answer)
    driver.shutdown()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


def _answer(answers: IO[str], value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
