# ruff: noqa: RUF001 - the report prints a real minus sign and a real dash
import json
import os
from pathlib import Path

import pandas as pd
import pytest
from report_tables import cells_by_pandas, rendered, rows
from synthetic_run import SyntheticRun

from harness.errors import RecordError
from harness.report import build_report, render_markdown
from harness.store import RunStore

GOLDEN = Path(__file__).parent.parent / "golden" / "report.md"
DROPPED = ("r03-1-cache_off", "AUD_h94_c2", "stage-0 hit rate 71.0% is outside the ideal 93.0% ± 2.0%")


def test_report_is_the_golden_one(tmp_path):
    """The report of the synthetic run is, byte for byte, the one under review in tests/golden."""
    text = rendered(tmp_path / "run", invalid=(DROPPED,))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_main_table_can_be_recomputed_from_the_files(tmp_path):
    """Every number of the main table follows from the JSON files with plain pandas."""
    root = SyntheticRun(tmp_path / "run").write()
    report = render_markdown(build_report(RunStore.open(root)), ())
    cells = cells_by_pandas(root)
    shown = rows(report, "Request throughput against the baseline")
    assert [row["bench"] for row in shown] == ["P1024_h0_c4", "P1024_h94_c4", "DEC100_c4", "AUD_h94_c2"]
    for row in shown:
        mine = cells[cells.bench == row["bench"]].set_index(["round", "arm"])
        by_round = mine.request_throughput.unstack("arm")
        ratio = by_round.cache_on.mean() / by_round.cache_off.mean() - 1
        each = by_round.cache_on / by_round.cache_off - 1
        hit = mine.xs("cache_on", level="arm").hit_rate.map(lambda one: one["hits"] / one["queries"])
        assert hit.nunique() == 1
        assert row["stage-0 hit"] == f"{100 * hit.iloc[0]:.1f}%"
        assert row["cache_off (req/s)"] == f"{by_round.cache_off.mean():#.4g}"
        expected = f"{100 * ratio:+.1f}%"
        if row["bench"].startswith("AUD"):
            ttfp = mine.median_audio_ttfp_ms.unstack("arm").mean()
            expected += f"; TTFP {100 * (ttfp.cache_on / ttfp.cache_off - 1):+.1f}%"
        assert row["cache_on, ratio of means"] == expected.replace("-", "−")
        assert row["per-round range"] == f"{100 * each.min():+.1f}% .. {100 * each.max():+.1f}%".replace("-", "−")
        assert row["rounds"] == str(len(by_round))


def test_intervals_of_the_main_table_follow_the_textbook(tmp_path):
    """The geometric mean and its interval are exp of mean and mean ± t s / sqrt(n) of the log ratios; t is 3.18245."""
    root = SyntheticRun(tmp_path / "run").write()
    report = render_markdown(build_report(RunStore.open(root)), ())
    cells = cells_by_pandas(root)
    # Python's own, so that not even numpy's logarithm is shared.
    from math import exp, log

    for row in rows(report, "Request throughput against the baseline"):
        by_round = cells[cells.bench == row["bench"]].pivot_table("request_throughput", "round", "arm")
        logs = (by_round.cache_on / by_round.cache_off).map(log)
        half = 3.18245 * logs.std() / 2
        low, centre, high = (100 * (exp(logs.mean() + side * half) - 1) for side in (-1, 0, 1))
        assert row["geometric mean (95% interval)"] == f"{centre:+.1f}% ({low:+.1f}% .. {high:+.1f}%)".replace("-", "−")


def test_parity_table_can_be_recomputed_from_the_files(tmp_path):
    """Equal and different texts of all rounds are those of the request files, joined by index."""
    root = SyntheticRun(tmp_path / "run").write()
    report = render_markdown(build_report(RunStore.open(root)), ())
    frames = []
    for file in root.glob("trials/*/*.requests.jsonl"):
        number, _, arm = file.parent.name.split("-", 2)
        frame = pd.read_json(file, lines=True)
        frames.append(frame.assign(round=number, arm=arm, bench=file.name.split(".")[0]))
    texts = pd.concat(frames).pivot_table("text", ["bench", "round", "index"], "arm", aggfunc="first")
    equal = (texts.cache_off == texts.cache_on).groupby("bench").agg(["sum", "size"])
    shown = [row for row in rows(report, "Output parity") if row["rounds"] == "all rounds (4)"]
    assert len(shown) == 4
    for row in shown:
        expected = equal.loc[row["bench"]]
        assert (int(row["text equal"]), int(row["compared"])) == (expected["sum"], expected["size"])
        assert int(row["text differs"]) == expected["size"] - expected["sum"]


def test_same_records_give_the_same_bytes(tmp_path):
    """Two reads of the same records, and records at another place, give identical reports."""
    one, two = rendered(tmp_path / "one"), rendered(tmp_path / "two")
    assert one == two


def test_dropped_pair_is_named_with_trial_and_log(tmp_path):
    """A cell that does not count takes its pair out, and the report says which, why and where to look."""
    report = rendered(tmp_path / "run", invalid=(DROPPED,))
    (note,) = [row for row in rows(report, "Caveats and dropped pairs") if row["what"] == "dropped pair"]
    assert note["trial"] == "r03-1-cache_off"
    assert note["log"] == "`trials/r03-1-cache_off/server.log`"
    assert "71.0% is outside" in note["why"]
    assert "1 of 16 measured pairs did not count (AUD_h94_c2)" in report
    row = rows(report, "Request throughput against the baseline")[-1]
    assert (row["bench"], row["rounds"]) == ("AUD_h94_c2", "3")


def test_caveat_of_a_log_is_printed_with_its_line(tmp_path):
    """Known trouble in a server's log stands in the report with its place in the log."""
    (note,) = rows(rendered(tmp_path / "run"), "Caveats and dropped pairs")
    assert note["why"] == "preemption: 2 requests were preempted (2 times)"
    assert note["log"] == "`trials/r02-1-cache_on/server.log:17`"


def test_unfinished_run_says_so_loudly(tmp_path):
    """A killed run still reports, and its first line says how much of it there is."""
    run = SyntheticRun(tmp_path / "run")
    missing = tuple(trial.slug for trial in run.plan[3:])
    report = rendered(tmp_path / "run", skip=missing)
    assert "> **UNFINISHED RUN: 3 of 8 trials have a record." in report
    assert "r02-2-cache_off, r03-1-cache_off" in report
    assert {row["rounds"] for row in rows(report, "Request throughput against the baseline")} == {"1"}
    assert "Every verdict is advisory" in report


def test_a_trial_that_began_and_left_no_record_is_named_with_its_log(tmp_path):
    """A server that never came up has a log and no more: the caveats lead there; a trial not begun is no caveat."""
    run = SyntheticRun(tmp_path / "run")
    begun, untouched = (trial.slug for trial in run.plan[6:])
    rendered(tmp_path / "run", skip=(begun, untouched))
    folder = tmp_path / "run" / "trials" / begun
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.log").write_text("no such device\n", encoding="utf-8")
    notes = rows(render_markdown(build_report(RunStore.open(tmp_path / "run")), ()), "Caveats and dropped pairs")
    (note,) = [note for note in notes if note["what"] == "no record"]
    assert note["trial"] == begun
    assert note["log"] == f"`trials/{begun}/server.log`"
    assert not any(untouched in note["trial"] for note in notes)


def test_run_without_a_single_trial_reports(tmp_path):
    """A run killed before its first trial ended has a report that says nothing was measured, and no number."""
    run = SyntheticRun(tmp_path / "run")
    report = rendered(tmp_path / "run", skip=tuple(trial.slug for trial in run.plan))
    assert "0 of 8 trials have a record" in report
    assert "4 are without a single valid round" in report
    assert {row["cache_on, ratio of means"] for row in rows(report, "Request throughput against the baseline")} == {"—"}


def test_failed_trial_drops_its_round_and_is_named(tmp_path):
    """A trial whose server died gives no number to any bench, and heads the list of caveats."""
    report = rendered(tmp_path / "run", failed=("r01-2-cache_on",))
    notes = rows(report, "Caveats and dropped pairs")
    assert (notes[0]["what"], notes[0]["trial"]) == ("failed trial", "r01-2-cache_on")
    assert sum(note["what"] == "dropped pair" for note in notes) == 4
    assert {row["rounds"] for row in rows(report, "Request throughput against the baseline")} == {"3"}


def test_off_arm_is_proved_off(tmp_path):
    """The report states the baseline's own queries, counted, not assumed."""
    assert (
        "`cache_off`: 0 queries and 0 hits in the stage-0 prefix cache over all 16 reported cells "
        "(verified from the server's counters)."
    ) in rendered(tmp_path / "run")


def test_p99_is_withheld_under_a_hundred_requests(tmp_path):
    """Only the bench of 120 prompts has a 99th percentile."""
    shown = rows(rendered(tmp_path / "run"), "Normalised throughput and latency")
    told = {row["bench"] for row in shown if row["p99 E2EL (ms)"] != "withheld (n < 100)"}
    assert told == {"DEC100_c4"}


def test_manifest_with_a_foreign_scenario_is_refused(tmp_path):
    """A manifest whose scenario this version cannot read gives one message with file and key."""
    root = SyntheticRun(tmp_path / "run").write()
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["scenario"]["rounds"] = "four"
    (root / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RecordError, match=r"manifest\.json of synthetic.*scenario\.rounds"):
        build_report(RunStore.open(root))
