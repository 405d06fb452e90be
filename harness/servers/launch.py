"""The launch: everything needed to start one server process, and what of it may be recorded."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness._scenario_secrets import HIDDEN, REFERENCE, is_secret, is_secret_arg, redacted
from harness.errors import UsageError

_RECORDED = (
    "CUDA_", "HF_", "KMP_", "LD_", "MALLOC_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_", "PREFIX_CACHE",
    "PYTHON", "PYTORCH_", "TORCH_", "TRANSFORMERS_", "VIRTUAL_ENV", "VLLM_",
)  # fmt: skip
"""Prefixes of the inherited variables that can change what is measured."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One server process to start. `${NAME}` in `argv` or `env` is a variable of the harness' own environment.

    Parameters:
        argv: program and arguments.
        env: the variables added to or overriding the harness' own environment.
        cwd: working directory of the server.
        log_path: the trial's file for the server's output; its folder is the trial's folder.
        base_url: where the server will answer, without a trailing slash.
        port: the port in `base_url`.
        model_name: the name `/v1/models` must list.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log_path: Path
    base_url: str
    port: int
    model_name: str

    @property
    def trial_dir(self) -> Path:
        return self.log_path.parent

    def child_env(self) -> dict[str, str]:
        """The server's whole environment: the harness' own with `env` over it, references looked up.

        Raises:
            UsageError: a reference to a variable that is not set.
        """
        return {**os.environ, **{name: expanded(value, f"env {name}") for name, value in self.env.items()}}

    def child_argv(self) -> tuple[str, ...]:
        """`argv` with references looked up.

        Raises:
            UsageError: a reference to a variable that is not set.
        """
        return tuple(expanded(word, "argv") for word in self.argv)

    def recorded_argv(self) -> tuple[str, ...]:
        """`argv` with the values of secret arguments and what else shows a secret replaced by `...`."""
        before = ("", *self.argv)
        return tuple(
            HIDDEN if last.startswith("--") and is_secret_arg(last) and not word.startswith("--") else redacted(word)
            for last, word in zip(before, self.argv, strict=False)
        )

    def recorded_env(self) -> dict[str, str]:
        """What a record may hold: `env` and the inherited variables that matter, secrets replaced by `...`."""
        matter = {name: value for name, value in os.environ.items() if name.startswith(_RECORDED)}
        return {
            name: HIDDEN if is_secret(name) else redacted(value)
            for name, value in sorted({**matter, **self.env}.items())
        }


def expanded(text: str, where: str) -> str:
    """The text with each `${NAME}` replaced by that variable of this environment.

    Raises:
        UsageError: a variable is not set; the message starts with `where`.
    """
    for name in REFERENCE.findall(text):
        if name not in os.environ:
            raise UsageError(f"{where}: found ${{{name}}}, which is not set; allowed: a variable of the environment")
    return REFERENCE.sub(lambda found: os.environ[found.group(1)], text)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on now; another process may still take it before we do."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1; connections in TIME_WAIT do not count as use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
