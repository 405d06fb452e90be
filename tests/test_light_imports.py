"""Heavy libraries are imported by what needs them, not by the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "matplotlib", "pandas", "scipy", "tokenizers", "aiohttp")


def imported(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["harness", "harness.cli"])
def test_importing_the_command_is_light(module: str) -> None:
    assert imported(f"import {module}").isdisjoint(HEAVY)


def test_scenarios_load_without_torch_or_matplotlib() -> None:
    assert imported("import harness.scenario, harness.plan, harness.store").isdisjoint({"torch", "matplotlib"})


def test_the_core_of_the_cache_imports_only_torch_and_numpy() -> None:
    modules = imported("import prefix_cache")
    assert {"torch", "numpy"} <= modules
    assert modules.isdisjoint({"harness", "aiohttp", "pydantic", "vllm"})
