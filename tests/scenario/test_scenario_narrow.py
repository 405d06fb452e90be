"""The command line narrows a scenario and never widens it."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from harness.plan import make_plan
from harness.scenario import Arm, Bench, Order, Scenario, Server, narrow


def scenario(order: Order = "alternate") -> Scenario:
    def bench(name: str) -> Bench:
        return Bench(
            name=name,
            dataset="random",
            concurrency=1,
            prompts=1,
            seed=1,
            output=1,
            shared_prefix=0,
            random_len=8,
            range_ratio=0.0,
            reported=name != "warm",
        )

    return Scenario(
        schema=1,
        name="narrowed",
        model="tiny-omni",
        server=Server(kind="tiny-omni"),
        arms={"off": Arm(baseline=True), "on": Arm(), "other": Arm()},
        rounds=4,
        order=order,
        benches=tuple(bench(name) for name in ("warm", "P64_h0", "P64_h50", "DEC")),
    )


def names(narrowed: Scenario) -> list[str]:
    return [bench.name for bench in narrowed.benches]


def test_nothing_asked_changes_nothing() -> None:
    """Without arguments the scenario stays as it is."""
    assert narrow(scenario()) == scenario()


def test_only_keeps_the_named_benches_in_file_order_and_warm() -> None:
    """Names and patterns choose; `warm` stays, since the benches were meant for a warm server."""
    assert names(narrow(scenario(), only=("DEC", "P64_h0"))) == ["warm", "P64_h0", "DEC"]
    assert names(narrow(scenario(), only=("P64_*",))) == ["warm", "P64_h0", "P64_h50"]
    assert names(narrow(scenario(), only=("warm",))) == ["warm"]


def test_rounds_and_arms_are_replaced() -> None:
    """Arms keep the file's order whatever the order asked."""
    narrowed = narrow(scenario(), rounds=1, arms=("on", "off"))
    assert narrowed.rounds == 1
    assert list(narrowed.arms) == ["off", "on"]


def test_a_latin_scenario_narrowed_to_the_baseline_still_has_a_plan() -> None:
    """One arm alone is one trial per round in any order."""
    plan = make_plan(narrow(scenario("latin"), arms=("off",)))
    assert [trial.slug for trial in plan] == ["r01-1-off", "r02-1-off", "r03-1-off", "r04-1-off"]


@pytest.mark.parametrize(
    ("only", "rounds", "arms", "expected"),
    [
        (
            ("P65",),
            None,
            (),
            "--only: found 'P65'; allowed: warm, P64_h0, P64_h50, DEC (or a pattern that fits one)",
        ),
        (
            ("DEC", "Q*"),
            None,
            (),
            "--only: found 'Q*'; allowed: warm, P64_h0, P64_h50, DEC (or a pattern that fits one)",
        ),
        ((), 0, (), "--rounds: found 0; allowed: 1 or more"),
        ((), None, ("no",), "--arms: found 'no'; allowed: off, on, other"),
        (
            (),
            None,
            ("on",),
            "--arms: found no baseline; allowed: a choice with the baseline arm, off",
        ),
    ],
)
def test_what_the_scenario_does_not_hold_is_a_usage_error(
    only: tuple[str, ...], rounds: int | None, arms: tuple[str, ...], expected: str
) -> None:
    """The message names the option, what was asked and what there is."""
    with pytest.raises(UsageError) as caught:
        narrow(scenario(), only, rounds, arms)
    assert str(caught.value) == expected
