"""An interpreter that says of itself what a test wants it to say."""

import json
from collections.abc import Mapping
from pathlib import Path


def fake_interpreter(
    folder: Path,
    *packages: str,
    versions: Mapping[str, str] | None = None,
    plugins: tuple[str, ...] = (),
    profiles: Path | None = None,
) -> str:
    """A program that answers `harness.servers.interpreter.ask` as if these packages were importable there."""
    found = {name: str(folder / "site" / name) for name in packages}
    if profiles is not None:
        found["vllm_omni"] = str(profiles)
    answer = {
        "python": "3.11.0",
        "versions": dict(versions or {}),
        "packages": found,
        "plugins": {"vllm_omni.general_plugins": list(plugins)},
    }
    program = folder / "python"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    program.chmod(0o755)
    return str(program)
