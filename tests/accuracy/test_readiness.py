"""What a machine lacks to score is said before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from kept_run import HEAD

from harness.accuracy.readiness import cannot_score
from harness.scenario import Check, load_scenario


def checks(folder: Path, wer: str) -> tuple[Check, ...]:
    (folder / "said.jsonl").write_text(
        '{"id": "a", "messages": [{"role": "user", "content": "Hi."}], "expected": "hi"}\n'
    )
    file = folder / "said.yaml"
    accuracy = f"""\
  - dataset: conversation
    path: said.jsonl
    measure: speech
    modalities: [text, audio]
    wer: {wer}
    table: |
      name concurrency prompts output
      SAY  1           1       8
"""
    file.write_text(HEAD + accuracy, encoding="utf-8")
    return load_scenario(file).checks


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With its place in the scenario, and what becomes of the answers."""
    (lack,) = cannot_score(checks(tmp_path, "{model: ./tiny.pt, normaliser: seed-tts}"))
    assert lack.startswith(f"accuracy SAY: wer.model: found no {tmp_path}/tiny.pt; without it the answers are kept")
    (tmp_path / "tiny.pt").write_bytes(b"")
    assert cannot_score(checks(tmp_path, "{model: ./tiny.pt}")) == ()


def test_a_variable_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_MODEL", raising=False)
    (lack,) = cannot_score(checks(tmp_path, "{model: '${NO_SUCH_MODEL}'}"))
    assert "wer.model: found ${NO_SUCH_MODEL}, which is not set" in lack


def test_a_package_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the check needs: a plug-in with the plain normaliser needs no Whisper."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (lack,) = cannot_score(checks(tmp_path, "{recogniser: 'mine:hear', normaliser: seed-tts}"))
    assert "found no jiwer here: pip install 'jiwer>=4'" in lack
    both = cannot_score(checks(tmp_path, "{recogniser: 'mine:hear'}"))
    assert [one.split(" here")[0] for one in both] == ["accuracy SAY: found no jiwer", "accuracy SAY: found no whisper"]
