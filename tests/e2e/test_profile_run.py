"""A profile of stage 0: of its own pass, in the first round of each arm, and never in what is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_process import bench, cells, only_run, servers_of, write_scenario

from harness.report import build_report, render_markdown
from harness.scenario import load_scenario, narrow
from harness.telemetry.profile_shares import profile_shares

pytestmark = pytest.mark.slow


def with_profile(folder: Path, settings: str, **changes: int) -> Path:
    path = write_scenario(folder, **changes)
    path.write_text(path.read_text().replace("order: abba\n", f"order: abba\nprofile: {settings}\n"))
    return path


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One round of one small bench, profiled for two seconds."""
    folder = tmp_path_factory.mktemp("profiled")
    scenario = with_profile(folder, "{bench: MP2_c4, seconds: 2}")
    done = bench("run", scenario, "--only", "MP2_c4", "--out", folder / "results")
    assert done.returncode == 0, done.stderr
    assert servers_of(folder) == []
    return only_run(folder / "results")


def trial(run: Path, slug: str) -> dict:
    return json.loads((run / "trials" / slug / "trial.json").read_text())


def test_each_arm_is_profiled_once(profiled: Path) -> None:
    """The numbers in the record are those of the file in the trial's folder."""
    for slug in ("r01-1-cache_off", "r01-2-cache_on"):
        found = trial(profiled, slug)["profile"]
        if found["failure"] is not None and "may not read process" in found["failure"]:
            pytest.skip(f"this machine lets no process be traced: {found['failure']}")
        assert found["failure"] is None
        assert (found["bench"], found["reported"], found["file"]) == ("MP2_c4", False, "profile/MP2_c4.speedscope.json")
        assert found["passes"] >= 1
        shares = profile_shares((profiled / "trials" / slug / found["file"]).read_bytes())
        assert (shares.samples, shares.waiting) == (found["samples"], found["waiting"])
        assert [one.model_dump() for one in shares.cache] == found["cache"]
        assert shares.samples > 10
    on = trial(profiled, "r01-2-cache_on")["profile"]["cache"]
    assert {one["file"].split("/")[0] for one in on} == {"prefix_cache"}


def test_the_profiled_pass_is_not_among_the_measured(profiled: Path) -> None:
    """A trial has the cells and requests it would have had without it."""
    names = [(cell["cell"]["arm"], cell["cell"]["bench"]) for cell in cells(profiled)]
    assert sorted(names) == sorted((arm, name) for arm in ("cache_off", "cache_on") for name in ("warm", "MP2_c4"))
    for slug in ("r01-1-cache_off", "r01-2-cache_on"):
        assert trial(profiled, slug)["benches"] == ["warm", "MP2_c4"]
        # What other programs leave in /dev/shm meanwhile is told too.
        kinds = {caveat["kind"] for caveat in trial(profiled, slug)["caveats"]}
        assert kinds <= {"shared memory left"}


def test_the_report_shows_the_shares(profiled: Path) -> None:
    """Share by function and thread, recomputed from the record, with the flame graph's file beside."""
    report = (profiled / "report.md").read_text()
    section = report.split("## Profile of stage 0\n")[1].split("\n## ")[0]
    found = trial(profiled, "r01-2-cache_on")["profile"]
    assert "trials/r01-2-cache_on/profile/MP2_c4.speedscope.json" in section
    inside = sum(one["samples"] for one in found["cache"])
    assert f"{100 * inside / found['samples']:.1f}% of {found['samples']} samples are inside the cache" in section
    for one in found["cache"][:15]:
        share = f"{100 * one['samples'] / found['samples']:.1f}%"
        (row,) = [
            line
            for line in section.splitlines()
            if line.startswith(f"| cache_on | `{one['function'].replace('|', '')}` | {one['file']} | {one['thread']} |")
        ]
        assert row.endswith(f"| {one['samples']} | {share} |")


def test_without_the_profiler_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is not there is a caveat with one sentence, in the first round, which alone asks for it."""
    from harness import profiling
    from harness.errors import MissingDependency
    from harness.progress import Silent
    from harness.runner import Runner

    def absent() -> str:
        raise MissingDependency("py-spy is not installed: pip install 'omni-prefix-bench[profile]'")

    monkeypatch.setattr(profiling, "find_py_spy", absent)
    path = with_profile(tmp_path, "{bench: MP2_c4, seconds: 2}", rounds=2)
    scenario = narrow(load_scenario(path), ["MP2_c4"], arms=["cache_off"])
    result = Runner(scenario, path, Silent()).start(tmp_path / "results" / "run", ["bench"])
    assert result.failed == ()
    first, second = result.store.trials()
    assert first.profile is not None
    assert (first.profile.file, second.profile) == (None, None)
    why = "MP2_c4: py-spy is not installed: pip install 'omni-prefix-bench[profile]'"
    # What other programs leave in /dev/shm meanwhile is told too.
    said = [
        [(one.kind, one.message) for one in trial.caveats if one.kind != "shared memory left"]
        for trial in (first, second)
    ]
    assert said == [[("no profile", why)], []]
    report = render_markdown(build_report(result.store))
    assert f"no profile: {why}" in report
    assert "## Profile of stage 0" not in report


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ("{bench: NONE, seconds: 2}", ("profile.bench", "'NONE'", "MP2_c4")),
        ("{bench: MP2_c4, seconds: 0.5}", ("profile.seconds", "0.5")),
        ("{seconds: 5}", ("profile", "bench")),
    ],
)
def test_a_wrong_profile_gets_one_message(tmp_path: Path, settings: str, parts: tuple[str, ...]) -> None:
    """An unknown bench, too short a time, no bench: key, found, allowed."""
    done = bench("check", with_profile(tmp_path, settings))
    assert done.returncode == 2
    assert all(part in done.stderr for part in parts), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_run_narrowed_to_other_benches_has_no_profile(tmp_path: Path) -> None:
    """What was left out cannot be profiled; what was kept is."""
    scenario = load_scenario(with_profile(tmp_path, "{bench: MP2_c4, seconds: 2}"))
    assert narrow(scenario, ["P128*"]).profile is None
    assert narrow(scenario, ["MP2*"]).profile == scenario.profile
