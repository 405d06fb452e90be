"""The order of trials: every round whole, every order balanced as it promises."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plan import make_plan, round_orders, williams
from harness.scenario import Arm, Bench, Order, Scenario, Server

ORDERS: list[Order] = ["abba", "alternate", "random", "latin"]
arms_of = st.integers(1, 7).map(lambda count: tuple(f"arm{index}" for index in range(count)))


@given(st.sampled_from(ORDERS), arms_of, st.integers(1, 20), st.integers(0, 5))
def test_each_round_holds_each_arm_once(order: Order, arms: tuple[str, ...], rounds: int, seed: int) -> None:
    """Whatever the order, a round is a permutation of the arms."""
    rows = round_orders(order, arms, rounds, seed)
    assert len(rows) == rounds
    assert all(sorted(row) == sorted(arms) for row in rows)


@given(st.sampled_from(ORDERS), arms_of, st.integers(1, 20), st.integers(0, 5))
def test_more_rounds_only_append(order: Order, arms: tuple[str, ...], rounds: int, seed: int) -> None:
    """A plan for more rounds begins with the plan for fewer, so a run can be extended."""
    longer = round_orders(order, arms, rounds + 3, seed)
    assert longer[:rounds] == round_orders(order, arms, rounds, seed)


@given(st.sampled_from(["abba", "alternate", "latin"]), arms_of)
def test_the_first_round_follows_the_file(order: Order, arms: tuple[str, ...]) -> None:
    """All orders but `random` start as the file is written."""
    assert round_orders(order, arms, 1) == (arms,)


def test_abba_turns_every_second_round() -> None:
    """off, on / on, off / off, on."""
    assert round_orders("abba", ("off", "on"), 3) == (("off", "on"), ("on", "off"), ("off", "on"))


@given(st.sampled_from(["abba", "latin"]), st.integers(1, 8))
def test_two_arms_share_both_positions_over_an_even_number_of_rounds(order: Order, pairs: int) -> None:
    """A drift that is linear in time meets both arms equally."""
    rows = round_orders(order, ("off", "on"), 2 * pairs)
    assert Counter(row[0] for row in rows) == {"off": pairs, "on": pairs}


def test_a_random_order_follows_its_seed() -> None:
    """Equal seeds are equal plans; over 24 rounds of four arms, another seed is another plan."""
    arms = ("a", "b", "c", "d")
    assert round_orders("random", arms, 24, 1) == round_orders("random", arms, 24, 1)
    assert round_orders("random", arms, 24, 1) != round_orders("random", arms, 24, 2)
    assert len(set(round_orders("random", arms, 24, 1))) > 1


@pytest.mark.parametrize("size", range(1, 10))
def test_a_latin_cycle_balances_positions(size: int) -> None:
    """Over any `size` rounds from the start of a square, each arm stands once at each position."""
    cycle = williams(size)
    assert len(cycle) == (size if size % 2 == 0 else 2 * size)
    for start in range(0, len(cycle), size):
        square = cycle[start : start + size]
        assert all(sorted(column) == list(range(size)) for column in zip(*square, strict=True))


@pytest.mark.parametrize("size", range(2, 10))
def test_a_latin_cycle_balances_what_one_trial_leaves_to_the_next(size: int) -> None:
    """Within rounds, each arm follows each other arm equally often over a cycle."""
    follows = Counter(pair for row in williams(size) for pair in pairwise(row))
    assert len(follows) == size * (size - 1)
    assert set(follows.values()) == {1 if size % 2 == 0 else 2}


def test_a_plan_numbers_rounds_and_positions_from_one() -> None:
    """The plan of a scenario names each trial's folder."""
    scenario = Scenario(
        schema=1,
        name="planned",
        model="tiny-omni",
        server=Server(kind="tiny-omni"),
        arms={"off": Arm(baseline=True), "on": Arm()},
        rounds=2,
        benches=(
            Bench(
                name="P8",
                dataset="random",
                concurrency=1,
                prompts=1,
                seed=0,
                output=1,
                shared_prefix=0,
                random_len=8,
                range_ratio=0.0,
            ),
        ),
    )
    assert [trial.slug for trial in make_plan(scenario)] == ["r01-1-off", "r01-2-on", "r02-1-on", "r02-2-off"]
