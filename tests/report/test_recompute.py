# ruff: noqa: RUF001 - the report prints a real minus sign and a real dash
"""Every number of a real report, computed again from the records: json, pandas, numpy and scipy, no code of ours."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from report_tables import rows

RUN = Path(__file__).parent.parent.parent / "results" / "examples" / "quickstart"
REPORT = (RUN / "report.md").read_text(encoding="utf-8")
OFF, ON = "cache_off", "cache_on"
BAND = (1 / 1.03 - 1, 0.03)
WORK = {
    "steps": "steps_total",
    "rows written": "rows_written_total",
    "hit tokens": "hit_tokens_total",
    "steps materialized": "materialized_total",
    "copy-out (ms)": "copy_out_seconds_total",
    "write (ms)": "write_seconds_total",
    "gather (ms)": "gather_seconds_total",
    "merge (ms)": "merge_seconds_total",
}
COLUMNS = {
    "output tokens (tok/s)": "output_throughput",
    "median TTFT (ms)": "median_ttft_ms",
    "median TPOT (ms)": "median_tpot_ms",
    "median E2EL (ms)": "median_e2el_ms",
    "audio (s/s)": "audio_throughput",
    "median audio TTFP (ms)": "median_audio_ttfp_ms",
    "median audio RTF": "median_audio_rtf",
}


def sign(text: str) -> str:
    return text.replace("-", "−")


def percent(value: float) -> str:
    return sign(f"{100 * value:+.1f}%")


def share(value: float) -> str:
    return f"{100 * value:.1f}%"


def four(value: float, digits: int = 4) -> str:
    """Four significant digits, and no fewer than the whole ones."""
    if value == 0:
        return "0"
    text = f"{value:#.{digits}g}"
    return f"{value:.0f}" if "e" in text or text.endswith(".") else text


def span(values: pd.Series, form: str = "{:.2f}") -> str:
    low, high = form.format(values.min()), form.format(values.max())
    return low if low == high else f"{low}–{high}"


def load_cells() -> pd.DataFrame:
    found = []
    for file in sorted(RUN.glob("trials/*/*.json")):
        data = json.loads(file.read_text())
        if "cell" in data:
            found.append({**{key: value for key, value in data.items() if key != "cell"}, **data["cell"]})
    return pd.DataFrame(found)


def load_requests() -> pd.DataFrame:
    frames = []
    for file in sorted(RUN.glob("trials/*/*.requests.jsonl")):
        number, _, arm = file.parent.name.split("-", 2)
        frame = pd.DataFrame([json.loads(line) for line in file.read_text().splitlines()])
        frames.append(frame.assign(round=int(number[1:]), arm=arm, bench=file.name.split(".")[0]))
    return pd.concat(frames)


def load_trials() -> pd.DataFrame:
    return pd.DataFrame([json.loads(file.read_text()) for file in sorted(RUN.glob("trials/*/trial.json"))])


CELLS, REQUESTS, TRIALS = load_cells(), load_requests(), load_trials()
BENCHES = [row["bench"] for row in rows(REPORT, "Request throughput against the baseline")]
assert set(BENCHES) == set(CELLS[CELLS.reported].bench)
assert CELLS.invalid.map(len).sum() == 0, "the example has no dropped pair: every cell counts here"


def of(bench: str, key: str = "request_throughput") -> pd.DataFrame:
    """One metric of one bench, a row a round, a column an arm."""
    return CELLS[CELLS.bench == bench].pivot_table(key, "round", "arm")


def changes(bench: str, key: str = "request_throughput") -> pd.Series:
    values = of(bench, key)
    return np.log(values[ON] / values[OFF])


def interval(logs: pd.Series) -> tuple[float, float]:
    half = scipy.stats.t(len(logs) - 1).ppf(0.975) * logs.sem()
    return math.expm1(logs.mean() - half), math.expm1(logs.mean() + half)


def verdict(logs: pd.Series) -> str:
    low, high = interval(logs)
    if low > BAND[1]:
        return "faster"
    if high < BAND[0]:
        return "slower"
    return "same" if BAND[0] <= low and high <= BAND[1] else "inconclusive"


def ratio(bench: str, key: str = "request_throughput") -> float:
    mean = of(bench, key).mean()
    return mean[ON] / mean[OFF] - 1


def table(title: str) -> list[dict[str, str]]:
    found = rows(REPORT, title)
    assert found, title
    return found


def each_bench(title: str) -> Iterator[tuple[str, dict[str, str]]]:
    found = table(title)
    assert [row["bench"] for row in found] == BENCHES, title
    return zip(BENCHES, found, strict=True)


def test_request_throughput() -> None:
    """Every column of the main table."""
    for bench, row in each_bench("Request throughput against the baseline"):
        cells = CELLS[CELLS.bench == bench].set_index("arm").loc[ON]
        rates = cells.hit_rate.map(lambda one: one["hits"] / one["queries"])
        (ideal,) = {one["ideal"] for one in cells.hit_rate}
        each, logs = np.expm1(changes(bench)), changes(bench)
        low, high = interval(logs)
        text = percent(ratio(bench))
        if bench.startswith("AUD"):
            text += f"; TTFP {percent(ratio(bench, 'median_audio_ttfp_ms'))}"
        assert list(row.values()) == [
            bench,
            span(100 * rates, "{:.1f}%"),
            share(ideal),
            four(of(bench)[OFF].mean()),
            text,
            f"{percent(each.min())} .. {percent(each.max())}",
            f"{percent(math.expm1(logs.mean()))} ({percent(low)} .. {percent(high)})",
            str(len(logs)),
            verdict(logs),
        ]


def test_the_sentence_on_top() -> None:
    """How many benches are faster, slower, the same, and by how much; how many pairs counted."""
    says = {"slower": "slower", "faster": "faster", "same": "the same", "inconclusive": "inconclusive"}
    sentence = next(line for line in REPORT.splitlines() if line.startswith("With `cache_on` against"))
    for kind, words in says.items():
        mine = [bench for bench in BENCHES if verdict(changes(bench)) == kind]
        found = re.search(rf"(\d+) (?:is|are) {words} \(([^)]*)\)", sentence)
        assert (0 if found is None else int(found[1])) == len(mine)
        for bench in mine:
            assert found is not None
            assert (bench if kind == "same" else f"{bench} {percent(ratio(bench))}") in found[2]
    assert f"All {len(BENCHES) * CELLS['round'].nunique()} measured pairs counted." in sentence


def test_uncertainty() -> None:
    """Width, detectable change, band; under six rounds no second opinion."""
    for bench, row in each_bench("Uncertainty"):
        logs = changes(bench)
        low, high = interval(logs)
        student = scipy.stats.t(len(logs) - 1)
        assert list(row.values()) == [
            bench,
            str(len(logs)),
            f"{math.sqrt((1 + high) / (1 + low)) - 1:.1%}",
            f"{math.expm1((student.ppf(0.975) + student.ppf(0.8)) * logs.sem()):.1%}",
            f"{percent(BAND[0])} .. {percent(BAND[1])}",
            "—",
        ]


def test_rounds() -> None:
    """Both values and their ratio, round by round."""
    for bench, row in each_bench("Rounds"):
        for number, values in of(bench).iterrows():
            expected = f"{four(values[OFF])} → {four(values[ON])} ({percent(values[ON] / values[OFF] - 1)})"
            assert row[f"round {number}"] == expected
        assert len(row) == 1 + len(of(bench))


def test_normalised_throughput_and_latency() -> None:
    """Means over rounds, and their change."""
    found = table("Normalised throughput and latency")
    assert [(row["bench"], row["arm"]) for row in found] == [(bench, arm) for bench in BENCHES for arm in (OFF, ON)]
    for row in found:
        bench, arm = row["bench"], row["arm"]
        completed = of(bench, "completed")[arm].min()
        assert row["n"] == f"{completed:.0f}"
        for column, key in COLUMNS.items():
            values = CELLS[CELLS.bench == bench][key].dropna()
            if values.empty:
                assert row[column] == "—"
                continue
            text = four(of(bench, key)[arm].mean())
            assert row[column] == (text if arm == OFF else f"{text} ({percent(ratio(bench, key))})")
        p99 = "withheld (n < 100)" if completed < 100 else four(of(bench, "p99_e2el_ms")[arm].mean())
        assert row["p99 E2EL (ms)"] == p99


def test_latency_of_single_requests() -> None:
    """Percentiles of all requests and of each round's, from the request files."""
    keys = {"TTFT": "ttft", "E2EL": "latency", "TTFP": "ttfp"}
    found = table("Latency of single requests")
    for row in found:
        mine = REQUESTS[(REQUESTS.bench == row["bench"]) & (REQUESTS.arm == row["arm"]) & (REQUESTS.status == "ok")]
        values = mine[[keys[row["latency (ms)"]], "round"]].dropna()
        values = values.astype(float)
        latency, by_round = values.iloc[:, 0] * 1000, values.groupby("round")[keys[row["latency (ms)"]]]
        assert row["n"] == str(len(latency))
        for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            enough = q < 0.99 or len(latency) >= 100
            assert row[name] == (four(latency.quantile(q)) if enough else "—")
            enough = q < 0.99 or by_round.size().min() >= 100
            assert row[f"{name} by round"] == (span(1000 * by_round.quantile(q), "{:.1f}") if enough else "—")
    spoken = sum(bench.startswith("AUD") for bench in BENCHES)
    assert len(found) == 2 * (2 * len(BENCHES) + spoken)


def test_the_cache_s_own_work() -> None:
    """Means of the growth of its counters; times as a share of the bench's duration."""
    for bench, row in each_bench("The output cache's own work"):
        mine = CELLS[(CELLS.bench == bench) & (CELLS.arm == ON)]
        delta = pd.DataFrame([one["delta"] for one in mine.metrics]).rename(columns=lambda name: name.split(":")[-1])
        for column, key in WORK.items():
            mean = delta[key].mean()
            if "ms" not in column:
                assert row[column] == f"{mean:.0f}", (bench, column)
            elif mean == 0:
                assert row[column] == "0"
            else:
                assert row[column].split(" (")[0] == four(1000 * mean, 3)
                assert row[column].split(" (")[1] == f"{share(mean / mine.duration.mean())})"
        assert row["of them buffered"] == share(delta.buffered_steps_total.mean() / delta.steps_total.mean())


def test_output_parity() -> None:
    """Texts, speech and transcripts of equal prompts, joined by index."""
    keyed = REQUESTS.set_index(["bench", "round", "arm", "index"]).sort_index()
    for row in table("Output parity"):
        control = "control" in row["answers of"]
        numbers = {
            "1 and 2": [1], "1": [1], f"all rounds ({CELLS['round'].nunique()})": sorted(CELLS["round"].unique())
        }[row["rounds"]]  # fmt: skip
        texts = spoken = told = equal = same = retold = 0
        for number in numbers:
            left = keyed.loc[row["bench"], number, OFF]
            right = keyed.loc[row["bench"], 2, OFF] if control else keyed.loc[row["bench"], number, ON]
            texts += len(left)
            equal += int((left.text == right.text).sum())
            both = left.audio_sha256.notna() & right.audio_sha256.notna()
            spoken += int(both.sum())
            same += int((left.audio_sha256 == right.audio_sha256)[both].sum())
            both = left.audio_transcript.notna() & right.audio_transcript.notna()
            told += int(both.sum())
            retold += int((left.audio_transcript == right.audio_transcript)[both].sum())
        assert (row["compared"], row["missing"], row["text equal"]) == (str(texts), "0", str(equal))
        assert row["text differs"] == str(texts - equal)
        assert row["text empty"] == "0"
        if spoken:
            assert (row["audio equal"], row["audio differs"]) == (str(same), str(spoken - same))
            assert row["transcript equal"] == f"{retold} of {told}"
        else:
            assert {row["audio equal"], row["audio differs"], row["transcript equal"]} == {"—"}


def test_memory() -> None:
    """Smallest to largest over trials; the peak against the baseline's; what it bought."""
    measures = {"stage-0 VmRSS": "rss", "process tree PSS": "pss", "GPU": "gpu"}
    gains = pd.Series({bench: changes(bench).mean() for bench in BENCHES})

    def points(arm: str, when: str, key: str) -> pd.Series:
        return TRIALS[TRIALS.arm == arm][f"memory_{when}"].map(lambda point: point[key]).dropna()

    found = table("Memory (GiB)")
    assert {row["arm"] for row in found} == {OFF, ON}
    for row in found:
        arm, key = row["arm"], measures[row["measure"]]
        for column, when in (("ready", "ready"), ("after pass 1", "end"), ("peak", "peak")):
            assert row[column] == span(points(arm, when, key) / 1024**3)
        if arm == OFF:
            assert {row["peak against baseline"], row["request throughput"]} == {"—"}
            continue
        added = points(ON, "peak", key).mean() / points(OFF, "peak", key).mean() - 1
        assert row["peak against baseline"] == percent(added)
        low, mean, high = (percent(math.expm1(value)) for value in (gains.min(), gains.mean(), gains.max()))
        assert row["request throughput"] == f"{mean} ({low} .. {high})"


def test_starts_and_trials() -> None:
    """Times to ready, of the first request and of each trial, and the load before it."""
    for row in table("Start"):
        mine = TRIALS[TRIALS.arm == row["arm"]]
        assert row["time to ready (s)"] == span(mine.time_to_ready)
        assert row["first request (s)"] == span(mine.first_request, "{:.3f}")
    section = REPORT.split("## Provenance\n")[1].split("\n## ")[0]
    shown = [line.strip("| ").split(" | ") for line in section.splitlines() if re.match(r"\| r\d\d-", line)]
    assert len(shown) == len(TRIALS)
    for slug, started, finished, duration, load, status in shown:
        trial = json.loads((RUN / "trials" / slug / "trial.json").read_text())
        assert (started, finished, status) == (trial["started_at"], trial["finished_at"], trial["status"])
        seconds = (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()
        assert (duration, load) == (f"{seconds:.1f}", f"{trial['load_1m']:.2f}")


def test_the_client_s_own_delay() -> None:
    """The worst of all benches, and where."""
    worst = CELLS.loc[CELLS.client_lag_ms.idxmax()]
    found = re.search(r"late by at most ([\d.]+) ms, ([\d.]+) ms of it waiting for a CPU \((\S+), (\S+)\)", REPORT)
    assert found is not None
    assert found[1] == four(worst.client_lag_ms, 3)
    assert found[2] == four(worst.client_lag_waiting_ms, 3)
    assert found[3] == f"r{worst['round']:02d}-{worst.position}-{worst.arm}"
    assert found[4] == worst.bench


def test_no_table_is_left_out() -> None:
    """A new section with numbers needs a test here."""
    tested = {
        "Request throughput against the baseline", "Uncertainty", "Rounds", "Normalised throughput and latency",
        "Latency of single requests", "The output cache's own work", "Output parity", "Memory (GiB)", "Start",
    }  # fmt: skip
    words = {"Caveats and dropped pairs", "Provenance", "How to reproduce", "Definitions"}
    titles = {line[3:] for line in REPORT.splitlines() if line.startswith("## ")}
    assert titles == tested | words


@pytest.mark.parametrize("bench", BENCHES)
def test_the_baseline_asked_nothing_of_the_cache(bench: str) -> None:
    """The sentence that says so is true of each cell."""
    cells = CELLS[(CELLS.bench == bench) & (CELLS.arm == OFF)]
    assert all((one["queries"], one["hits"]) == (0, 0) for one in cells.hit_rate)
    assert "0 queries and 0 hits in the stage-0 prefix cache over all" in REPORT
