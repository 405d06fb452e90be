"""Benches of which something cannot be known: the ideal hit rate, or the tokens of speech. Never shown as a zero."""

import io
import json

from report_tables import rows
from rich.console import Console
from synthetic_run import SyntheticRun

from harness.report import build_report, regenerate, render_markdown, render_terminal
from harness.report.machine import to_json
from harness.scope import measured
from harness.store import RunStore


def test_an_unknown_ideal_is_a_dash_and_never_a_zero(tmp_path):
    """In the report and on a terminal a dash, for machines null, everywhere beside the rate that was measured."""
    root = SyntheticRun(tmp_path / "run").write()
    for file in root.glob("trials/*-cache_on/AUD_h94_c2.json"):
        cell = json.loads(file.read_text())
        cell["cell"]["hit_rate"]["ideal"] = None
        file.write_text(json.dumps(cell))
    report = build_report(RunStore.open(root))
    (row,) = (
        row
        for row in rows(render_markdown(report, ()), "Request throughput against the baseline")
        if row["bench"] == "AUD_h94_c2"
    )
    assert (row["stage-0 hit"], row["ideal hit"]) == ("92.5%", "—")
    console = Console(width=136, file=io.StringIO(), markup=False)
    console.print(render_terminal(report, 136))
    (line,) = (line for line in console.file.getvalue().splitlines() if line.strip().startswith("AUD_h94_c2"))
    assert line.split()[1:3] == ["92.5%", "—"]
    (entry,) = (entry for entry in to_json(report)["benches"] if entry["bench"] == "AUD_h94_c2")
    assert (entry["hit"]["rate"], entry["hit"]["ideal"]) == ([0.925, 0.925], None)
    (figure,) = (figure for figure in measured(report).figures if figure.bench == "AUD_h94_c2")
    assert (figure.hit, figure.ideal) == ((0.925, 0.925), None)


def test_a_bench_of_the_speech_endpoint_has_no_numbers_of_text(tmp_path):
    """It sends no text and counts no tokens: dashes there, its audio beside them, and the run is valid."""
    root = SyntheticRun(tmp_path / "run").write()
    manifest = json.loads((root / "manifest.json").read_text())
    (bench,) = (bench for bench in manifest["scenario"]["benches"] if bench["name"] == "AUD_h94_c2")
    bench |= {"endpoint": "speech", "modalities": ["audio"], "ignore_eos": False}
    (root / "manifest.json").write_text(json.dumps(manifest))
    for file in root.glob("trials/*/AUD_h94_c2.json"):
        cell = json.loads(file.read_text())
        cell |= {key: None for key in cell if "ttft" in key or "tpot" in key or "itl" in key}
        cell |= {"total_output_tokens": 0, "output_throughput": 0.0}
        cell["cell"]["modalities"] = ["audio"]
        file.write_text(json.dumps(cell))
    report = build_report(RunStore.open(root))
    assert report.valid
    table = rows(render_markdown(report, ()), "Normalised throughput and latency")
    (off, on) = (row for row in table if row["bench"] == "AUD_h94_c2")
    for row in (off, on):
        assert [row[key] for key in ("output tokens (tok/s)", "median TTFT (ms)", "median TPOT (ms)")] == ["—"] * 3
        assert "absent" not in row.values()
    assert on["audio (s/s)"] != "—"
    assert on["median E2EL (ms)"] != "—"
    assert "![" in regenerate(RunStore.open(root)).read_text(encoding="utf-8")
