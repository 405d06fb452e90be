"""More rounds: pairs that did not count are replaced, and an interval that is too wide gets more, up to a bound."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from cell_factory import make_pairs

from harness.errors import ScenarioError
from harness.extend import half_width, more_rounds, until_met
from harness.pairs import Pair
from harness.plan import make_plan
from harness.records import Extension
from harness.scenario import Scenario, load_scenario
from harness.stats import Interval, compare

FILE = """\
schema: 1
name: x
model: m
server: {kind: tiny-omni}
arms: {cache_off: {baseline: true}, cache_on: {}}
rounds: 4
"""
TABLE = """\
workloads:
  - dataset: random
    table: |
      name  shared_prefix random_len output range_ratio concurrency prompts seed
      P1024 0             16         2      0.0         1           2       1
"""
STEADY = [10.0, 10.0, 10.0, 10.0]


def scenario(folder, text: str = "") -> Scenario:
    path = folder / "x.yaml"
    path.write_text(f"{FILE}{text}{TABLE}")
    return load_scenario(path)


def dropped(pairs: list[Pair], *rounds: int) -> list[Pair]:
    return [replace(pair, reasons=("broken",)) if pair.round in rounds else pair for pair in pairs]


def extension(reason: str, *rounds: int) -> Extension:
    return Extension(rounds=rounds, reason=reason, why="", at="2026-01-01T00:00:00Z")  # type: ignore[arg-type]


def test_rounds_that_all_count_are_enough(tmp_path) -> None:
    """Without `until` and without a dropped pair nothing is added."""
    assert more_rounds(scenario(tmp_path), 4, (), make_pairs(STEADY, STEADY)) is None


def test_a_dropped_pair_is_replaced_and_named(tmp_path) -> None:
    """One round more, whose reason names the round and the row."""
    more = more_rounds(scenario(tmp_path), 4, (), dropped(make_pairs(STEADY, STEADY), 2))
    assert more is not None
    assert (more.count, more.reason) == (1, "replacement")
    assert "round 2" in more.why
    assert "P1024 cache_on" in more.why


def test_a_replacement_that_fails_too_is_replaced_up_to_the_bound(tmp_path) -> None:
    """Two by default, over the whole run; after that the run stays short."""
    pairs = dropped(make_pairs([*STEADY, 10.0], [*STEADY, 10.0]), 2, 5)
    second = more_rounds(scenario(tmp_path), 5, [extension("replacement", 5)], pairs)
    assert second is not None
    assert second.count == 1
    third = dropped(make_pairs([*STEADY, 10.0, 10.0], [*STEADY, 10.0, 10.0]), 2, 5, 6)
    assert more_rounds(scenario(tmp_path), 6, [extension("replacement", 5), extension("replacement", 6)], third) is None
    none = scenario(tmp_path, "validity: {replace_rounds: 0}\n")
    assert more_rounds(none, 4, (), dropped(make_pairs(STEADY, STEADY), 2)) is None


def test_what_never_counted_is_not_tried_again(tmp_path) -> None:
    """A bench that is invalid in every round fails by itself: another round would fail as well."""
    assert more_rounds(scenario(tmp_path), 4, (), dropped(make_pairs(STEADY, STEADY), 1, 2, 3, 4)) is None


def test_until_adds_pairs_of_rounds_while_the_interval_is_wide(tmp_path) -> None:
    """Two at a time, so that an abba order stays balanced, and never beyond max_rounds."""
    found = scenario(tmp_path, "until: {half_width: 0.01, max_rounds: 7}\n")
    wide = make_pairs(STEADY, [9.0, 11.0, 9.5, 10.5])
    more = more_rounds(found, 4, (), wide)
    assert more is not None
    assert (more.count, more.reason) == (2, "until")
    assert "P1024 cache_on" in more.why
    assert more_rounds(found, 6, [extension("until", 5, 6)], wide) is None
    assert until_met(found, [compare(wide, threshold=0.03)]) is False


def test_until_stops_when_every_interval_is_narrow(tmp_path) -> None:
    """Whatever the change is: a precise regression is as good as a precise gain."""
    found = scenario(tmp_path, "until: {half_width: 0.01, max_rounds: 12}\n")
    narrow = make_pairs(STEADY, [5.0, 5.01, 4.99, 5.0])
    assert more_rounds(found, 4, (), narrow) is None
    assert until_met(found, [compare(narrow, threshold=0.03)]) is True


def test_a_half_width_is_relative_to_its_centre() -> None:
    """The interval of a doubling is as narrow as that of no change."""
    for centre in (1.0, 2.0, 0.1):
        interval = Interval(centre / 1.01 - 1.0, centre * 1.01 - 1.0)
        assert half_width(interval) == pytest.approx(0.01)
    assert half_width(Interval(0.0, 0.0)) == 0.0
    assert math.isfinite(half_width(Interval(-0.5, 10.0)))


def test_more_rounds_only_append_to_a_plan(tmp_path) -> None:
    """The beginning of a longer plan is the shorter one, in every order."""
    for order in ("abba", "alternate", "random", "latin"):
        found = scenario(tmp_path, f"order: {order}\n")
        assert make_plan(found, 7)[:8] == make_plan(found)


def test_max_rounds_under_the_rounds_planned_is_refused(tmp_path) -> None:
    """The rule and the plan contradict each other."""
    with pytest.raises(ScenarioError, match=r"until.*found max_rounds 3, under the 4 rounds planned; allowed"):
        scenario(tmp_path, "until: {half_width: 0.01, max_rounds: 3}\n")
