"""The cache against an oracle that needs none, under random schedules."""

from __future__ import annotations

from engine_sim import EngineSim, SimRequest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule


class CacheMachine(RuleBasedStateMachine):
    """Every row handed out is the row its token truly has, whatever the engine does and whoever consumes when."""

    threaded = True

    def __init__(self) -> None:
        super().__init__()
        self.sim = EngineSim(num_blocks=14, block_size=2, budget=12, threaded=self.threaded, staging_rows=4)
        self.count = 0

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12), emits=st.booleans())
    def arrive(self, tokens: list[int], emits: bool) -> None:
        self.count += 1
        self.sim.arrive(SimRequest(f"r{self.count}", tokens, len(tokens), emits))

    @rule(steps=st.integers(1, 5))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            for request in [r for r in self.sim.running if len(r.tokens) > r.prompt_len + 6]:
                self.sim.finish(request)
            self.sim.step()
            while len(self.sim.pending) > 3:
                self.sim.consume(read=True)

    @rule(index=st.integers(0, 9))
    def abort(self, index: int) -> None:
        if self.sim.running:
            self.sim.finish(self.sim.running[index % len(self.sim.running)])

    @rule(index=st.integers(0, 9))
    def preempt(self, index: int) -> None:
        if self.sim.running:
            self.sim.preempt(self.sim.running[index % len(self.sim.running)])

    @rule(read=st.booleans(), only=st.none() | st.integers(1, 3))
    def consume(self, read: bool, only: int | None) -> None:
        self.sim.consume(read=read, only=only)

    @invariant()
    def nothing_failed(self) -> None:
        assert self.sim.cache.stats().open_handles == len(self.sim.pending)

    def teardown(self) -> None:
        while self.sim.pending:
            self.sim.consume(read=True)
        self.sim.cache.shutdown()
        self.sim.recheck()
        stats = self.sim.cache.stats()
        assert (stats.log_depth, stats.staged_bytes, stats.open_handles) == (0, 0, 0)
        assert stats.hits_total == self.sim.hits
        assert stats.same_step_hits_total == self.sim.same_step


class InlineCacheMachine(CacheMachine):
    threaded = False


TestThreaded = CacheMachine.TestCase
TestInline = InlineCacheMachine.TestCase
TestThreaded.settings = TestInline.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_the_walk_reaches_the_hard_cases() -> None:
    """The machine's engine really produces hits, same-step hits, preemptions and buffered steps."""
    sim = EngineSim(num_blocks=14, block_size=2, budget=12, staging_rows=4)
    for number in range(40):
        sim.arrive(SimRequest(f"a{number}", [0, 1, 0, 1, 0, 1, number % 2], 7, number % 3 == 0))
        if number % 4 == 0:
            sim.arrive(SimRequest(f"b{number}", [0, 1, 0, 1, 0, 1, number % 2, 1], 8, False))
        for _ in range(4):
            for request in [r for r in sim.running if len(r.tokens) > r.prompt_len + 8]:
                sim.finish(request)
            sim.step()
            while len(sim.pending) > 2:
                sim.consume(read=True)
    while sim.pending:
        sim.consume(read=True)
    sim.cache.shutdown()
    sim.recheck()
    stats = sim.cache.stats()
    assert sim.hits > 10
    assert sim.same_step > 0
    assert sim.preempted > 0
    assert stats.buffered_steps_total > 0
    assert stats.flushes_total < stats.buffered_steps_total
