"""What a score was made with: a model's name, its very bytes and the package that ran it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class ModelLabel:
    """Names a model so that two results can be told apart.

    Parameters:
        kind: how it is run: `whisper`, `resemblyzer`, `wavlm`, or `module:function`.
        model: the file, folder or name that was asked for.
        sha256: digest of the weights (of the source file for `module:function`), hexadecimal; None where no
            file can be named.
        package: the package that runs it and its version, `openai-whisper 20250625`; None where unknown.
        options: what else decides the result, `beam=5 language=en`.
    """

    kind: str
    model: str
    sha256: str | None
    package: str | None
    options: str = ""

    def __str__(self) -> str:
        words = [self.kind, self.model]
        if self.sha256:
            words.append(f"sha256:{self.sha256[:12]}")
        if self.package:
            words.append(self.package)
        if self.options:
            words.append(self.options)
        return ", ".join(words)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_in(folder: Path) -> Path | None:
    """The file of weights in a transformers model folder; None where there is not exactly one."""
    found = [folder / name for name in _WEIGHTS if (folder / name).is_file()]
    return found[0] if len(found) == 1 else None


def package_version(package: str) -> str | None:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None
