"""The trend: a night that changed is told of once, and only when a second night says the same."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.errors import RecordError
from harness.gate import Changes
from harness.trend import Alarm, Night, Point, Series, append, new_alarms, points_of, read_series, series_path

NOISE = (0.001, -0.002, 0.0015, -0.001, 0.0, 0.002, -0.0005, 0.001)


def night(number: int, change: float, metric: str = "request_throughput") -> Night:
    point = Point(bench="DEC", arm="cache_on", metric=metric, change=change, error=0.002, rounds=4)
    return Night(at=f"2026-01-{number:02d}", run=f"night-{number}", commit=None, versions={}, points=(point,))


def play(path: Path, levels: list[float], metric: str = "request_throughput") -> dict[int, list[str]]:
    """Appends night after night, as `bench nightly` does; the alarms by the night that gave them."""
    given: dict[int, list[str]] = {}
    for number, level in enumerate(levels, start=1):
        append(path, [night(number, level + NOISE[number % len(NOISE)], metric)])
        alarms = new_alarms(read_series(path), threshold=0.03)
        append(path, alarms)
        if alarms:
            given[number] = [alarm.since for alarm in alarms]
    return given


def told(
    changes: Sequence[float] | NDArray[np.float64],
    *,
    threshold: float = 0.03,
    error: float = 0.005,
    metric: str = "request_throughput",
) -> dict[int, Alarm]:
    """The same in memory, with nothing added: the alarm that each night gave."""
    nights: list[Night] = []
    given: dict[int, Alarm] = {}
    for number, change in enumerate(changes, start=1):
        point = Point(bench="DEC", arm="cache_on", metric=metric, change=change, error=error, rounds=4)
        nights.append(Night(at="", run=f"night-{number}", commit=None, versions={}, points=(point,)))
        series = Series(Path(), tuple(nights), tuple(given.values()))
        for alarm in new_alarms(series, threshold=threshold):
            given[number] = alarm
    return given


def noisy(rng: np.random.Generator, levels: Sequence[float], spread: float) -> NDArray[np.float64]:
    """Nights that differ from their level by a normal share of this standard deviation."""
    return np.expm1(np.log1p(levels) + rng.normal(0.0, spread, len(levels)))


def test_a_regression_alarms_on_its_second_night_and_only_once(tmp_path: Path) -> None:
    """Two good nights, then slower ones: the fourth night tells of the third, later ones are silent."""
    assert play(tmp_path / "s.jsonl", [0.0, 0.0, -0.06, -0.06, -0.06, -0.06, -0.06]) == {4: ["night-3"]}


def test_one_bad_night_is_no_change(tmp_path: Path) -> None:
    """A single outlier never alarms."""
    assert play(tmp_path / "s.jsonl", [0.0, 0.0, 0.0, -0.20, 0.0, 0.0, 0.0]) == {}


def test_an_improvement_is_no_alarm(tmp_path: Path) -> None:
    """A change for the better is a new level, nothing more; a latency that rises is for the worse."""
    assert play(tmp_path / "up.jsonl", [0.0, 0.0, 0.10, 0.10, 0.10]) == {}
    assert play(tmp_path / "ttft.jsonl", [0.0, 0.0, 0.10, 0.10, 0.10], "median_ttft_ms") == {4: ["night-3"]}


def test_a_change_within_the_threshold_is_no_alarm(tmp_path: Path) -> None:
    """What nobody would act on is not told."""
    assert play(tmp_path / "s.jsonl", [0.0, 0.0, -0.01, -0.01, -0.01]) == {}


@pytest.mark.parametrize("metric", ["request_throughput", "median_ttft_ms"])
def test_steps_that_creep_are_told_of_when_they_add_up(tmp_path: Path, metric: str) -> None:
    """2.5 % every four nights: the second step makes it 5 %, over the threshold of 3, on its second night; the fourth
    makes it 5 % again since that was told."""
    sign = -1.0 if metric == "request_throughput" else 1.0
    levels = [(1.0 + sign * 0.025) ** (number // 4) - 1.0 for number in range(20)]
    assert play(tmp_path / "s.jsonl", levels, metric) == {10: ["night-9"], 18: ["night-17"]}


def test_a_little_every_night_is_told_of(tmp_path: Path) -> None:
    """One percent a night over twenty nights is 18 %: told of more than once, and soon for the first time."""
    given = play(tmp_path / "s.jsonl", [0.99**number - 1.0 for number in range(20)])
    assert min(given) <= 10
    assert len(given) >= 2


def test_a_level_that_was_told_of_is_the_next_reference(tmp_path: Path) -> None:
    """A regression that stays is told of once, also when the level then gets somewhat better and falls back."""
    levels = [0.0, 0.0, -0.10, -0.10, -0.10, -0.08, -0.08, -0.08, -0.10, -0.10, -0.10]
    assert play(tmp_path / "s.jsonl", levels) == {4: ["night-3"]}


def test_a_second_regression_is_told_too(tmp_path: Path) -> None:
    """Each change has an alarm of its own."""
    levels = [0.0, 0.0, -0.06, -0.06, -0.06, -0.15, -0.15, -0.15]
    assert play(tmp_path / "s.jsonl", levels) == {4: ["night-3"], 7: ["night-6"]}


@pytest.mark.parametrize("metric", ["request_throughput", "median_ttft_ms"])
@pytest.mark.parametrize(
    "levels",
    [[0.0] * 10 + [0.08] + [0.0] * 20, [0.08] + [0.0] * 20, [0.0] * 10 + [0.08, 0.0, 0.08] + [0.0] * 20],
    ids=["one", "the first", "two, not in a row"],
)
def test_a_lucky_night_is_no_level_to_fall_from(levels: list[float], metric: str) -> None:
    """A night far better than those around it makes the next ones no regression; nor is its mirror image one."""
    assert told(levels, metric=metric) == {}
    assert told([1.0 / (1.0 + level) - 1.0 for level in levels], metric=metric) == {}


def test_a_regression_that_spares_some_nights_is_told_of_once() -> None:
    """Ten percent, every third night none: one alarm, on the second of the first two bad nights in a row."""
    given = told([0.0] * 10 + [-0.10, 0.0, -0.10] * 10)
    assert {number: alarm.since for number, alarm in given.items()} == {14: "night-13"}
    assert given[14].before == pytest.approx(0.0, abs=1e-9)
    assert given[14].after == pytest.approx(-0.10)


def test_a_regression_that_comes_back_is_told_of_again() -> None:
    """Mended in between, it is a new one."""
    assert list(told([0.0] * 10 + [-0.10] * 5 + [0.0] * 10 + [-0.10] * 5)) == [12, 27]


@pytest.mark.parametrize("metric", ["request_throughput", "median_ttft_ms"])
@pytest.mark.parametrize("error", [0.01, 0.005])
def test_nights_that_differ_by_themselves_seldom_alarm(error: float, metric: str) -> None:
    """Two percent from night to night, less within one: under a tenth of steady series alarm in 45 nights."""
    rng = np.random.default_rng(2)
    alarmed = [bool(told(noisy(rng, [0.0] * 45, 0.02), error=error, metric=metric)) for _ in range(200)]
    assert sum(alarmed) < 20


@pytest.mark.parametrize(
    ("before", "step", "spread"), [(15, -0.10, 0.02), (10, -0.08, 0.02), (4, -0.10, 0.02), (10, -0.06, 0.01)]
)
def test_a_step_among_noisy_nights_is_told_of_once_and_soon(before: int, step: float, spread: float) -> None:
    """Over a threshold of 5 %: within a week in nine series of ten, within 30 nights in all but one in a hundred, and
    hardly ever twice; no night that is spared forbids it."""
    rng = np.random.default_rng(2)
    given = [
        told(noisy(rng, [0.0] * before + [step] * 30, spread), threshold=0.05, error=spread / 2) for _ in range(200)
    ]
    waited = [min((night - before for night in alarms if night > before), default=99) for alarms in given]
    assert np.quantile(waited, 0.9) <= 7
    assert sum(nights > 30 for nights in waited) <= 2
    assert sum(len(alarms) == 1 for alarms in given) >= 190


def test_noisy_nights_that_creep_are_told_of_when_they_add_up() -> None:
    """Two percent a week until a third is lost, over a threshold of 5 %, which the fourth week is the first to pass:
    told of first in the fourth to sixth as a rule, and at least four times on the way, which has room for seven."""
    rng = np.random.default_rng(3)
    levels = [0.98 ** (night // 7) - 1.0 for night in range(20 * 7)]
    given = [told(noisy(rng, levels, 0.02), threshold=0.05, error=0.01) for _ in range(30)]
    assert all(4 <= len(alarms) <= 8 for alarms in given)
    assert 21 < np.median([min(alarms) for alarms in given]) <= 42
    assert max(min(alarms) for alarms in given) <= 49


def test_a_write_that_was_cut_off_costs_its_line_only(tmp_path: Path) -> None:
    """The rest of a half-written line is dropped when the next one is added; every whole line stays."""
    path = tmp_path / "s.jsonl"
    append(path, [night(1, 0.0)])
    with path.open("a") as file:
        file.write('{"kind": "nig')
    assert len(read_series(path).nights) == 1
    append(path, [night(2, 0.0)])
    assert [one.run for one in read_series(path).nights] == ["night-1", "night-2"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    """File and line, one message."""
    path = tmp_path / "s.jsonl"
    append(path, [night(1, 0.0)])
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(RecordError, match=r"s\.jsonl:2: found no line of a series"):
        read_series(path)


def test_a_point_is_the_geometric_mean_of_its_rounds() -> None:
    """With its standard error in logs; one round has none, no round is no point."""
    points = points_of(
        [
            Changes("A", "on", "request_throughput", (1.1, 1.1)),
            Changes("B", "on", "request_throughput", (0.5,)),
            Changes("C", "on", "request_throughput", ()),
        ]
    )
    assert [point.bench for point in points] == ["A", "B"]
    assert points[0].change == pytest.approx(0.1)
    assert points[0].error == pytest.approx(0.0, abs=1e-12)
    assert points[1].error is None


def test_other_versions_are_another_series(tmp_path: Path) -> None:
    """A new torch starts a new file; the order in which versions are listed does not matter."""
    one = series_path(tmp_path, "s", "host", {"torch": "2.6", "python": "3.11"})
    assert one == series_path(tmp_path, "s", "host", {"python": "3.11", "torch": "2.6"})
    assert one != series_path(tmp_path, "s", "host", {"torch": "2.7", "python": "3.11"})
