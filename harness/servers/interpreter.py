"""The interpreter an arm's server runs on, and what is installed there: asked of it, without importing anything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import UsageError
from harness.servers.arm import ResolvedArm
from harness.servers.launch import expanded

_ANSWER_S = 60.0
_ASK = """
import importlib.metadata as m, importlib.util as u, json, sys
distributions, packages, groups = map(json.loads, sys.argv[1:])
installed = reversed(list(m.distributions()))  # of two by one name the interpreter takes the first it comes to
installed = {d.metadata["Name"]: d for d in installed if d.metadata["Name"] in distributions}
specs = {name: u.find_spec(name) for name in packages}
print(json.dumps({
    "python": ".".join(map(str, sys.version_info[:3])),
    "versions": {name: d.version for name, d in installed.items()},
    "packages": {name: list(s.submodule_search_locations or [s.origin])[0] for name, s in specs.items() if s},
    "plugins": {group: [e.name for e in m.entry_points(group=group)] for group in groups},
    "origins": {name: url for name, d in installed.items() if (url := d.read_text("direct_url.json"))},
}))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """What an interpreter has.

    Parameters:
        python: its version.
        versions: of those distributions asked for that are installed, by name.
        packages: folder of those packages asked for that it could import, by name.
        plugins: names of the installed entry points of each group asked for.
        origins: where those of the distributions came from that no index served, by name: their `direct_url.json`.
    """

    python: str
    versions: Mapping[str, str]
    packages: Mapping[str, str]
    plugins: Mapping[str, Sequence[str]]
    origins: Mapping[str, str] = field(default_factory=dict)


def interpreter_path(arm: ResolvedArm) -> str:
    """The program to start, as an absolute path; the harness' own interpreter where the arm names none.

    Raises:
        UsageError: what the arm names is no program.
    """
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


def checkout(arm: ResolvedArm, inside: str) -> Path | None:
    """The folder of the arm's `source`; None where it names none.

    Parameters:
        inside: a folder that it must hold, such as `vllm`.

    Raises:
        UsageError: it does not.
    """
    if arm.source is None:
        return None
    try:
        path = Path(arm.source).expanduser().absolute()
        holds = (path / inside).is_dir()
    except (OSError, RuntimeError, ValueError):
        holds = False
    if not holds:
        raise UsageError(
            f"arms.{arm.name}.source: found {arm.source}, which holds no {inside}; allowed: a checkout of it"
        )
    return path


def ask(
    arm: ResolvedArm,
    distributions: Sequence[str],
    packages: Sequence[str] = (),
    groups: Sequence[str] = (),
    source: Path | None = None,
) -> Installed:
    """Ask the arm's interpreter, in the arm's environment, what it has.

    Parameters:
        distributions: names of distributions.
        packages: names of top-level packages.
        groups: groups of entry points.
        source: the checkout whose code comes before what is installed; None for none.

    Raises:
        UsageError: it is no Python, or does not run.
    """
    where, python = f"arms.{arm.name}.python", interpreter_path(arm)
    # -P: what lies in the working directory is not what that interpreter has installed.
    command = [python, *(["-P"] if source is None else []), "-c", _ASK]
    command += [json.dumps(list(names)) for names in (distributions, packages, groups)]
    environment = {**os.environ, **{name: expanded(value, f"env {name}") for name, value in arm.env.items()}}
    try:
        asked = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=True,
            cwd=source,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        return Installed(**json.loads(asked.stdout))
    except subprocess.CalledProcessError as error:
        told = error.stderr.strip()[-300:]
        raise UsageError(f"{where}: found {python}, which does not run: {told}; allowed: Python") from None
    except (OSError, ValueError, TypeError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{where}: found {python}, which is no Python: {error}; allowed: Python") from None
