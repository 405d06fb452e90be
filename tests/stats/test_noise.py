"""The noise floor: what the baseline against itself varies by, kept for later runs of the same load on such hosts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cell_factory import make_pairs

from harness.errors import RecordError
from harness.noise import (
    floors_by_row,
    floors_of,
    half_width,
    host_class,
    load_sha256,
    noise_for,
    noise_path,
    write_noise,
)
from harness.records import Host, NoiseFloor, NoiseRecord
from harness.scenario import Scenario, load_scenario
from harness.stats import compare, geometric_interval

HOST = Host(
    hostname="one", platform="Linux", kernel="6", cpu_model="A CPU", cpu_count=2, memory_bytes=2**33, python="3.11",
    load_1m=0.1,
)  # fmt: skip
FILE = """\
schema: 1
name: noisy
model: m
server: {kind: tiny-omni}
arms: {cache_off: {baseline: true}, cache_on: {env: {ARM: "on"}}, cache_new: {}}
rounds: 4
order: latin
workloads:
  - dataset: random
    table: |
      name  shared_prefix random_len output range_ratio concurrency prompts seed
      P1024 0             16         2      0.0         1           2       1
"""


def scenario(folder: Path, old: str = "", new: str = "") -> Scenario:
    path = folder / "x.yaml"
    path.write_text(FILE.replace(old, new) if old else FILE)
    return load_scenario(path)


def record(found: Scenario) -> NoiseRecord:
    floor = NoiseFloor(bench="P1024", deviation=0.03, rounds=4, run="noisy-aa")
    return NoiseRecord(
        host_class=host_class(HOST),
        scenario=found.name,
        measured_at="2026-01-01T00:00:00Z",
        loads={"P1024": load_sha256(found, "P1024")},
        floors=(floor,),
    )


def test_aa_is_the_baseline_and_itself(tmp_path: Path) -> None:
    """Two arms of one configuration, in abba order, whatever other arms the file has."""
    found = scenario(tmp_path, "latin", "aa")
    assert list(found.arms) == ["cache_off", "cache_off.again"]
    assert found.arms["cache_off.again"] == found.arms["cache_off"].model_copy(update={"baseline": False})
    assert found.baseline == "cache_off"
    assert Scenario.model_validate_json(json.dumps(found.resolved())) == found


def test_a_floor_is_the_root_mean_square_of_the_log_ratios() -> None:
    """About zero, which is their truth; under three rounds there is none."""
    steady, again = [10.0, 10.0, 10.0, 10.0], [10.4, 9.8, 10.1, 10.0]
    (floor,) = floors_of([compare(make_pairs(steady, again), threshold=0.03)], "run")
    assert floor.deviation == pytest.approx(np.sqrt(np.mean(np.log(np.array(again) / 10.0) ** 2)))
    assert (floor.rounds, floor.metric) == (4, "request_throughput")
    assert floors_of([compare(make_pairs(steady[:2], again[:2]), threshold=0.03)], "run") == ()


@pytest.mark.parametrize("measured", [4, 6, 12])
@pytest.mark.parametrize("rounds", [3, 4, 6, 12])
def test_runs_without_a_change_stay_within_the_floor(measured: int, rounds: int) -> None:
    """Of 4,000 pairs of an `aa` run and a later run of the same noise, 93 in 100 and more give `same`."""
    rng = np.random.default_rng(measured * 100 + rounds)
    first, later = (rng.normal(0.0, 0.05, (4_000, count)) for count in (measured, rounds))
    deviations = np.sqrt(np.mean(first**2, axis=1))
    unit = NoiseFloor(bench="b", deviation=1.0, rounds=measured, run="r")
    allowed = np.log1p(half_width(unit, rounds)) * deviations
    low, _, high = (np.log(bound) for bound in geometric_interval(np.exp(later)))
    assert np.mean((-allowed <= low) & (high <= allowed)) >= 0.93


def test_more_rounds_bring_the_floor_down() -> None:
    """It is that of the interval, not that of a single round; without an interval there is none."""
    floor = NoiseFloor(bench="b", deviation=0.05, rounds=6, run="r")
    widths = [half_width(floor, rounds) for rounds in (3, 4, 6, 12, 24)]
    assert widths == sorted(widths, reverse=True)
    assert half_width(floor, 1) == 0.0


def test_a_later_run_gets_the_floor_of_its_host_and_scenario(tmp_path: Path) -> None:
    """By class: another host name does not matter, another processor does; an aa run itself has none."""
    found = scenario(tmp_path)
    write_noise(noise_path(tmp_path, HOST, found.name), record(found))
    kept = noise_for(tmp_path, HOST.model_copy(update={"hostname": "two", "load_1m": 3.0}), found)
    assert floors_by_row(kept)["P1024", "request_throughput"].run == "noisy-aa"
    assert noise_for(tmp_path, HOST.model_copy(update={"cpu_model": "B CPU"}), found) is None
    assert noise_for(tmp_path, HOST, found.against_itself()) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [("1           2       1", "1           3       1"), ("kind: tiny-omni", "kind: tiny-omni, args: {num-blocks: 9}")],
    ids=["another bench", "another server"],
)
def test_a_floor_of_another_load_does_not_hold(tmp_path: Path, old: str, new: str) -> None:
    """A bench that was changed under its old name, or another server, has to be measured again."""
    before = scenario(tmp_path)
    write_noise(noise_path(tmp_path, HOST, before.name), record(before))
    assert noise_for(tmp_path, HOST, scenario(tmp_path, old, new)) is None


def test_another_arm_changes_no_floor(tmp_path: Path) -> None:
    """The floor is the baseline's."""
    before = scenario(tmp_path)
    write_noise(noise_path(tmp_path, HOST, before.name), record(before))
    assert noise_for(tmp_path, HOST, scenario(tmp_path, 'ARM: "on"', 'ARM: "other"')) is not None


def test_the_wider_of_threshold_and_floor_is_the_band() -> None:
    """The verdict goes by it: a change within what the host does by itself is the same."""
    pairs = make_pairs([10.0] * 4, [9.5, 9.52, 9.48, 9.5])
    assert compare(pairs, threshold=0.03).verdict == "slower"
    assert compare(pairs, threshold=0.03, floor=lambda _rounds: 0.10).verdict == "same"
    assert compare(pairs, threshold=0.03, floor=lambda _rounds: 0.01).band == compare(pairs, threshold=0.03).band


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """One message with the path."""
    path = noise_path(tmp_path, HOST, "noisy")
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(RecordError, match=r"noise/.*found no noise record"):
        noise_for(tmp_path, HOST, scenario(tmp_path))
