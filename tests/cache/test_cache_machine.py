"""The cache against an oracle that needs none, under random schedules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from delayed_copier import Lateness
from engine_sim import EngineSim, Habits, Path, SimConfig
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paged_scheduler import SimRequest
from random_walk import walk

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
WHICH = st.integers(0, 9)


class CacheMachine(RuleBasedStateMachine):
    """Every row handed out is the row its token truly has, whatever the engine does and whoever consumes when."""

    path = Path.THREADED
    sim: EngineSim

    @initialize(
        num_blocks=st.sampled_from([10, 14, 24]),
        block_size=st.sampled_from([1, 2, 3, 4]),
        lifo=st.booleans(),
        hidden_required=st.booleans(),
        lateness=st.sampled_from([Lateness.SOON, Lateness.WAITED]),
        staging_rows=st.sampled_from([2, 64]),
        device_bytes=st.sampled_from([1, 1000, 1 << 20]),
        max_inflight_steps=st.sampled_from([1, 8]),
        retain_bytes=st.sampled_from([1, 1 << 20]),
    )
    def build(self, **drawn: int) -> None:
        self.sim = EngineSim(SimConfig(self.path, delay=1e-4, **drawn))
        self.habits = Habits()
        self.count = 0

    @rule(tokens=TOKENS, tails=st.lists(TOKENS, max_size=2), emits=st.booleans())
    def arrive(self, tokens: list[int], tails: list[list[int]], emits: bool) -> None:
        """Requests with a common beginning, of which the later may hit what the first computes in the same step."""
        for tail in [[], *tails]:
            self._arrive(SimRequest("", [*tokens, *tail[:4]], emits))

    @precondition(lambda self: self.sim.scheduler.requests)
    @rule(which=WHICH, tail=TOKENS, ends=st.booleans())
    def arrive_again(self, which: int, tail: list[int], ends: bool) -> None:
        """The next turn of a conversation: it hits what the last one decoded, which may still be parked."""
        requests = self.sim.scheduler.requests
        last = requests[which % len(requests)]
        self._arrive(SimRequest("", tail[:3], states=list(last.states)))
        if ends:
            self.sim.scheduler.finish(last)

    @rule(
        steps=st.integers(1, 6),
        budget=st.sampled_from([12, 12, 5, 2]),
        padding=st.integers(0, 3),
        owned=st.sampled_from([False, False, False, True]),
        code=st.booleans(),
        hidden=st.booleans(),
    )
    def step(self, steps: int, **habits: int) -> None:
        self.habits = Habits(**habits)
        self._step(steps)

    @rule(steps=st.integers(2, 12), code=st.sampled_from([False, False, True]))
    def go_on(self, steps: int, code: bool) -> None:
        """More of the same, perhaps with a key more or less."""
        self.habits = replace(self.habits, code=self.habits.code != code)
        self._step(steps)

    @rule(which=WHICH, what=st.sampled_from(["abort", "preempt", "suspend", "continue", "announce"]), tokens=TOKENS)
    def disturb(self, which: int, what: str, tokens: list[int]) -> None:
        scheduler = self.sim.scheduler
        running, requests = scheduler.running, scheduler.requests
        if what == "announce":
            self.sim.announce()
        elif what == "abort" and requests:
            scheduler.finish(requests[which % len(requests)])
        elif what == "preempt" and running:
            scheduler.preempt(running[which % len(running)])
        elif what == "suspend" and running:
            scheduler.suspend(running[which % len(running)])
        elif running:
            scheduler.continue_with(running[which % len(running)], tokens[:4])

    @precondition(lambda self: self.sim.pending)
    @rule(which=WHICH, how=st.sampled_from(["whole", "subset", "discard", "give up"]), data=st.data())
    def consume(self, which: int, how: str, data: st.DataObject) -> None:
        index = which % len(self.sim.pending)
        ids = self.sim.pending[index].readable
        if how == "discard":
            self.sim.discard(index)
        elif how == "give up":
            self.sim.give_up(index, ids[: data.draw(st.integers(1, 3))])
        else:
            if how == "subset":
                ids = data.draw(st.permutations(ids))[: data.draw(st.integers(0, len(ids)))]
            self.sim.consume(index, ids, on_thread=data.draw(st.booleans()))

    @invariant()
    def every_open_handle_is_pending(self) -> None:
        if hasattr(self, "sim"):
            beside = self.sim.cache.stats().open_handles - len(self.sim.pending)
            assert 0 <= beside <= self.sim.reading

    def _arrive(self, request: SimRequest) -> None:
        self.count += 1
        request.id = f"r{self.count}"
        self.sim.scheduler.arrive(request)

    def _step(self, steps: int) -> None:
        for _ in range(steps):
            capacity = self.sim.config.num_blocks * self.sim.config.block_size
            for request in self.sim.scheduler.requests:
                if len(request.states) > min(request.prompt_len + 12, capacity):
                    self.sim.scheduler.finish(request)
            self.sim.step(self.habits)
            while len(self.sim.pending) > 4:
                self.sim.consume(0, self.sim.pending[0].readable)

    def teardown(self) -> None:
        if hasattr(self, "sim"):
            try:
                self.sim.finish()
            finally:
                self.sim.close()


class InlineCacheMachine(CacheMachine):
    path = Path.INLINE


class DelayedCacheMachine(CacheMachine):
    path = Path.DELAYED


TestThreaded = CacheMachine.TestCase
TestInline = InlineCacheMachine.TestCase
TestDelayed = DelayedCacheMachine.TestCase
SETTINGS = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestThreaded.settings = TestInline.settings = TestDelayed.settings = SETTINGS


PATHS = {
    "inline": SimConfig(Path.INLINE, num_blocks=24),
    "threaded": SimConfig(Path.THREADED, num_blocks=24),
    "delayed": SimConfig(Path.DELAYED, num_blocks=24),
    "waited for": SimConfig(Path.DELAYED, num_blocks=24, lateness=Lateness.WAITED),
}
SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"num_blocks": 10, "lifo": True, "staging_rows": 1, "max_inflight_steps": 1, "retain_bytes": 1},
    {"block_size": 3, "hidden_required": False, "device_bytes": 1000, "staging_rows": 64},
    {"block_size": 1, "num_blocks": 30, "lifo": True, "device_bytes": 1, "max_inflight_steps": 2},
)
HARD_CASES = (
    "hits",
    "same-step hits",
    "preemptions",
    "resumes",
    "continuations",
    "finished and new at once",
    "hits of steps without a save",
    "buffered steps",
    "key-set changes",
    "optional rows read as zeros",
    "owned steps",
    "padded steps",
    "out of order",
    "late",
    "reads on another thread",
    "subsets",
    "discards",
    "requests given up",
)


@pytest.mark.parametrize("config", PATHS.values(), ids=PATHS.keys())
def test_a_short_walk_hands_out_true_rows_and_reaches_the_hard_cases(config: SimConfig) -> None:
    """A seeded walk of 600 steps: every row is the oracle's, and no hard case is only imagined."""
    seen = walk(config, seed=1, steps=600)
    assert not [case for case in HARD_CASES if not seen[case]]
    assert 0 < seen["flushes"] < seen["buffered steps"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("config", PATHS.values(), ids=PATHS.keys())
def test_a_long_walk_hands_out_true_rows(config: SimConfig) -> None:
    """Twenty thousand steps of engines of four shapes; the hard cases come by the hundred."""
    seen: Counter[str] = Counter()
    for seed, shape in enumerate(SHAPES):
        seen += walk(replace(config, seed=seed, **shape), seed=seed, steps=6_000)
    print(f"\n{config.path.value}, {config.lateness.value}: {dict(sorted(seen.items()))}")
    assert seen["steps"] >= 20_000
    assert not [case for case in HARD_CASES if seen[case] < 100]
    assert seen["flushes"] < seen["buffered steps"]
