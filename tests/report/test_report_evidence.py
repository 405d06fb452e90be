# ruff: noqa: RUF001 - the report prints a real minus sign and a real dash
"""What the ratios rest on: uncertainty, second opinion, noise floor, latency tails, memory and what it bought."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from report_tables import cells_by_pandas, rendered, rows
from synthetic_run import GIB, THROUGHPUT, SyntheticRun

from harness.noise import half_width
from harness.records import Extension, MemoryPoint, NoiseFloor, NoiseRecord
from harness.report import build_report, render_markdown
from harness.store import RunStore


def percent(value: float) -> str:
    return f"{100 * value:+.1f}%".replace("-", "−")


def test_the_width_and_what_it_could_have_seen_follow_the_textbook(tmp_path: Path) -> None:
    """Half-width t s / sqrt(n) of the logs, and the change that such rounds call in four runs of five."""
    root = SyntheticRun(tmp_path / "run").write()
    cells = cells_by_pandas(root)
    report = render_markdown(build_report(RunStore.open(root)))
    for row in rows(report, "Uncertainty"):
        by_round = cells[cells.bench == row["bench"]].pivot_table("request_throughput", "round", "arm")
        logs = np.log(by_round.cache_on / by_round.cache_off)
        error = logs.sem()
        student = scipy.stats.t(len(logs) - 1)
        assert row["interval ±"] == f"{math.expm1(student.ppf(0.975) * error):.1%}"
        assert row["detectable change"] == f"{math.expm1((student.ppf(0.975) + student.ppf(0.8)) * error):.1%}"
        assert row["noise floor"] == "—"
    assert "`bench run --aa` measures it" in report


def test_six_rounds_get_a_second_opinion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hodges-Lehmann and sign flips stand beside the interval from six rounds on, and say so below."""
    four = rendered(tmp_path / "four")
    assert "sign-flip p" not in rows(four, "Uncertainty")[0]
    assert "needs 6 rounds" in four
    six = {bench: {arm: (*values, *values[:2]) for arm, values in arms.items()} for bench, arms in THROUGHPUT.items()}
    monkeypatch.setattr("synthetic_run.THROUGHPUT", six)
    shown = {row["bench"]: row for row in rows(rendered(tmp_path / "six", rounds=6), "Uncertainty")}
    quotients = np.array(six["DEC100_c4"]["cache_on"]) / np.array(six["DEC100_c4"]["cache_off"])
    walsh = [math.sqrt(one * two) for place, one in enumerate(quotients) for two in quotients[place:]]
    assert shown["DEC100_c4"]["Hodges-Lehmann"] == percent(float(np.median(walsh)) - 1)
    exact = scipy.stats.permutation_test(
        (np.log(quotients), np.zeros(6)), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
        vectorized=True,
    )  # fmt: skip
    assert float(shown["DEC100_c4"]["sign-flip p"]) == pytest.approx(exact.pvalue, abs=1e-4)


def with_floor(root: Path, deviation: float) -> RunStore:
    store = RunStore.open(root)
    floor = NoiseFloor(bench="DEC100_c4", deviation=deviation, rounds=6, run="aa-run")
    store.write_noise(NoiseRecord(host_class="h", scenario="s", measured_at="2026", loads={}, floors=(floor,)))
    return store


def test_the_noise_floor_is_named_where_it_is_the_wider(tmp_path: Path) -> None:
    """A slowdown within what the host does by itself is the same, and the report says by which run."""
    root = SyntheticRun(tmp_path / "run").write()
    before = {
        row["bench"]: row for row in rows(rendered(tmp_path / "plain"), "Request throughput against the baseline")
    }
    assert before["DEC100_c4"]["verdict"] == "slower"
    store = with_floor(root, 0.10)
    text = render_markdown(build_report(store))
    after = {row["bench"]: row for row in rows(text, "Request throughput against the baseline")}
    assert after["DEC100_c4"]["verdict"] == "same"
    shown = {row["bench"]: row for row in rows(text, "Uncertainty")}
    floor = store.noise().floors[0]
    assert shown["DEC100_c4"]["noise floor"] == f"±{100 * half_width(floor, 4):.1f}% (run aa-run)"
    assert shown["P1024_h0_c4"]["noise floor"] == "—"
    assert build_report(with_floor(root, 0.001)).main[2].throughput.verdict == "slower"


def test_rounds_that_were_added_are_told_with_their_reason(tmp_path: Path) -> None:
    """By which rule, and whether the rule was met."""
    root = SyntheticRun(tmp_path / "run").write()
    store = RunStore.open(root)
    manifest = store.manifest()
    more = Extension(rounds=(3, 4), reason="until", why="DEC100_c4 cache_on is wide", at="2026-01-01T00:00:00Z")
    scenario = {**manifest.scenario, "rounds": 2, "until": {"half_width": 0.5, "max_rounds": 6}}
    store.write_manifest(manifest.model_copy(update={"scenario": scenario, "extensions": (more,)}))
    text = render_markdown(build_report(store))
    assert "rounds 3 and 4 added (by `until`): DEC100_c4 cache_on is wide." in text
    assert "an interval of ±50.0% on every bench was reached with 4 rounds; at most 6." in text


def test_latency_tails_are_those_of_the_request_files(tmp_path: Path) -> None:
    """Pooled over all rounds, then each round's own; p99 only from a hundred requests on."""
    root = SyntheticRun(tmp_path / "run").write()
    for number, file in enumerate(sorted(root.glob("trials/*/DEC100_c4.requests.jsonl"))):
        frame = pd.read_json(file, lines=True)
        frame["latency"] = 0.1 + 0.001 * frame["index"] + 0.01 * number
        frame.to_json(file, orient="records", lines=True)
    text = render_markdown(build_report(RunStore.open(root)))
    frames = [
        pd.read_json(file, lines=True).assign(round=file.parent.name[:3], arm=file.parent.name.split("-", 2)[2])
        for file in root.glob("trials/*/DEC100_c4.requests.jsonl")
    ]
    mine = pd.concat(frames).query("arm == 'cache_on'")
    row = next(
        row
        for row in rows(text, "Latency of single requests")
        if (row["bench"], row["arm"], row["latency (ms)"]) == ("DEC100_c4", "cache_on", "E2EL")
    )
    assert row["n"] == "480"
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert row[name] == f"{1000 * mine.latency.quantile(share):#.4g}"
        each = 1000 * mine.groupby("round").latency.quantile(share)
        assert row[f"{name} by round"] == f"{each.min():.1f}–{each.max():.1f}"
    small = next(row for row in rows(text, "Latency of single requests") if row["bench"] == "P1024_h0_c4")
    assert (small["n"], small["p99"], small["p99 by round"]) == ("32", "—", "—")


def test_memory_stands_after_each_pass_beside_what_it_bought(tmp_path: Path) -> None:
    """Per arm: ready, each pass, peak, the peak against the baseline's, and the mean change of throughput."""

    class TwoPasses(SyntheticRun):
        def trial(self, planned):
            record = super().trial(planned)
            points = tuple(MemoryPoint(rss=int(GIB * size), pss=GIB) for size in (2.0, 2.5))
            return record.model_copy(update={"memory_passes": points})

    root = TwoPasses(tmp_path / "run").write()
    cells = cells_by_pandas(root)
    text = render_markdown(build_report(RunStore.open(root)))
    shown = {(row["arm"], row["measure"]): row for row in rows(text, "Memory (GiB)")}
    row = shown["cache_on", "stage-0 VmRSS"]
    assert (row["ready"], row["after pass 1"], row["after pass 2"]) == ("1.00", "2.00", "2.50")
    means = cells[cells.bench != "warm"].pivot_table("request_throughput", ["bench", "round"], "arm")
    logs = np.log(means.cache_on / means.cache_off).groupby("bench").mean()
    expected = [percent(math.expm1(value)) for value in (logs.mean(), logs.min(), logs.max())]
    assert row["request throughput"] == f"{expected[0]} ({expected[1]} .. {expected[2]})"
    peaks = {arm: np.mean([one.memory_peak.rss for one in _trials(root, arm)]) for arm in ("cache_on", "cache_off")}
    assert row["peak against baseline"] == percent(peaks["cache_on"] / peaks["cache_off"] - 1)
    assert shown["cache_off", "stage-0 VmRSS"]["peak against baseline"] == "—"


def _trials(root: Path, arm: str) -> list:
    return [trial for trial in RunStore.open(root).trials() if trial.arm == arm]
