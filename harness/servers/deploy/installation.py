"""What an arm's interpreter has of vLLM-Omni, and which device it would run on; found without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from harness.errors import UsageError
from harness.servers.arm import ResolvedArm
from harness.servers.interpreter import ask

_OTHER_DEVICES = {
    "torch-npu": "npu",
    "torch_npu": "npu",
    "torch-musa": "musa",
    "torch_musa": "musa",
    "torchada": "musa",
}
_CUDA_LIBRARIES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu13")
_LABELS = (("cu", "cuda"), ("rocm", "rocm"), ("xpu", "xpu"), ("cpu", "cpu"))
"""How torch's own builds begin the part of their version after the plus, and vLLM-Omni's name of that device."""


@dataclass(frozen=True, slots=True)
class Installation:
    """vLLM-Omni in one interpreter.

    Parameters:
        version: of vLLM-Omni; None: it is not installed as a distribution.
        folder: of the package that the interpreter would import; None: there is none.
        platform: the device its torch was built for, in vLLM-Omni's words; None where that does not show.
        problem: why nothing could be found out; None: it could.
    """

    version: str | None = None
    folder: Path | None = None
    platform: str | None = None
    problem: str | None = None

    @property
    def profiles(self) -> Path | None:
        """The folder of its deploy profiles."""
        return None if self.folder is None else self.folder / "deploy"


def installation(arm: ResolvedArm) -> Installation:
    """Ask the arm's interpreter, in the arm's environment; each is asked once."""
    return _asked(arm.python, tuple(sorted(arm.env.items())))


@lru_cache(maxsize=64)
def _asked(python: str | None, env: tuple[tuple[str, str], ...]) -> Installation:
    asked = ResolvedArm("asked", "vllm-omni", {}, dict(env), python, None, None, None)
    try:
        found = ask(asked, ("vllm-omni", "torch", *_OTHER_DEVICES, *_CUDA_LIBRARIES), ("vllm_omni",))
    except UsageError as error:
        return Installation(problem=str(error).removeprefix(f"arms.{asked.name}.python: "))
    folder = found.packages.get("vllm_omni")
    if folder is None:
        return Installation()
    return Installation(found.versions.get("vllm-omni"), Path(folder), _platform(found.versions))


def _platform(versions: Mapping[str, str]) -> str | None:
    for name, platform in _OTHER_DEVICES.items():
        if name in versions:
            return platform
    label = versions.get("torch", "").partition("+")[2]
    for begins, platform in _LABELS:
        if label.startswith(begins):
            return platform
    # The build on PyPI has no label, and CUDA's libraries beside it where it is one for CUDA.
    return "cuda" if any(name in versions for name in _CUDA_LIBRARIES) else None
