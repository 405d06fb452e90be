"""Runs the steps of a case on one cache and times its calls."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .cases import Case, Mode, Sizes
from .engine import Engine, Schedule, Step
from .samples import SHARES, FirstSaves, FirstTimes, Resident, Sample
from .subject import Subject, SubjectFactory

_Save = tuple[int, int]  # wall and thread time of one save
_FIRST_DECODES = 32
_FIRST_FRESH = 8  # saves of a fresh cache on blocks never written, the first of all included
_FIRST_STEADY = 10
_BUSY_SECONDS = 0.1  # before a batch
_RESUME_SECONDS = 0.01  # after a pause between two calls


class _Clock:
    """Wall and thread time of the calls of a step; begin, save and consume in this order."""

    def __init__(self) -> None:
        self.single: list[int] = []

    @property
    def thread(self) -> int:
        return sum(self.single)

    def time(self, call: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
        cpu, start = time.thread_time_ns(), time.perf_counter_ns()
        result = call(*arguments)
        wall = time.perf_counter_ns() - start
        self.single.append(time.thread_time_ns() - cpu)
        return result, wall


class Driver:
    """One cache that lives through all cases, its blocks all written once before the first.

    Parameters:
        make: builds the cache under measurement.
        forward_seconds: how long the engine's thread sleeps in place of a forward, between begin and save.
    """

    def __init__(self, make: SubjectFactory, sizes: Sizes, mode: Mode, forward_seconds: float) -> None:
        self._make, self._sizes, self._mode, self._forward_seconds = make, sizes, mode, forward_seconds
        self._engine = Engine(sizes)
        self._schedule = Schedule(sizes)
        self._subject: Subject | None = None
        self._case: Case | None = None
        self._steps: Iterator[Step] = iter(())
        self._warm: dict[str, Tensor] = {}

    def start(self, case: Case) -> None:
        """Makes `case` the current one and runs a batch of it that does not count."""
        if self._subject is None:
            self._subject = self._make(self._sizes, self._mode, self._engine)
            for step in self._schedule.fill():
                self._run(self._subject, step, "discard", _Clock())
        self._case, self._steps = case, self._schedule.steps(case)
        self._warm = self._yardstick(case) if case.has_yardstick else {}
        if case.is_step:
            self.batch()

    def batch(self) -> Sample:
        """One batch of the current case."""
        subject, case = self._current()
        if case.kind == "slots":
            return self._slots(subject, case)
        sample = Sample()
        settle()
        keep_busy(_BUSY_SECONDS)
        cpu, thread = time.process_time_ns(), time.thread_time_ns()
        for step in islice(self._steps, case.steps):
            clock = _Clock()
            before = subject.gather_seconds() if case.hit else None
            calls = self._run(subject, step, case.consume, clock, pause=case.prefetched)
            for name, (_, wall) in calls.items():
                getattr(sample, name).append(wall)
            sample.thread.append(clock.thread)
            if before is not None:
                sample.gather.append(((subject.gather_seconds() or 0.0) - before) * 1e9)
            if self._warm:
                # Not while the cache's own threads still copy.
                settle()
                sample.copy.append(self._copy())
        settle()
        elsewhere = (time.process_time_ns() - cpu) - (time.thread_time_ns() - thread)
        return replace(sample, process=(elsewhere + sum(sample.thread)) / case.steps)

    def verify(self) -> list[int]:
        """Checksums of what two steps of the current case return; of their slots, where it has no rows."""
        subject, case = self._current()
        sums: list[int] = []
        for step in islice(self._steps, 2):
            if case.kind == "slots":
                native = subject.prepare(step, self._engine.place(step))
                slots = subject.slot_array(subject.slots(native))
                sums.append(zlib.crc32(np.asarray(slots, dtype=np.int64).tobytes()))
            else:
                calls = self._run(subject, step, "materialize", _Clock(), keep=True)
                sums.append(checksum(subject.rows(calls["consume"][0])))
        return sums

    def first_saves(self, case: Case) -> FirstTimes:
        """Saves of a cache made for the purpose."""
        subject = self._make(self._sizes, self._mode, self._engine)
        decodes: list[_Save] = []
        arrivals: list[_Save] = []
        fresh = self._schedule.arrivals_apart(case, _FIRST_FRESH)
        settle()
        for index, step in enumerate(fresh):
            arrivals.append(self._save(subject, step, case))
            if index == 0 and case.tokens == 1:
                for position in range(1, _FIRST_DECODES + 1):
                    decode = Step(dict(step.scheduled), (position,) * case.requests, [], [])
                    decodes.append(self._save(subject, decode, case))
            settle()
        steady: list[_Save] = []
        for _ in range(_FIRST_STEADY):
            # The last requests end and come again, on the same blocks.
            again = Step(fresh[-1].scheduled, fresh[-1].computed, fresh[-1].arrivals, fresh[-1].ids)
            steady.append(self._save(subject, again, case))
            settle()
        subject.shutdown()
        kinds = (arrivals[:1], arrivals[2:], steady[2:], decodes[:1], decodes[1:])
        wall, thread = (FirstSaves(*([save[clock] for save in kind] for kind in kinds)) for clock in (0, 1))
        return FirstTimes(wall, thread)

    def resident(self) -> Resident:
        """Writes ever more of the cache, in blocks picked at random, and reads the process's memory after each share.

        Needs a fresh process. What only warms it, such as the code, happens on a small cache before.
        """
        sizes = self._sizes
        per_step = max(1, min(512, sizes.step_tokens) // sizes.block_size)
        small = self._make(replace(sizes, num_blocks=2 * per_step), self._mode, self._engine)
        self._write(small, list(range(2 * per_step)), per_step)
        small.shutdown()
        del small
        subject = self._make(sizes, self._mode, self._engine)
        order = np.random.default_rng(5).permutation(sizes.num_blocks).tolist()
        done, base, written, grown = 0, resident_bytes(), {}, {}
        for share in SHARES:
            stop = int(share * len(order))
            self._write(subject, order[done:stop], per_step)
            done = stop
            written[f"{share:.0%}"] = done * sizes.block_size * sizes.row_bytes
            grown[f"{share:.0%}"] = resident_bytes() - base
        subject.shutdown()
        return Resident(written, grown)

    def shutdown(self) -> None:
        if self._subject is not None:
            self._subject.shutdown()

    def _write(self, subject: Subject, blocks: list[int], per_step: int) -> None:
        for first in range(0, len(blocks), per_step):
            self._run(subject, self._schedule.on_blocks(blocks[first : first + per_step]), "discard", _Clock())
            settle()

    def _save(self, subject: Subject, step: Step, case: Case) -> _Save:
        clock = _Clock()
        wall = self._run(subject, step, case.consume, clock, pause=True)["save"][1]
        return wall, clock.single[1]

    def _current(self) -> tuple[Subject, Case]:
        if self._subject is None or self._case is None:
            raise RuntimeError("no case was started")
        return self._subject, self._case

    def _run(
        self,
        subject: Subject,
        step: Step,
        consume: str,
        clock: _Clock,
        *,
        pause: bool = False,
        keep: bool = False,
    ) -> dict[str, tuple[Any, int]]:
        """One step: result and wall time of each call. What materialize returns is let go of inside its time.

        Parameters:
            pause: wait after the forward until the cache's threads have nothing left to do.
        """
        rows = self._engine.place(step)
        native = subject.prepare(step, rows)
        begun = clock.time(subject.begin, native)
        if self._forward_seconds:
            time.sleep(self._forward_seconds)
        self._engine.forward(rows)
        if pause:
            settle()
            keep_busy(_RESUME_SECONDS)
        handle, save = clock.time(subject.save, native)
        if consume == "discard":
            consumed = clock.time(subject.discard, handle)
        elif keep:
            consumed = clock.time(subject.materialize, handle, native)
        else:
            consumed = clock.time(_materialize_and_drop, subject, handle, native)
        return {"begin": begun, "save": (handle, save), "consume": consumed}

    def _slots(self, subject: Subject, case: Case) -> Sample:
        walls, threads = [], []
        for step in islice(self._steps, case.steps):
            native = subject.prepare(step, self._engine.place(step))
            clock = _Clock()
            walls.append(clock.time(subject.slots, native)[1])
            threads.append(clock.thread)
        return Sample(slots=walls, thread=threads, process=sum(threads) / len(threads))

    def _yardstick(self, case: Case) -> dict[str, Tensor]:
        """Targets, and sources behind them, for a plain copy of as many rows as the case's hit or step has."""
        count = case.hit or case.tokens
        warm = {}
        for key, value in self._engine.sources(count).items():
            warm[key] = torch.stack([value, value])
        return warm

    def _copy(self) -> int:
        start = time.perf_counter_ns()
        for pair in self._warm.values():
            pair[0].copy_(pair[1])
        return time.perf_counter_ns() - start


def _materialize_and_drop(subject: Subject, handle: Any, native: Any) -> None:
    subject.materialize(handle, native)


def checksum(rows: dict[str, dict[str, Tensor]]) -> int:
    """Of every row, in the order of keys and requests."""
    total = 0
    for key in sorted(rows):
        for request, value in rows[key].items():
            total = zlib.crc32(f"{key} {request} {tuple(value.shape)}".encode(), total)
            total = zlib.crc32(value.contiguous().view(torch.uint8).numpy().data, total)
    return total


def settle(timeout: float = 30.0) -> None:
    """Waits until the process's other threads have nothing to do: three looks in a row at 2 ms find no CPU time.

    Raises:
        TimeoutError: they are still busy.
    """
    deadline, quiet = time.monotonic() + timeout, 0
    last = time.process_time_ns() - time.thread_time_ns()
    while quiet < 3:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cache's threads were still busy after {timeout:g} s")
        time.sleep(0.002)
        now = time.process_time_ns() - time.thread_time_ns()
        quiet = quiet + 1 if now - last < 100_000 else 0
        last = now


def keep_busy(seconds: float) -> None:
    """Keeps the core from idling for so long, without touching memory.

    An engine's thread has just run a forward when it calls the cache. Here it has waited, for the other side's batch
    or for the cache's threads, and a core that was idle is slow for the next milliseconds.
    """
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def resident_bytes() -> int:
    """VmRSS of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS")
