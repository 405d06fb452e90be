"""The committed example: made by the quickstart, its report from its records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.report import build_report, regenerate
from harness.store import RunStore

EXAMPLE = Path(__file__).parent.parent.parent / "results" / "examples" / "quickstart"


def test_its_report_comes_from_its_records(tmp_path: Path) -> None:
    """Any machine writes the committed report.md, byte for byte, from the committed records."""
    copy = tmp_path / "quickstart"
    shutil.copytree(EXAMPLE, copy)
    (copy / "report.md").unlink()
    assert regenerate(RunStore.open(copy)).read_bytes() == (EXAMPLE / "report.md").read_bytes()


def test_it_shows_what_the_project_claims() -> None:
    """Hits are the ideal ones, long shared prefixes at least double the throughput, and no answer differs."""
    report = build_report(RunStore.open(EXAMPLE))
    assert report.valid
    rows = {row.bench.name: row for row in report.main}
    for row in rows.values():
        assert row.hit.rate is not None
        assert row.hit.ideal is not None
        assert row.hit.rate.low == pytest.approx(row.hit.ideal, abs=0.01)
        assert row.hit.rate.high == pytest.approx(row.hit.ideal, abs=0.01)
    assert (rows["P1024_h94_c8"].throughput.ratio or 0) > 1.0
    for name in ("P1024_h0_c8", "DEC64_c16"):
        spread = rows[name].throughput.spread
        assert spread is not None
        assert rows[name].throughput.verdict == "same" or spread.low <= 0 <= spread.high
    assert all((hit.queries, hit.hits) == (0, 0) for hit in report.baseline_hits)
    for row in report.parity:
        assert row.parity.texts.equal == row.parity.compared > 0
