"""The benchmark's side of a measured process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from .cases import Mode, Sizes

Side = Literal["ours", "peer"]

# The other interpreter need not have this project installed: it is given this folder as a package of its own, and
# nothing else of the project.
_BOOT = """
import importlib.util, sys
path = sys.argv[1]
spec = importlib.util.spec_from_file_location("cache_bench", path + "/__init__.py", submodule_search_locations=[path])
sys.modules["cache_bench"] = importlib.util.module_from_spec(spec)
from cache_bench.worker import main
main()
"""
_STOP_SECONDS = 10.0


class WorkerFailed(RuntimeError):
    """A measured process could not do what it was told; the message says which, and what it wrote last."""


class PeerUnusable(WorkerFailed):
    """The peer's interpreter is missing, or has no manager to measure."""


class Worker:
    """A measured process; leaving the context ends it, however it is left.

    Parameters:
        python: the interpreter it runs in.

    Raises:
        PeerUnusable: the interpreter cannot run the peer.
        WorkerFailed: it did not start.
    """

    def __init__(
        self, side: Side, python: str, sizes: Sizes, mode: Mode, forward_seconds: float, timeout: float = 300.0
    ) -> None:
        self.side, self._python, self._timeout = side, python, timeout
        self._setup = {"side": side, "sizes": asdict(sizes), "mode": mode, "forward_seconds": forward_seconds}
        self._buffer = b""
        self.name = self.torch = ""

    def __enter__(self) -> Worker:
        self._errors = tempfile.TemporaryFile("w+")
        try:
            self._process = subprocess.Popen(
                [self._python, "-c", _BOOT, str(Path(__file__).parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            self._errors.close()
            raise self._unusable(f"cannot be started: {error.strerror}") from None
        try:
            hello = self._exchange(self._setup)
        except WorkerFailed as error:
            self._end(kill=True)
            raise self._unusable(str(error)) from None
        except BaseException:
            self._end(kill=True)
            raise
        self.name, self.torch = hello["name"], hello["torch"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(kill=kind is not None)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Has it execute a command and returns the answer.

        Raises:
            WorkerFailed: it failed, died, or took too long.
        """
        return self._exchange({"do": do, **arguments})

    def _exchange(self, message: dict[str, Any]) -> Any:
        what = message.get("do", "start up")
        stdin, process = self._process.stdin, self._process
        assert stdin is not None
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise WorkerFailed(f"{self.side}: died before it could {what}: {self._last_words()}") from None
        line = self._read_line(what)
        if not line:
            process.wait(_STOP_SECONDS)
            raise WorkerFailed(f"{self.side}: exit {process.returncode} in {what}: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self.side}: {what} failed: {answer['error'].strip()}")
        return answer["ok"]

    def _read_line(self, what: str) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + self._timeout
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise WorkerFailed(f"{self.side}: no answer to {what} within {self._timeout:g} s")
            piece = os.read(stdout.fileno(), 1 << 16)
            if not piece:
                return b""
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _unusable(self, why: str) -> WorkerFailed:
        if self.side == "peer":
            return PeerUnusable(
                f"--peer {self._python}: {why}; give the python of an environment where "
                "`from vllm_omni.core.prefix_cache import OmniPrefixCacheManager` works"
            )
        return WorkerFailed(f"{self.side}: {self._python} {why}")

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"

    def _end(self, *, kill: bool) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(0 if kill else _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            process.stdout.close()
            self._errors.close()
