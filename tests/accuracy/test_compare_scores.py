"""Accuracy of two runs beside each other: scores by hand, and what they were scored with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kept_run import Said, write_run
from test_score_run import BOTH, RIGHT, speech

from harness.accuracy.decision import Verdict
from harness.accuracy.models import Instead
from harness.accuracy.score import score_run
from harness.compare import compare_runs
from harness.compare_scores import ScoreRow
from harness.compare_text import render_comparison
from harness.errors import UsageError
from harness.store import RunStore


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in recogniser is found as a user's own function would be."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def runs(tmp_path: Path) -> tuple[RunStore, RunStore]:
    """Two runs alike, but that in the second the caching arm leaves one of its twelve answers without audio."""
    one = write_run(tmp_path, speech(tmp_path), dict.fromkeys(BOTH, RIGHT))
    (tmp_path / "first").mkdir()
    first = RunStore.open(Path(shutil.move(tmp_path / "run", tmp_path / "first" / "run")))
    assert one.path != first.path
    silent = [Said(), *RIGHT[1:]]
    second = write_run(tmp_path, speech(tmp_path), {trial: silent if trial[1] == "on" else RIGHT for trial in BOTH})
    return first, second


def test_scores_of_both_runs_stand_beside_each_other(runs: tuple[RunStore, RunStore]) -> None:
    """One utterance of twelve that is not heard is a WER of one twelfth; the check passed before and fails now."""
    for run in runs:
        score_run(run)
    found = compare_runs(*runs)
    assert found.scores == (
        ScoreRow("SAY", "off", "WER", 0.0, 0.0, (Verdict.PASS, Verdict.FAIL)),
        ScoreRow("SAY", "on", "WER", 0.0, pytest.approx(1 / 12), (Verdict.PASS, Verdict.FAIL)),
    )
    assert found.compared
    assert "| SAY | on | WER | 0.0% | 8.3% | passed, FAILED |" in render_comparison(found)


def test_a_run_that_was_not_scored_has_no_scores(runs: tuple[RunStore, RunStore]) -> None:
    """What is absent is a dash and never a zero."""
    score_run(runs[1])
    found = compare_runs(*runs)
    assert [(row.first, row.verdicts[0]) for row in found.scores] == [(None, None)] * 2
    assert "| SAY | on | WER | — | 8.3% | —, FAILED |" in render_comparison(found)


def test_scores_of_different_tools_are_refused(runs: tuple[RunStore, RunStore]) -> None:
    """The normaliser decides what is an error, so that two of them are no comparison."""
    score_run(runs[0])
    score_run(runs[1], Instead(normaliser="whisper-english"))
    with pytest.raises(UsageError, match="normaliser of SAY: seed-tts and whisper-english"):
        compare_runs(*runs)
    assert compare_runs(*runs, force=True).scores
