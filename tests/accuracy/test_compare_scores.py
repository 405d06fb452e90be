"""Accuracy of two runs beside each other: scores by hand, and what they were scored with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kept_run import Said, write_run
from test_score_run import BOTH, RIGHT, conversations, speech

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
        ScoreRow("SAY", "off", "WER", 0.0, 0.0, (24, 24), (Verdict.PASS, Verdict.FAIL)),
        ScoreRow("SAY", "on", "WER", 0.0, pytest.approx(1 / 12), (24, 24), (Verdict.PASS, Verdict.FAIL)),
    )
    assert found.compared
    assert "| SAY | on | WER | 0.0% | 8.3% | 24, 24 | passed, FAILED |" in render_comparison(found)


def test_a_run_that_was_not_scored_has_no_scores(runs: tuple[RunStore, RunStore]) -> None:
    """What is absent is a dash and never a zero; a check that neither has scored is still named."""
    assert "| SAY | — | not scored | — | — | 0, 0 | —, — |" in render_comparison(compare_runs(*runs))
    score_run(runs[1])
    found = compare_runs(*runs)
    assert [(row.first, row.verdicts[0]) for row in found.scores] == [(None, None)] * 2
    assert "| SAY | on | WER | — | 8.3% | 0, 24 | —, FAILED |" in render_comparison(found)


def test_scores_of_different_tools_are_refused(runs: tuple[RunStore, RunStore]) -> None:
    """The normaliser decides what is an error, so that two of them are no comparison."""
    score_run(runs[0])
    score_run(runs[1], Instead(normaliser="whisper-english"))
    with pytest.raises(UsageError, match="normaliser of SAY: seed-tts and whisper-english"):
        compare_runs(*runs)
    assert compare_runs(*runs, force=True).scores


def test_parity_is_the_share_of_answers_that_differ(tmp_path: Path) -> None:
    """One text of three is another one with the cache on, in the second run alone."""
    lines = [{"id": name, "messages": [{"role": "user", "content": "Go on."}]} for name in "abc"]
    check = f"""\
  - dataset: conversation
    path: {conversations(tmp_path, lines)}
    measure: parity
    table: |
      name concurrency prompts output
      SAME 1           3       8
"""
    alike, other = [Said("a"), Said("b"), Said("c")], [Said("a"), Said("b"), Said("x")]
    write_run(tmp_path, check, dict.fromkeys(BOTH, alike))
    (tmp_path / "first").mkdir()
    first = RunStore.open(Path(shutil.move(tmp_path / "run", tmp_path / "first" / "run")))
    second = write_run(tmp_path, check, {trial: other if trial[1] == "on" else alike for trial in BOTH})
    for run in (first, second):
        score_run(run)
    expected = ScoreRow("SAME", "on", "differing", 0.0, pytest.approx(1 / 3), (6, 6), (None, None))
    assert compare_runs(first, second).scores == (expected,)
