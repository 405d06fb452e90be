"""The order of a run's trials.

* `alternate`: the file's order in every round.
* `abba`: the file's order, reversed in every second round; a linear drift of the machine cancels over two rounds.
* `aa`: `abba`, of the baseline and itself.
* `random`: every round shuffled, seeded by the scenario.
* `latin`: the rows of a Williams square (E. J. Williams, 1949), over and over. Over one cycle each arm stands equally
  often at each position and follows each other arm equally often, so that what one trial leaves behind (heat, page
  cache) meets all arms alike. A cycle is n rounds for an even number n of arms and 2n, the square and its mirror
  image, for an odd one; positions alone balance after every n rounds.

More rounds only append to a plan: its beginning stays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count, islice

from harness.records import PlannedTrial
from harness.scenario import Order, Scenario

Rounds = Callable[[Sequence[str], int], tuple[tuple[str, ...], ...]]


def make_plan(scenario: Scenario, rounds: int | None = None) -> tuple[PlannedTrial, ...]:
    """Every trial of the scenario, in the order to run them; each round holds each arm once.

    Parameters:
        rounds: in place of the scenario's, for a run that was made longer.
    """
    rows = round_orders(scenario.order, tuple(scenario.arms), rounds or scenario.rounds, scenario.seed)
    return tuple(
        PlannedTrial(round=number, position=position, arm=arm)
        for number, row in enumerate(rows, start=1)
        for position, arm in enumerate(row, start=1)
    )


def round_orders(order: Order, arms: Sequence[str], rounds: int, seed: int = 0) -> tuple[tuple[str, ...], ...]:
    """The arms of each round, in order; the first round follows `arms` except in a `random` plan."""
    ahead = tuple(arms)
    if order == "alternate":
        return (ahead,) * rounds
    if order in ("abba", "aa"):
        return tuple(ahead if number % 2 == 0 else ahead[::-1] for number in range(rounds))
    if order == "random":
        shuffler = random.Random(seed)
        return tuple(tuple(shuffler.sample(ahead, len(ahead))) for _ in range(rounds))
    square = williams(len(ahead))
    return tuple(tuple(ahead[index] for index in square[number % len(square)]) for number in range(rounds))


def williams(size: int) -> tuple[tuple[int, ...], ...]:
    """A Williams square over `range(size)` whose first row counts up; for an odd size, followed by its mirror image."""
    first = _zigzag(size)
    # Renaming the entries keeps every balance and lets the first row be the file's order.
    name = {entry: position for position, entry in enumerate(first)}
    square = tuple(tuple(name[(entry + shift) % size] for entry in first) for shift in range(size))
    return square if size % 2 == 0 else square + tuple(row[::-1] for row in square)


def _zigzag(size: int) -> tuple[int, ...]:
    """0, 1, size-1, 2, size-2, ...: neighbours differ by every distance once."""
    steps = (step for far in count(1) for step in (far, size - far))
    return (0, *islice(steps, size - 1)) if size > 1 else (0,)
