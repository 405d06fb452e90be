"""Which weights a server is given: the model's folder as far as it is on this machine, and its revision."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from harness.records import Model

_COMMIT = re.compile(r"[0-9a-f]{40}")
_INDEX = "model.safetensors.index.json"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def model_facts(
    model: str, path: str | None, environment: Mapping[str, str], revision: str | None = None, home: Path | None = None
) -> Model:
    """What is known of a model without reading its weights.

    Parameters:
        model: its name; a folder, or an id of the hub whose snapshot is looked up in the local cache.
        path: its folder, where the scenario names one.
        environment: of the server: HF_HUB_CACHE or HF_HOME say where the cache is.
        revision: the branch, tag or commit that is served; None is `main`.
        home: the user's; None asks the system.
    """
    folder = _folder(model, path) or _snapshot(model, revision or "main", _hub(environment, home))
    if folder is None:
        return Model(id=model, path=None, revision=None, config_sha256=None, weights_sha256=None, weights_bytes=None)
    commit = folder.name if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name) else None
    # Links of a snapshot lead to the blobs, whose size is meant.
    sizes = {
        str(file.relative_to(folder)): file.stat().st_size
        for file in sorted(folder.rglob("*"))
        if file.suffix in _WEIGHTS and file.is_file()
    }
    return Model(
        id=model,
        path=str(folder),
        revision=commit,
        config_sha256=_sha256(folder / "config.json"),
        weights_sha256=_weights_sha256(folder / _INDEX, sizes),
        weights_bytes=sum(sizes.values()) if sizes else None,
    )


def _weights_sha256(index: Path, sizes: Mapping[str, int]) -> str | None:
    if not sizes:
        return None
    lines = [_sha256(index) or "no index", *(f"{name} {size}" for name, size in sizes.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _folder(model: str, path: str | None) -> Path | None:
    for place in (path, model):
        if place is not None and Path(place).is_dir():
            return Path(place).absolute()
    return None


def _hub(environment: Mapping[str, str], home: Path | None) -> Path | None:
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if environment.get(name):
            return Path(environment[name]).expanduser() / below
    try:
        return (home or Path.home()) / ".cache" / "huggingface" / "hub"
    except RuntimeError:
        return None


def _snapshot(model: str, revision: str, hub: Path | None) -> Path | None:
    if hub is None:
        return None
    place = hub / f"models--{model.replace('/', '--')}"
    try:
        commit = (place / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        commit = revision
    folder = place / "snapshots" / commit
    return folder if _COMMIT.fullmatch(commit) and folder.is_dir() else None


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
