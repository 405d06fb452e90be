"""`bench compare` on two real runs of two commits of the server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from bench_process import bench, only_run
from lying_scenario import write_lies

pytestmark = pytest.mark.slow


def git(folder: Path, *words: str) -> str:
    who = {f"GIT_{role}_{key}": "a" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **who}).stdout.strip()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, str]]:
    """A run of each of two commits, and the commit."""
    folder = tmp_path_factory.mktemp("two")
    scenario = write_lies(folder, ["none"])
    checkout = folder / "checkout"
    git(checkout, "init", "--quiet")
    found = []
    for number in (1, 2):
        (checkout / "change.txt").write_text(str(number))
        (checkout / ".gitignore").write_text("__pycache__/\n")
        git(checkout, "add", ".")
        git(checkout, "commit", "--quiet", "-m", str(number))
        done = bench("run", scenario, "--out", folder / f"results{number}")
        assert "Traceback" not in done.stderr
        found.append((only_run(folder / f"results{number}"), git(checkout, "rev-parse", "HEAD")))
    return found


def test_runs_of_two_commits_are_compared_and_told_apart(runs: list[tuple[Path, str]]) -> None:
    """Each arm's commit is listed with both values; nothing refuses the comparison; both arms have their change."""
    (one, before), (two, after) = runs
    done = bench("compare", one, two, "--json")
    data = json.loads(done.stdout)
    commits = {
        each["what"]: (each["first"], each["second"]) for each in data["differences"] if "commit" in each["what"]
    }
    assert {f"arm {arm}: commit of server": (before, after) for arm in ("off", "on")}.items() <= commits.items()
    assert not any(each["blocks"] for each in data["differences"])
    if done.returncode == 0:
        assert {row["arm"] for row in data["absolute"]} == {"off", "on"}
    else:  # the client was starved by a busy machine, and no round is left
        assert done.returncode == 4
        assert all(row["change"] is None for row in (*data["absolute"], *data["ratios"]))
    text = bench("compare", one, two).stdout
    assert f"| arm on: commit of server | {before} | {after} | no |" in text


def test_another_scenario_is_refused_by_its_keys(runs: list[tuple[Path, str]]) -> None:
    """Exit code 2, one line a key; --force compares and says so."""
    (one, _), (two, _) = runs
    manifest = json.loads((two / "manifest.json").read_text())
    changed = two.parent / "changed"
    changed.mkdir()
    for name in ("scenario.yaml", "trials"):
        (changed / name).symlink_to(two / name)
    manifest["scenario"]["benches"][0]["concurrency"] = 3
    (changed / "manifest.json").write_text(json.dumps(manifest))
    refused = bench("compare", one, changed)
    assert refused.returncode == 2
    assert "scenario benches.none.concurrency: 2 and 3" in refused.stderr
    assert "--force" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "yes: compared by force" in bench("compare", one, changed, "--force").stdout
