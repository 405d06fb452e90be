"""What the CPU platform package does to a process, in processes of its own; its workers are met in tests/real."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "platforms" / "vllm_omni_cpu"
START = PACKAGE / "vllm_omni_cpu_platform.pth"

# A torchvision as the package index has it: its Python half needs operators that only its library defines.
TORCHVISION = """
import torch
from pathlib import Path
try:
    torch.ops.load_library(str(Path(__file__).parent / "_C.so"))
except OSError:
    pass
@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold):
    return dets.new_empty(0, dtype=torch.long)
"""


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE), str(folder)])}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False, env=env, cwd=folder
    )


@pytest.fixture
def torchvision(tmp_path: Path) -> Path:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(TORCHVISION)
    (package / "_C.so").write_bytes(b"linked against something that is not here")
    return tmp_path


def test_torchvision_is_importable_once_its_operators_are_declared(torchvision: Path) -> None:
    """The line that the .pth file runs is enough; before it the import fails, and after it no operator computes."""
    code = f"""
try:
    import torchvision
except RuntimeError as error:
    print(error)
{START.read_text()}
import gc, torch, torchvision
gc.collect()
print(torch.ops.torchvision.nms)
try:
    torch.ops.torchvision.nms(torch.ones(1, 4), torch.ones(1), 0.5)
except NotImplementedError:
    print("not computed")
"""
    ran = python(code, torchvision)
    assert ran.stdout.splitlines() == ["operator torchvision::nms does not exist", "torchvision.nms", "not computed"]


def test_starting_python_imports_nothing_heavy(tmp_path: Path) -> None:
    """The .pth file runs in every process of the environment."""
    ran = python(f"{START.read_text()}\nimport sys; print('torch' in sys.modules)", tmp_path)
    assert ran.stdout.strip() == "False", ran.stderr


def test_streams_and_events_stand_still_without_a_device(tmp_path: Path) -> None:
    """What a runner does with a stream of its own does nothing, and fails nowhere; a machine with CUDA is refused."""
    code = """
import torch
from vllm_omni_cpu_platform import no_cuda

torch.cuda.is_available = lambda: True
try:
    no_cuda.install()
except RuntimeError as error:
    print(error)
torch.cuda.is_available = lambda: False
no_cuda.install()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    copied = torch.ones(2).to("cpu", non_blocking=True)
    event = torch.cuda.Event()
    event.record(side)
event.synchronize()
torch.cuda.default_stream().wait_event(side.record_event())
torch.cuda.synchronize()
print(event.query(), torch.Event().query(), copied.tolist())
"""
    refused, ran = python(code, tmp_path).stdout.splitlines()
    assert "found a CUDA device" in refused
    assert ran == "True True [1.0, 1.0]"


def test_the_entry_point_names_a_class_that_the_package_has() -> None:
    """vLLM-Omni asks it for the platform's class by name."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    module, _, function = project["entry-points"]["vllm_omni.platform_plugins"]["vllm_omni_cpu"].partition(":")
    assert (module, function) == ("vllm_omni_cpu_platform", "register")
    source = (PACKAGE / "vllm_omni_cpu_platform" / "platform.py").read_text()
    named = "vllm_omni_cpu_platform.platform.CpuOmniPlatform"
    assert f'return "{named}"' in (PACKAGE / "vllm_omni_cpu_platform" / "__init__.py").read_text()
    assert f"class {named.rpartition('.')[2]}(" in source
