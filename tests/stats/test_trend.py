"""The trend: a night that changed is told of once, and only when a second night says the same."""

from pathlib import Path

import pytest

from harness.errors import RecordError
from harness.gate import Changes
from harness.trend import Night, Point, append, new_alarms, points_of, read_series, series_path

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
