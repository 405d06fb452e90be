"""vLLM's processes, found by the titles they give themselves, in a server's own process tree and nowhere else."""

from __future__ import annotations

import contextlib

import psutil

from harness.errors import HarnessFailure

WORKER = "VLLM::Worker"
"""How a worker's title begins: the process that holds the model and its caches, below its engine's."""


def engine_worker(root_pid: int, engine: str) -> int:
    """The process that holds the model and caches of one engine: its first worker, or itself where it has none.

    Parameters:
        root_pid: the process under which the server runs.
        engine: how the title of the engine's process begins.

    Raises:
        HarnessFailure: there is no such process, with the titles that there are.
    """
    titles = _titles(root_pid)
    engines = [process for process, title in titles if title.startswith(engine)]
    if not engines:
        found = ", ".join(sorted({title.split(" ", 1)[0] for _, title in titles if title})) or "no process"
        raise HarnessFailure(
            f"no process titled {engine}* runs below process {root_pid} (found: {found}); vLLM sets the titles by "
            "which its processes are known where setproctitle is installed"
        )
    first = _first(engines)
    workers = [process for process, title in _titles(first.pid) if title.startswith(WORKER)]
    return _first(workers).pid if workers else first.pid


def _titles(root_pid: int) -> list[tuple[psutil.Process, str]]:
    found: list[tuple[psutil.Process, str]] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(root_pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found.append((process, " ".join(process.cmdline())))
    return found


def _first(processes: list[psutil.Process]) -> psutil.Process:
    return min(processes, key=lambda process: (process.create_time(), process.pid))
