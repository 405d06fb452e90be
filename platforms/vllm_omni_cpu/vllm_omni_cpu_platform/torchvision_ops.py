"""Makes a torchvision whose C library was built for CUDA importable under a CPU build of torch.

The wheel of the package index links against CUDA. torchvision itself survives a library that does not load, but then
registers fake kernels for operators that only the library defines, and the import fails. The image processors need
torchvision's Python half only, so the operators are declared here, without a kernel: calling one is still an error.

This module is imported at the start of every Python process of the environment: nothing heavy at the top.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def install() -> None:
    """Waits for the first import of torchvision. Idempotent."""
    if not any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeTorchvision())


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares the operators when torchvision is about to be imported, and finds nothing itself."""

    def __init__(self) -> None:
        self._asked = False
        # The declarations live as long as their library's object, and this finder as long as the process.
        self._declared: object = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "torchvision" and not self._asked:
            self._asked = True
            spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.submodule_search_locations:
                self._declared = _declare_unless_loadable(Path(next(iter(spec.submodule_search_locations))))
        return None


def _declare_unless_loadable(package: Path) -> object:
    import torch

    for library in package.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
        except OSError:
            continue
        return None
    declared = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        declared.define(schema)
    return declared
