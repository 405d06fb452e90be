"""Threads: consumers beside the engine, the log and the budget at their bounds, failures while somebody waits."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from delayed_copier import DelayedCopier, Lateness
from engine_sim import EngineSim, Path, Pending, SimConfig
from random_walk import RandomWalk

from prefix_cache import CacheConfig, CacheFailed, CacheTimeout, NewRequest, PrefixCache, StepHandle, store
from prefix_cache.copier import InlineCopier

BLOCK = 4
ENOUGH = 20.0  # far below any wait_timeout of a test that must not wait for it


@dataclass
class Bench:
    """A cache, and the device path it uses when that is the delayed one."""

    cache: PrefixCache
    copiers: list[DelayedCopier] = field(default_factory=list)

    @property
    def copier(self) -> DelayedCopier:
        return self.copiers[0]

    def begin(self, name: str, computed: int = 0, blocks: tuple[int, ...] = (0,), tokens: int = BLOCK) -> None:
        self.cache.begin_step({name: tokens}, [NewRequest(name, computed, list(blocks))])

    def save(self, name: str, first: int, tokens: int = BLOCK, value: float = 1.0) -> StepHandle:
        rows = {"hidden": torch.full((tokens, 2), value)}
        return self.cache.save_step([name], np.array([tokens]), np.arange(first, first + tokens), rows)


Make = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[Make]:
    benches, before = [], set(threading.enumerate())

    def make(lateness: Lateness | None = None, *, wait: float = 60.0, deaf: bool = False, **bounds: int) -> Bench:
        copiers: list[DelayedCopier] = []

        def delayed(pool: object) -> DelayedCopier:
            copiers.append(DelayedCopier(pool, lateness, deaf=deaf))
            return copiers[0]

        config = CacheConfig(16, BLOCK, warm_bytes=0, wait_timeout=wait, **bounds)
        bench = Bench(PrefixCache(config, copier=InlineCopier if lateness is None else delayed), copiers)
        benches.append(bench)
        return bench

    yield make
    for bench in benches:
        for copier in bench.copiers:
            copier.close()
        bench.cache.shutdown()
    for thread in set(threading.enumerate()) - before:
        thread.join(ENOUGH)
        assert not thread.is_alive(), f"{thread.name} never ended"


class Beside:
    """A call on a thread beside the test, with its outcome and how long it took."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.outcome: object = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="beside", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        start = time.monotonic()
        try:
            self.outcome = self._call()
        except Exception as error:
            self.error = error
        self.seconds = time.monotonic() - start

    def waits(self) -> None:
        """The call is really blocked, and not on its way."""
        self._thread.join(0.2)
        assert self._thread.is_alive(), (self.outcome, self.error)

    def ends(self) -> Beside:
        self._thread.join(ENOUGH)
        assert not self._thread.is_alive(), "the call never came back"
        return self


class Consumers:
    """Slow threads that take saved steps from a queue, read them, and report the first thing that is wrong."""

    def __init__(self, sim: EngineSim, count: int) -> None:
        self._sim = sim
        self._queue: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(seed,), daemon=True) for seed in range(count)]
        for thread in self._threads:
            thread.start()

    def take_all(self) -> None:
        while self._sim.pending:
            self._queue.put(self._sim.pending.pop(0))

    def finish(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a consumer never ended"
        assert not self.errors, self.errors

    def _run(self, seed: int) -> None:
        pause = np.random.default_rng(seed)
        while (item := self._queue.get(timeout=60)) is not None:
            time.sleep(pause.uniform(0, 2e-3))
            try:
                self._sim.read(item, item.readable[:: 1 + seed])
            except BaseException as error:
                self.errors.append(error)
                return


def walk_beside_consumers(sim: EngineSim, seed: int) -> None:
    """A random walk of the engine whose every step two other threads read, and check against the oracle."""
    walk, consumers = RandomWalk(sim, seed=seed, max_pending=10_000), Consumers(sim, 2)
    for _ in range(250):
        walk.advance()
        consumers.take_all()
    consumers.finish()
    sim.finish()


@pytest.mark.parametrize("max_inflight_steps", [1, 2])
@pytest.mark.parametrize("path", [Path.THREADED, Path.DELAYED])
def test_slow_consumers_and_a_full_log_never_deadlock(path: Path, max_inflight_steps: int) -> None:
    """With room for one operation and for no second step's rows, every step is read right, and nothing stays behind."""
    config = SimConfig(
        path, num_blocks=24, max_inflight_steps=max_inflight_steps, device_bytes=64, delay=2e-3, wait_timeout=60.0
    )
    sim = EngineSim(config)
    try:
        walk_beside_consumers(sim, seed=max_inflight_steps)
    finally:
        sim.close()
    assert sim.seen["hits"] > 20
    assert path is Path.THREADED or sim.seen["waits of the engine"] > 50


def test_hits_gathered_by_several_threads_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pieces of one block that take their time, consumers fill many of them, and every row is right."""
    takers: Counter[str] = Counter()
    whole = store._takes

    def lingering(*arguments: Any) -> list[Callable[[], None]]:
        def linger(piece: Callable[[], None]) -> None:
            time.sleep(1e-4)
            piece()
            takers[threading.current_thread().name] += 1

        return [partial(linger, piece) for piece in whole(*arguments)]

    monkeypatch.setattr(store, "_PIECE", 1)
    monkeypatch.setattr(store, "_takes", lingering)
    sim = EngineSim(SimConfig(Path.THREADED, num_blocks=24, wait_timeout=60.0))
    try:
        walk_beside_consumers(sim, seed=5)
    finally:
        sim.close()
    assert takers.pop("prefix-cache-log") > 20
    assert sum(takers.values()) > 20


def test_a_consumer_that_dies_stops_nobody(make: Make) -> None:
    """A step whose consumer died stays open; the engine and the other consumers go on, and everything is given back."""
    bench = make(Lateness.SOON, max_inflight_steps=1, device_bytes=64)

    def die(handle: StepHandle) -> None:
        bench.cache.materialize(handle, ["a"])
        raise ZeroDivisionError

    bench.begin("a")
    first, second = bench.save("a", 0, value=1.0), None
    assert isinstance(Beside(lambda: die(first)).ends().error, ZeroDivisionError)
    for step in range(1, 12):
        bench.begin("a")
        second = bench.save("a", BLOCK * step, value=float(step))
    assert bench.cache.materialize(second, ["a"]).rows["hidden"]["a"].eq(11).all()
    bench.cache.shutdown()
    stats = bench.cache.stats()
    assert (stats.open_handles, stats.staged_bytes, stats.log_depth) == (10, 0, 0)


@pytest.mark.parametrize("lateness", [None, Lateness.SOON, Lateness.WAITED])
def test_open_handles_outlive_the_shutdown(make: Make, lateness: Lateness | None) -> None:
    """What was saved before the shutdown can be read or discarded after it, parked rows and hits included."""
    bench = make(lateness)
    bench.begin("a")
    bench.cache.discard(bench.save("a", 0, value=1.0))
    bench.begin("b", BLOCK, (0, 1), tokens=1)
    hit = bench.save("b", BLOCK, 1, value=2.0)
    bench.cache.begin_step({"b": 1})
    parked = bench.save("b", BLOCK + 1, 1, value=3.0)
    bench.cache.begin_step({"b": 1})
    dropped = bench.save("b", BLOCK + 2, 1)
    assert bench.cache.stats().buffered_steps_total == 2
    bench.cache.shutdown()
    assert bench.cache.materialize(hit, ["b"]).rows["hidden"]["b"][:, 0].tolist() == [1, 1, 1, 1, 2]
    assert bench.cache.materialize(parked, ["b"]).rows["hidden"]["b"][:, 0].tolist() == [3]
    bench.cache.discard(dropped)
    stats = bench.cache.stats()
    assert (stats.open_handles, stats.staged_bytes, stats.rows_written_total) == (0, 0, BLOCK + 3)


def prefill(bench: Bench, requests: int) -> None:
    for number in range(requests):
        bench.begin(f"r{number}")
        bench.save(f"r{number}", 0)


def test_a_full_log_makes_the_engine_wait_and_says_so(make: Make) -> None:
    """No wait is for ever, and each names what it waited for."""
    bench = make(Lateness.GATE, wait=0.3, deaf=True, max_inflight_steps=1)
    with pytest.raises(CacheTimeout, match=r"waited 0\.3 s for a place in the log: 1 operations pending"):
        prefill(bench, 4)


def test_a_spent_budget_makes_the_engine_wait_and_says_so(make: Make) -> None:
    bench = make(Lateness.GATE, wait=0.3, deaf=True, device_bytes=64)
    bench.begin("a")
    bench.save("a", 0)
    bench.begin("b")
    with pytest.raises(CacheTimeout, match=r"waited 0\.3 s for 64 bytes of staging for a step of 4 tokens: 64 of 64"):
        bench.save("b", 0)


def test_a_hit_that_is_not_read_in_time_says_so(make: Make) -> None:
    """The consumer's wait for a READ behind a stuck WRITE is bounded as well."""
    bench = make(Lateness.GATE, wait=0.3, deaf=True)
    bench.begin("a")
    bench.save("a", 0)
    bench.begin("b", BLOCK, (0, 1), tokens=1)
    handle = bench.save("b", BLOCK, 1)
    with pytest.raises(CacheTimeout, match=r"waited 0\.3 s for the hit of request 'b' to be read"):
        bench.cache.materialize(handle, ["b"])


def test_a_shutdown_behind_a_stuck_device_says_so(make: Make) -> None:
    """Even the end is bounded; once the device moves again the worker ends."""
    bench = make(Lateness.GATE, wait=0.3, deaf=True)
    bench.begin("a")
    bench.save("a", 0)
    with pytest.raises(CacheTimeout, match=r"waited 0\.3 s for the log's worker to end: 1 left"):
        bench.cache.shutdown()
    bench.copier.gate.set()


def fail_later(bench: Bench) -> None:
    """A step whose WRITE fails when its rows should have landed, once the gate opens."""
    bench.copier.breaks = OSError("the device fell off the bus")
    bench.begin("bad")
    bench.save("bad", 2 * BLOCK)
    bench.copier.breaks = None


def test_a_failure_wakes_an_engine_that_waits_for_the_log(make: Make) -> None:
    """Long before its timeout, with the first error as the cause."""
    bench = make(Lateness.GATE, max_inflight_steps=1)
    fail_later(bench)
    engine = Beside(lambda: prefill(bench, 4))
    engine.waits()
    bench.copier.gate.set()
    engine.ends()
    assert isinstance(engine.error, CacheFailed)
    assert isinstance(engine.error.__cause__, OSError)


def test_a_failure_wakes_an_engine_that_waits_for_the_budget(make: Make) -> None:
    bench = make(Lateness.GATE, device_bytes=64)
    fail_later(bench)
    bench.begin("a")
    engine = Beside(lambda: bench.save("a", 0))
    engine.waits()
    bench.copier.gate.set()
    engine.ends()
    assert isinstance(engine.error, CacheFailed)
    assert isinstance(engine.error.__cause__, OSError)


def test_a_failure_wakes_a_consumer_that_waits_for_a_hit(make: Make) -> None:
    bench = make(Lateness.GATE)
    fail_later(bench)
    bench.begin("b", BLOCK, (0, 1), tokens=1)
    handle = bench.save("b", BLOCK, 1)
    consumer = Beside(lambda: bench.cache.materialize(handle, ["b"]))
    consumer.waits()
    bench.copier.gate.set()
    consumer.ends()
    assert isinstance(consumer.error, CacheFailed)


def test_a_failure_of_the_device_path_is_sticky(make: Make) -> None:
    """Rows that never land are an error of the cache, not of one step."""
    bench = make(Lateness.GATE, wait=0.2)
    bench.begin("a")
    bench.save("a", 0)
    deadline = time.monotonic() + ENOUGH
    while not bench.cache._log.failed and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(CacheFailed, match="rows to land") as caught:
        bench.cache.begin_step({})
    assert isinstance(caught.value.__cause__, CacheTimeout)
