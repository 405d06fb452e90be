"""Night after night: gate, series, alarms and one exit code, from recorded runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from night_run import BOUND, night, policy

from harness.nightly import conclude, series_versions
from harness.trend import read_series
from harness.trend_figure import draw_series
from harness.trend_text import series_json

LENIENT = policy({**BOUND, "at_least": -0.90})
STRICT = policy(BOUND)


def test_a_regression_from_the_third_night_on_alarms_on_the_fourth_once(tmp_path: Path) -> None:
    """Two bad nights make it certain; the bound itself still holds, so the other nights pass."""
    codes, alarms = [], {}
    for number, slower in enumerate((0.0, 0.0, 0.2, 0.2, 0.2), start=1):
        end = conclude(night(tmp_path, number, slower), LENIENT, tmp_path)
        codes.append(end.exit_code)
        alarms[number] = {(alarm.bench, alarm.since) for alarm in end.alarms}
    assert codes == [0, 0, 0, 1, 0]
    assert [number for number, found in alarms.items() if found] == [4]
    assert {since for _, since in alarms[4]} == {"synthetic-20260103T000000Z"}
    assert ("P1024_h0_c4", "synthetic-20260103T000000Z") in alarms[4]
    (path,) = (tmp_path / "trend").glob("*.jsonl")
    series = read_series(path)
    assert len(series.nights) == 5
    assert {alarm.seen for alarm in series.alarms} == {"synthetic-20260104T000000Z"}


def test_a_bound_that_breaks_fails_each_night_it_does(tmp_path: Path) -> None:
    """The gate looks at one night, the alarm at the series."""
    codes = [
        conclude(night(tmp_path, number, slower), STRICT, tmp_path).exit_code
        for number, slower in enumerate((0.0, 0.0, 0.2, 0.2, 0.2), start=1)
    ]
    assert codes == [0, 0, 1, 1, 1]


def test_an_invalid_night_is_not_in_the_series(tmp_path: Path) -> None:
    """A server that died leaves nothing to trust: exit code 4, and the series stays as it was."""
    assert conclude(night(tmp_path, 1), STRICT, tmp_path).exit_code == 0
    bad = conclude(night(tmp_path, 2, failed=("r02-1-cache_on",)), STRICT, tmp_path)
    assert (bad.exit_code, bad.series, bad.alarms) == (4, None, ())
    (path,) = (tmp_path / "trend").glob("*.jsonl")
    assert len(read_series(path).nights) == 1


def test_a_night_counts_once(tmp_path: Path) -> None:
    """However often its run is concluded."""
    store = night(tmp_path, 1)
    for _ in range(2):
        end = conclude(store, STRICT, tmp_path)
    assert end.series is not None
    assert len(read_series(end.series).nights) == 1


def test_what_no_rule_bounds_gives_no_alarm(tmp_path: Path) -> None:
    """A rule that only reports asks for no alarm."""
    reported = policy({"metric": "request_throughput", "reported": True})
    ends = [conclude(night(tmp_path, n, slower), reported, tmp_path) for n, slower in enumerate((0, 0, 0.2, 0.2), 1)]
    assert [end.exit_code for end in ends] == [0, 0, 0, 0]


def test_a_series_goes_on_through_builds_of_a_release_and_of_what_is_tested(tmp_path: Path) -> None:
    """`0.30.0` and `0.30.0.dev3+g12ab` are one release; the project's own version is what is under test."""
    manifest = night(tmp_path, 1).manifest()
    versions = {"torch": "2.6.0+cpu", "vllm-omni": "0.30.0.dev3+g12ab", "omni-prefix-bench": "0.1.0"}
    found = series_versions(manifest.model_copy(update={"versions": versions}), ())
    assert found == {"torch": "2.6.0", "vllm-omni": "0.30.0"}


def test_a_series_is_drawn_and_told(tmp_path: Path) -> None:
    """The figure lies beside the series; the JSON has every night's change and the night that began a level."""
    for number, slower in enumerate((0.0, 0.0, 0.2, 0.2), start=1):
        end = conclude(night(tmp_path, number, slower), LENIENT, tmp_path)
    assert end.series is not None
    series = read_series(end.series)
    assert draw_series(series).read_bytes().startswith(b"\x89PNG")
    rows = {(row["bench"], row["metric"]): row for row in series_json(series)["rows"]}
    row = rows["DEC100_c4", "request_throughput"]
    assert row["change_points"] == ["synthetic-20260103T000000Z"]
    assert row["changes"][3] == pytest.approx((1 + row["changes"][0]) / 1.2 - 1)
