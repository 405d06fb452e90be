"""The workflows are what GitHub takes: actionlint finds nothing."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_workflows_are_sound() -> None:
    """Syntax, contexts, labels of runners and shell variables, of every workflow."""
    program = Path(sysconfig.get_path("scripts")) / "actionlint"
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert {file.name for file in files} >= {"ci.yml", "nightly.yml"}
    done = subprocess.run(
        [program, "-config-file", ROOT / ".github" / "actionlint.yaml", *files],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
