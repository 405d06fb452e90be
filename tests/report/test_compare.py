"""Two runs compared: what differs is listed, what must be the same is refused, changes are recomputed by hand."""

import json
import math

import numpy as np
import pytest
import scipy.stats
from synthetic_run import THROUGHPUT, SyntheticRun
from typer.testing import CliRunner

from harness.cli import app
from harness.compare import Difference, compare_runs
from harness.compare_text import render_comparison
from harness.errors import UsageError
from harness.store import RunStore


def run(path, edit=None, edit_trials=None, **changes):
    """A run's store, its manifest and trials edited as JSON."""
    root = SyntheticRun(path, **changes).write()
    files = [(root / "manifest.json", edit), *((file, edit_trials) for file in root.glob("trials/*/trial.json"))]
    for file, change in files:
        if change is not None:
            record = json.loads(file.read_text())
            change(record)
            file.write_text(json.dumps(record))
    return RunStore.open(root)


def put(*path):
    """An edit that sets a nested key."""
    *where, key, value = path

    def edit(record):
        for part in where:
            record = record[part]
        record[key] = value

    return edit


def slower(root, bench, factor):
    for file in root.glob(f"trials/*cache_on/{bench}.json"):
        cell = json.loads(file.read_text())
        cell["request_throughput"] *= factor(cell["cell"]["round"])
        file.write_text(json.dumps(cell))


def test_other_commits_are_listed_and_compared(tmp_path):
    """Comparing two revisions is what this is for: commit and dirtiness are differences that refuse nothing."""
    one = run(tmp_path / "one", commit="a" * 40)
    two = run(tmp_path / "two", commit="b" * 40, dirty=True)
    found = compare_runs(one, two)
    assert found.differences == (Difference("commit of harness", "a" * 40, "b" * 40 + " with local changes", False),)
    assert found.compared
    text = render_comparison(found)
    assert f"| commit of harness | {'a' * 40} | {'b' * 40} with local changes | no |" in text


def test_the_commit_of_an_arms_server_is_listed(tmp_path):
    """The checkout that an arm's server ran from is named with its arm."""

    def tree(commit):
        return put("sources", [{"name": "server", "path": "/s", "commit": commit, "dirty": False}])

    one = run(tmp_path / "one", edit_trials=tree("a" * 40))
    two = run(tmp_path / "two", edit_trials=tree("b" * 40))
    assert [each.what for each in compare_runs(one, two).differences] == [
        "arm cache_off: commit of server",
        "arm cache_on: commit of server",
    ]


WEIGHTS = {
    "id": "m", "path": "/m", "revision": None, "config_sha256": "c" * 64, "weights_sha256": "d" * 64, "weights_bytes": 1
}  # fmt: skip
GPU = {
    "name": "H200", "uuid": None, "driver": "1", "memory_bytes": 1, "sm_clock": 1, "sm_clock_max": 1980,
    "memory_clock": 1, "power_limit": 700.0, "utilisation": 0, "temperature": 30, "throttle": [], "processes": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ({"edit": put("host", "cpu_model", "A")}, {"edit": put("host", "cpu_model", "B")}, "host class"),
        (
            {"edit": put("tokenizer_sha256", "1" * 64)},
            {"edit": put("tokenizer_sha256", "2" * 64)},
            "sha256 of the tokenizer",
        ),
        ({"edit": put("versions", "aiohttp", "1")}, {"edit": put("versions", "aiohttp", "2")}, "version of aiohttp"),
        (
            {"edit_trials": put("versions", "vllm", "0.30.0")},
            {"edit_trials": put("versions", "vllm", "0.32.0")},
            "arm cache_off: version of vllm",
        ),
        (
            {"edit_trials": put("model", WEIGHTS)},
            {"edit_trials": put("model", {**WEIGHTS, "weights_sha256": "e" * 64})},
            "arm cache_on: sha256 of the weights' index and sizes",
        ),
        (
            {"edit_trials": put("gpus", [GPU])},
            {"edit_trials": put("gpus", [{**GPU, "power_limit": 500.0}])},
            "arm cache_on: power cap of GPU 0",
        ),
        ({"edit": put("scenario", "model", "m")}, {}, "scenario model"),
        ({"edit": put("scenario", "benches", 1, "prompts", 9)}, {}, "scenario benches.P1024_h0_c4.prompts"),
        ({"edit": put("scenario", "arms", "cache_on", "args", {"x": 1})}, {}, "scenario arms.cache_on.args.x"),
    ],
)  # fmt: skip
def test_another_set_up_is_refused_and_named(tmp_path, first, second, what):
    """What the change of code would be mistaken for refuses the comparison; with force it is listed all the same."""
    one, two = run(tmp_path / "one", **first), run(tmp_path / "two", **second)
    with pytest.raises(UsageError, match="allowed: runs that match, or --force") as refused:
        compare_runs(one, two)
    assert f"\n  {what}: " in str(refused.value)
    forced = compare_runs(one, two, force=True)
    assert what in [each.what for each in forced.differences if each.blocks]
    assert "yes: compared by force" in render_comparison(forced)


@pytest.mark.parametrize(
    "edit",
    [
        put("scenario", "rounds", 3),
        put("scenario", "description", "another"),
        put("scenario", "server", "source", "/elsewhere"),
        put("host", "kernel", "9.9"),
        put("versions", "matplotlib", "9"),
        put("versions", "omni-prefix-bench", "9"),
    ],
)
def test_what_changes_no_measurement_is_only_listed(tmp_path, edit):
    """More rounds, another place of the code, the library that draws: listed."""
    found = compare_runs(run(tmp_path / "one"), run(tmp_path / "two", edit=edit))
    assert [each.blocks for each in found.differences] == [False]


def test_what_an_older_run_did_not_record_refuses_nothing(tmp_path):
    """Unknown is not different: it is listed as unknown."""
    one, two = run(tmp_path / "one"), run(tmp_path / "two", edit_trials=put("model", WEIGHTS))
    found = compare_runs(one, two)
    assert {(each.first, each.blocks) for each in found.differences} == {("unknown", False)}


def test_the_change_is_that_of_the_ratio_between_arms(tmp_path):
    """Ratios are geometric means; their change has Welch's interval on the logarithms, recomputed with scipy."""
    one, two = run(tmp_path / "one"), run(tmp_path / "two")
    slower(two.path, "P1024_h94_c4", lambda number: 0.9 + 0.002 * number)
    (row,) = [
        each
        for each in compare_runs(one, two).ratios
        if (each.bench, each.metric) == ("P1024_h94_c4", "request_throughput")
    ]
    off, on = (np.array(THROUGHPUT["P1024_h94_c4"][arm]) for arm in ("cache_off", "cache_on"))
    before = np.log(on / off)
    after = before + np.log(0.9 + 0.002 * np.arange(1, 5))
    test = scipy.stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    assert row.first.value == pytest.approx(math.exp(before.mean()) - 1)
    assert row.second.value == pytest.approx(math.exp(after.mean()) - 1)
    assert row.change == pytest.approx(math.exp(after.mean() - before.mean()) - 1)
    assert (row.interval.low, row.interval.high) == pytest.approx((math.exp(test.low) - 1, math.exp(test.high) - 1))
    assert (row.first.rounds, row.second.rounds) == (4, 4)


def test_a_change_of_both_arms_is_seen_in_each_arm(tmp_path):
    """Where both arms lost a tenth the ratio is the same, and the arms' own rows say what happened."""
    one, two = run(tmp_path / "one"), run(tmp_path / "two")
    for file in two.path.glob("trials/*/DEC100_c4.json"):
        cell = json.loads(file.read_text())
        cell["request_throughput"] *= 0.9
        file.write_text(json.dumps(cell))
    found = compare_runs(one, two)
    (ratio,) = [r for r in found.ratios if (r.bench, r.metric) == ("DEC100_c4", "request_throughput")]
    assert ratio.change == pytest.approx(0.0, abs=1e-12)
    own = {r.arm: r for r in found.absolute if r.bench == "DEC100_c4"}
    assert own.keys() == {"cache_off", "cache_on"}
    for arm, row in own.items():
        assert row.first.value == pytest.approx(np.mean(THROUGHPUT["DEC100_c4"][arm]))
        assert row.change == pytest.approx(-0.1)


def test_rounds_that_do_not_count_are_left_out(tmp_path):
    """An invalid cell takes its pair out of the ratio, and itself out of its arm's own row."""
    two = run(tmp_path / "two", invalid=(("r01-2-cache_on", "DEC100_c4", "why"),))
    found = compare_runs(run(tmp_path / "one"), two)
    (ratio,) = [r for r in found.ratios if (r.bench, r.metric) == ("DEC100_c4", "request_throughput")]
    assert (ratio.first.rounds, ratio.second.rounds) == (4, 3)
    assert {r.arm: r.second.rounds for r in found.absolute if r.bench == "DEC100_c4"} == {"cache_off": 4, "cache_on": 3}


def test_an_unfinished_run_is_told_first_and_is_invalid(tmp_path):
    """As its report says it, in text and JSON; whatever can be compared still is, and the exit code is 4."""
    one, two = run(tmp_path / "one"), run(tmp_path / "two", skip=("r04-1-cache_on", "r04-2-cache_off"))
    done = CliRunner().invoke(app, ["compare", str(one.path), str(two.path)])
    assert done.exit_code == 4
    assert done.stdout.splitlines()[0] == (
        "UNFINISHED RUN two: 6 of 8 trials have a record. Everything below rests on those alone. "
        "Not run: r04-1-cache_on and r04-2-cache_off."
    )
    assert "| P1024_h0_c4 | cache_on |" in done.stdout
    data = CliRunner().invoke(app, ["compare", str(two.path), str(one.path), "--json"])
    assert data.exit_code == 4
    lacks = {"run": "two", "planned": 8, "missing": ["r04-1-cache_on", "r04-2-cache_off"]}
    assert json.loads(data.stdout)["unfinished"] == [lacks]


def without(*path):
    """An edit that takes a nested key away."""
    *where, key = path

    def edit(record):
        for part in where:
            record = record[part]
        del record[key]

    return edit


@pytest.mark.parametrize(
    ("edit", "what", "more"),
    [
        (without("scenario", "benches", 3), "benches.DEC100_c4", {}),
        (without("scenario", "arms", "cache_new"), "arms.cache_new", {"third_arm": True}),
    ],
    ids=["bench", "arm"],
)
def test_what_only_one_run_has_is_said_to_be_missing(tmp_path, edit, what, more):
    """Not a piece of JSON against null; and what --force would do about it."""
    one, two = run(tmp_path / "one", **more), run(tmp_path / "two", edit=edit, **more)
    for runs, says in (((one, two), "not in the second run"), ((two, one), "not in the first run")):
        with pytest.raises(UsageError) as refused:
            compare_runs(*runs)
        assert str(refused.value).endswith(
            "found 1 difference in what must be the same; allowed: runs that match, or --force, which compares what "
            f"both have\n  scenario {what}: {says}"
        )
        forced = compare_runs(*runs, force=True)
        cells = ["there", says] if "second" in says else [says, "there"]
        assert f"| scenario {what} | {' | '.join(cells)} | yes: compared by force |" in render_comparison(forced)
        assert {row.bench for row in forced.ratios if row.change is not None} >= {"P1024_h0_c4", "AUD_h94_c2"}


def test_exit_codes(tmp_path):
    """0 where anything could be compared, 4 where no round counts in both, and JSON has the same rows."""
    one, two = run(tmp_path / "one", one_arm=True, rounds=1), run(tmp_path / "two", one_arm=True, rounds=1)
    done = CliRunner().invoke(app, ["compare", str(one.path), str(two.path), "--json"])
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert [(row["bench"], row["arm"], row["change"]) for row in data["absolute"]] == [
        (bench, "cache_off", 0.0) for bench in ("P1024_h0_c4", "P1024_h94_c4", "DEC100_c4", "AUD_h94_c2")
    ]
    dead = run(tmp_path / "dead", one_arm=True, rounds=1, failed=("r01-1-cache_off",))
    assert CliRunner().invoke(app, ["compare", str(one.path), str(dead.path)]).exit_code == 4
