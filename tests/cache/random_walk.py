"""Seeded choices for the simulated engine: whatever an engine, its users and its consumers can do next."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from engine_sim import EngineSim, Habits, SimConfig
from paged_scheduler import SimRequest


def walk(config: SimConfig, seed: int, steps: int) -> Counter[str]:
    """A whole life of an engine, checked to its end; what it has seen."""
    sim = EngineSim(config)
    try:
        RandomWalk(sim, seed).run(steps)
        sim.finish()
    finally:
        sim.close()
    return sim.seen


class RandomWalk:
    """Drives an engine for as many steps as asked.

    Parameters:
        max_prompt: tokens of the longest prompt.
        max_pending: saved steps that may wait to be consumed.
    """

    def __init__(self, sim: EngineSim, seed: int, *, max_prompt: int = 12, max_pending: int = 6) -> None:
        self.sim, self._random = sim, random.Random(seed)
        self._max_prompt, self._max_pending = max_prompt, max_pending
        self._prefixes = [self._tokens(self._random.randint(1, max_prompt - 1)) for _ in range(4)]
        self._arrived = self._steps = 0
        self._habits = Habits(budget=sim.config.budget)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.advance()
            self._consume()

    def advance(self) -> None:
        """One step of the engine, whose rows are left pending; every other forty steps decode in peace."""
        self._steps += 1
        self._keep_going()
        if self._steps // 40 % 2 == 0:
            self._act()
            self._vary()
        self.sim.step(self._habits)

    def _keep_going(self) -> None:
        scheduler, draw = self.sim.scheduler, self._random
        capacity = self.sim.config.num_blocks * self.sim.config.block_size
        for request in scheduler.requests:
            if len(request.states) > min(request.prompt_len + draw.randint(4, 48), capacity):
                scheduler.finish(request)
        if not scheduler.requests:
            self._arrive()

    def _act(self) -> None:
        scheduler, draw = self.sim.scheduler, self._random
        if len(scheduler.requests) < 6 and draw.random() < 0.15:
            self._arrive()
        if draw.random() > 0.15:
            return
        running = list(scheduler.running)
        action = draw.choice(("abort", "preempt", "suspend", "continue", "announce"))
        if action == "announce":
            self.sim.announce()
        elif action == "abort":
            scheduler.finish(draw.choice(scheduler.requests))
        elif running and action == "preempt":
            scheduler.preempt(draw.choice(running))
        elif running and action == "suspend":
            scheduler.suspend(draw.choice(running))
        elif running:
            scheduler.continue_with(draw.choice(running), self._tokens(draw.randint(1, 4)))

    def _arrive(self) -> None:
        """One request or three at once, with a common beginning; half of them continue what another has produced."""
        draw = self._random
        prefix, states = draw.choice(self._prefixes), []
        if self.sim.scheduler.running and draw.random() < 0.5:
            prefix, states = [], draw.choice(self.sim.scheduler.running).states
        for _ in range(draw.choice((1, 1, 3))):
            tail = self._tokens(draw.randint(len(prefix) == 0, self._max_prompt - len(prefix)))
            self._arrived += 1
            request = SimRequest(f"r{self._arrived}", [*prefix, *tail], draw.random() < 0.3, list(states))
            self.sim.scheduler.arrive(request)

    def _vary(self) -> None:
        draw, budget = self._random, self.sim.config.budget
        self._habits = replace(
            self._habits,
            budget=budget if draw.random() < 0.8 else draw.randint(1, budget),
            padding=draw.randint(0, 3),
            owned=draw.random() < 0.05,
            code=self._habits.code != (draw.random() < 0.05),
            hidden=self._habits.hidden != (draw.random() < 0.05),
        )

    def _consume(self) -> None:
        sim, draw = self.sim, self._random
        while sim.pending and (len(sim.pending) > self._max_pending or draw.random() < 0.6):
            index = 0 if draw.random() < 0.5 else draw.randrange(len(sim.pending))
            item = sim.pending[index]
            if draw.random() < 0.1:
                sim.give_up(index, draw.sample(item.readable, draw.randint(0, len(item.readable))))
            ids = item.readable
            if draw.random() < 0.25:
                sim.discard(index)
            elif draw.random() < 0.5:
                sim.consume(index, ids, on_thread=draw.random() < 0.3)
            else:
                sim.consume(index, draw.sample(ids, draw.randint(0, len(ids))), on_thread=draw.random() < 0.3)

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randint(0, 1) for _ in range(count)]
