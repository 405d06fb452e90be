# ruff: noqa: RUF001 - the report prints a real minus sign and a real dash
import json

import pandas as pd
import pytest
from report_tables import cells_by_pandas, rendered, rows, section
from synthetic_run import SyntheticRun

from harness.report import build_report, render_markdown
from harness.store import RunStore

WORK = "The output cache's own work"
DROPPED = ("r03-1-cache_off", "AUD_h94_c2", "stage-0 hit rate 71.0% is outside the ideal 93.0% ± 2.0%")


def test_rounds_can_be_recomputed_from_the_files(tmp_path):
    """Every round shows the two req/s of its cells and their ratio, as plain pandas reads them from the files."""
    root = SyntheticRun(tmp_path / "run").write()
    shown = rows(render_markdown(build_report(RunStore.open(root)), ()), "Rounds")
    cells = cells_by_pandas(root)
    assert [row["bench"] for row in shown] == ["P1024_h0_c4", "P1024_h94_c4", "DEC100_c4", "AUD_h94_c2"]
    for row in shown:
        by_round = cells[cells.bench == row["bench"]].pivot_table("request_throughput", "round", "arm")
        assert len(row) == 1 + len(by_round)
        for number, both in by_round.iterrows():
            expected = f"{both.cache_off:#.4g} → {both.cache_on:#.4g} ({both.cache_on / both.cache_off - 1:+.1%})"
            assert row[f"round {number}"] == expected.replace("-", "−")


def test_rounds_name_what_does_not_count(tmp_path):
    """A dropped pair keeps its values and says so; a round that still lacks a trial is not run."""
    report = rendered(tmp_path / "run", invalid=(DROPPED,), skip=("r04-1-cache_on",))
    audio = rows(report, "Rounds")[-1]
    assert audio["round 3"] == "1.240 → 1.310 (dropped)"
    assert audio["round 4"] == "not run"


def test_a_failed_trial_without_a_cell_has_a_dash(tmp_path):
    """A server that died before a bench leaves no number of it, and none is made up."""
    run = SyntheticRun(tmp_path / "run", failed=("r01-2-cache_on",))
    root = run.write()
    record = run.trial(next(trial for trial in run.plan if trial.slug == "r01-2-cache_on"))
    cut = record.model_copy(update={"benches": record.benches[:-1]})
    (root / "trials" / "r01-2-cache_on" / "trial.json").write_text(cut.model_dump_json())
    shown = rows(render_markdown(build_report(RunStore.open(root)), ()), "Rounds")
    assert shown[-1]["round 1"] == "1.250 → — (dropped)"


@pytest.mark.parametrize(
    ("resolved", "expected"),
    [
        ({}, "Nothing is simulated: every time, count and byte was measured"),
        ({"args": {"min-step-ms": 0}}, "Nothing is simulated: every time"),
        (
            {"args": {"min-step-ms": 25, "fault": "slow-step=0.05"}},
            "**Simulated**: a step of `cache_on` lasts at least 25 ms, as a device's would (`min-step-ms`). "
            "**On purpose**: `cache_on` ran with `fault: slow-step=0.05`. Every time, count and byte was measured",
        ),
        (
            {"args": {}, "deploy": {"stages": [{"stage_id": 0, "min_step_ms": 5}]}},
            "**Simulated**: a step of `cache_on` lasts at least 5 ms, as a device's would (`min-step-ms`). Every time",
        ),
    ],
)
def test_what_an_arm_was_told_to_pretend_is_said(tmp_path, resolved, expected):
    """A simulated time and a fault stand before anything else of where the numbers come from."""
    root = SyntheticRun(tmp_path / "run").write()
    for path in root.glob("trials/*-cache_on/trial.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "resolved": resolved}))
    report = render_markdown(build_report(RunStore.open(root)), ())
    assert expected in report.partition("## Provenance")[2]


def test_several_arms_have_their_own_rounds(tmp_path):
    """With two arms against the baseline, each bench has one row of rounds an arm."""
    shown = rows(rendered(tmp_path / "run", third_arm=True), "Rounds")
    assert [(row["bench"], row["arm"]) for row in shown[:2]] == [
        ("P1024_h0_c4", "cache_on"),
        ("P1024_h0_c4", "cache_new"),
    ]


def test_cache_work_can_be_recomputed_from_the_files(tmp_path):
    """Counts are means a round, buffered steps a share of steps, times a share of the benches' durations."""
    root = SyntheticRun(tmp_path / "run").write()
    shown = {row["bench"]: row for row in rows(render_markdown(build_report(RunStore.open(root)), ()), WORK)}
    cells = cells_by_pandas(root)
    cells = cells[(cells.arm == "cache_on") & cells.bench.isin(shown)]
    assert len(shown) == 4
    counts = {"rows_written_total": "rows written", "hit_tokens_total": "hit tokens", "steps_total": "steps"}
    times = {"copy_out_seconds_total": "copy-out (ms)", "write_seconds_total": "write (ms)"}
    checked = set()
    for name, row in shown.items():
        mine = cells[cells.bench == name]
        found = pd.DataFrame([one["delta"] for one in mine.metrics]).rename(columns=lambda key: key.split(":")[1])
        for key in found.columns:
            if key in counts:
                assert row[counts[key]] == f"{found[key].mean():.0f}"
            elif key in times:
                share = found[key].sum() / mine.duration.sum()
                assert row[times[key]] == f"{1000 * found[key].mean():.1f} ({share:.1%})"
            elif key == "buffered_steps_total":
                assert row["of them buffered"] == f"{found[key].sum() / found.steps_total.sum():.1%}"
            checked.add(key)
    assert checked > {*counts, *times, "buffered_steps_total"}
    # By hand: 50 ms and a tenth more a round is 57.5 ms, of 120 requests at 21 a second.
    assert shown["DEC100_c4"]["copy-out (ms)"] == "57.5 (1.0%)"


def test_cache_work_shows_only_what_was_published(tmp_path):
    """A series nobody published has no column, one that a bench lacks a dash, and the baseline without any no row."""
    shown = rows(rendered(tmp_path / "run"), WORK)
    assert {row["arm"] for row in shown} == {"cache_on"}
    assert not {"gather (ms)", "merge (ms)"} & shown[0].keys()
    assert shown[0]["copy-out (ms)"] == "—"
    assert shown[0]["of them buffered"] == "0.0%"


def test_a_series_missing_in_one_round_is_told(tmp_path):
    """A mean over fewer rounds than the row has names how many."""
    root = SyntheticRun(tmp_path / "run").write()
    file = root / "trials" / "r01-2-cache_on" / "DEC100_c4.json"
    text = file.read_text()
    assert "copy_out_seconds_total" in text
    file.write_text(text.replace("copy_out_seconds_total", "another_total"))
    shown = rows(render_markdown(build_report(RunStore.open(root)), ()), WORK)
    (row,) = [row for row in shown if row["bench"] == "DEC100_c4"]
    # 55, 60 and 65 ms, of 120 requests at 21.3, 20.7 and 21.1 a second.
    assert row["copy-out (ms)"] == "60.0 (1.1%) [3 of 4 rounds]"


def test_cache_work_of_a_dropped_round_is_left_out(tmp_path):
    """The cache's counters of a pair that does not count do not enter the means."""
    all_rounds = rows(rendered(tmp_path / "all"), WORK)[-1]["steps"]
    three = rows(rendered(tmp_path / "three", invalid=(DROPPED,)), WORK)[-1]["steps"]
    # 200 steps in round 1 and 20 more each round; without the third round's 240 the mean is 680 / 3.
    assert (all_rounds, three) == ("230", "227")


def test_without_the_cache_s_counters_the_section_is_left_out(tmp_path):
    """A server that publishes no counter of an output cache has no section on it."""
    assert WORK in rendered(tmp_path / "with")
    assert WORK not in rendered(tmp_path / "without", published=False)


@pytest.mark.parametrize(("others", "column"), [(True, True), (False, False)], ids=["one bench has it", "none has"])
def test_p99_that_nobody_has_is_one_sentence(tmp_path, monkeypatch, others, column):
    """A column of nothing but withheld percentiles becomes one sentence under the table."""
    import synthetic_run

    if not others:
        monkeypatch.setattr(synthetic_run, "SCENARIO", synthetic_run.SCENARIO.replace("120 ", "60 "))
    report = rendered(tmp_path / "run")
    shown = rows(report, "Normalised throughput and latency")
    assert ("p99 E2EL (ms)" in shown[0]) is column
    sentence = "99th percentiles are withheld: they need 100 requests a round."
    assert (sentence in section(report, "Normalised throughput and latency")) is not column


@pytest.mark.parametrize("one_arm", [False, True], ids=["two arms", "one arm"])
@pytest.mark.parametrize("benches", [None, "warm"], ids=["no valid cell", "no reported bench"])
def test_no_table_is_empty(tmp_path, monkeypatch, one_arm, benches):
    """A section that has no row is left out; that nothing counts is said on top and beside each bench."""
    import synthetic_run

    if benches is not None:
        lines = synthetic_run.SCENARIO.splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(("      P1024", "      DEC", "      AUD"))]
        text = "".join(kept[: len(kept) - 4])
        monkeypatch.setattr(synthetic_run, "SCENARIO", text)
    run = synthetic_run.SyntheticRun(tmp_path / "plan", one_arm=one_arm)
    invalid = tuple((trial.slug, bench.name, "late") for trial in run.plan for bench in run.scenario.benches)
    report = rendered(tmp_path / "run", one_arm=one_arm, invalid=invalid)
    rules = [line for line in report.split("\n\n") if line.splitlines()[-1].startswith("| ---")]
    assert rules == []
    assert "Normalised throughput and latency" not in report
    assert ("## Request throughput" in report) is (benches is None)


def test_parity_over_all_rounds_reads_as_words(tmp_path):
    """Rounds taken together are named so with their number, and audio as long as the other's is `equal`."""
    last = rows(rendered(tmp_path / "run"), "Output parity")[-1]
    assert (last["rounds"], last["audio seconds"]) == ("all rounds (4)", "equal")


def test_verdicts_are_aligned_as_words(tmp_path):
    """Of the main table's columns, bench and verdict are aligned left, the numbers right."""
    lines = section(rendered(tmp_path / "run"), "Request throughput against the baseline").splitlines()
    rule = next(line for line in lines if line.startswith("| ---")).strip("| ").split(" | ")
    assert rule == ["---", *["---:"] * 7, "---"]
