"""Runs the cases: the two sides' batches in turn, so that the machine's noise hits both."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from .cases import Case, Mode, Sizes
from .pipe import Side, Worker
from .results import Results
from .samples import FirstTimes, Resident, Sample


class UnequalRows(RuntimeError):
    """The two caches were given the same steps and returned different rows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Parameters:
        peer: the peer's interpreter; None measures ours alone.
        repeats: batches of each case and side.
        forward_seconds: sleep in place of a forward, between begin and save of every step.
    """

    sizes: Sizes
    cases: tuple[Case, ...]
    modes: tuple[Mode, ...]
    repeats: int
    peer: str | None = None
    forward_seconds: float = 0.0


def run(plan: Plan, say: Callable[[str], None]) -> Results:
    """Measures everything in the plan.

    Raises:
        PeerUnusable: the peer's interpreter cannot be measured.
        WorkerFailed: a measured process failed.
        UnequalRows: the sides do not do equal work.
    """
    results = Results(plan.sizes, plan.repeats, plan.forward_seconds)
    results.about.update(_about())
    results.cases.update((case.name, case) for case in plan.cases)
    lasting = [case for case in plan.cases if case.kind != "resident"]
    for mode in plan.modes:
        if lasting:
            with contextlib.ExitStack() as stack:
                workers = _workers(plan, mode)
                # The peer first: an interpreter that will not do is found out before anything else runs.
                for worker in reversed(workers):
                    stack.enter_context(worker)
                for worker in workers:
                    results.about[worker.side] = f"{worker.name}, torch {worker.torch}"
                for case in lasting:
                    say(f"{mode}: {case.name}")
                    _measure(plan, case, mode, workers, results)
        if len(lasting) < len(plan.cases):
            say(f"{mode}: resident")
            full = replace(plan, sizes=replace(plan.sizes, num_blocks=plan.sizes.resident_blocks))
            for worker in _workers(full, mode):
                with worker:
                    results.about[worker.side] = f"{worker.name}, torch {worker.torch}"
                    answer = Resident.from_json(worker.ask("resident"))
                    results.residents.setdefault(mode, {})[worker.side] = answer
    results.about["load after"] = _load()
    return results


def _workers(plan: Plan, mode: Mode) -> list[Worker]:
    pythons: list[tuple[Side, str]] = [("ours", sys.executable)]
    if plan.peer is not None:
        pythons.append(("peer", plan.peer))
    return [Worker(side, python, plan.sizes, mode, plan.forward_seconds) for side, python in pythons]


def _measure(plan: Plan, case: Case, mode: Mode, workers: list[Worker], results: Results) -> None:
    if case.kind != "first":
        for worker in workers:
            worker.ask("start", case=case.to_json())
        sums = {worker.side: worker.ask("verify") for worker in workers}
        if len(set(map(tuple, sums.values()))) > 1:
            raise UnequalRows(f"{case.name}, {mode}: the two caches returned different rows for the same steps: {sums}")
    for repeat in range(plan.repeats):
        # Whoever goes first changes from repeat to repeat.
        for worker in workers if repeat % 2 == 0 else workers[::-1]:
            if case.kind == "first":
                saves = FirstTimes.from_json(worker.ask("first", case=case.to_json()))
                results.firsts.setdefault((case.name, mode), {}).setdefault(worker.side, []).append(saves)
            else:
                sample = Sample.from_json(worker.ask("batch"))
                results.samples.setdefault((case.name, mode), {}).setdefault(worker.side, []).append(sample)


def _about() -> dict[str, str]:
    return {
        "cpu": f"{_cpu_model()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "load before": _load(),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _load() -> str:
    return " ".join(f"{value:.1f}" for value in os.getloadavg())
