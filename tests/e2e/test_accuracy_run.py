"""Accuracy end to end on the reference server: kept answers, scores, and a verdict that a wrong cache fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bench_process import bench, cells, only_run, requests_of

pytestmark = pytest.mark.slow

SET = Path(__file__).parents[2] / "datasets" / "speech_set"
SCENARIO = """\
schema: 1
name: said
model: tiny-omni
server:
  kind: tiny-omni
  args: {{hidden-size: 64, num-layers: 4, num-blocks: 1024}}
arms:
  cache_off:
    baseline: true
    deploy: {{stages: [{{stage_id: 0, enable_prefix_caching: false}}]}}
  cache_on:
    deploy: {{stages: [{{stage_id: 0, enable_prefix_caching: true}}]}}
    prefix_cache: bundled
  rows_shift:
    deploy: {{stages: [{{stage_id: 0, enable_prefix_caching: true}}]}}
    prefix_cache: bundled
    args: {{fault: rows-shift}}
rounds: 1
order: alternate
workloads:
  - dataset: random
    table: |
      name shared_prefix random_len output range_ratio concurrency prompts seed
      P32  0             32         2      0.0         1           2       1
accuracy:
  - dataset: seed_tts
    path: {path}
    modalities: [text, audio]
    ignore_eos: false
    measure: speech
    wer: {{recogniser: "stand_in_recogniser:transcript", normaliser: seed-tts}}
    accept: {{max_wer: 0.0, max_wer_increase: 0.01}}
    table: |
      name  concurrency prompts output
      SAY12 2           12      16
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One run with a right and a wrong cache, and what it printed."""
    folder = tmp_path_factory.mktemp("accuracy")
    scenario = folder / "said.yaml"
    scenario.write_text(SCENARIO.format(path=SET), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        done = bench("run", scenario, "--out", folder / "results", timeout=240.0)
    assert done.returncode == 1, done.stdout + done.stderr
    return only_run(folder / "results"), done.stdout


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "accuracy" / "SAY12" / "summary.json").read_text())
    return found


def test_a_right_cache_says_the_same_words_and_a_wrong_one_fails(run: tuple[Path, str]) -> None:
    """WER 0 with the cache off and on; with rows shifted by a slot the verdict fails and names the arm on top."""
    path, printed = run
    found = summary(path)
    rates = {arm["arm"]: arm["wer"]["mean"] for arm in found["arms"]}
    assert rates["cache_off"] == rates["cache_on"] == 0.0
    assert rates["rows_shift"] > 0.1
    verdicts = {(one["check"], one["arm"]): one["verdict"] for one in found["judgements"]}
    assert verdicts == {
        ("max_wer", "cache_off"): "pass",
        ("max_wer", "cache_on"): "pass",
        ("max_wer", "rows_shift"): "fail",
        ("max_wer_increase", "cache_on"): "pass",
        ("max_wer_increase", "rows_shift"): "fail",
    }
    assert "Accuracy SAY12: FAILED. max_wer of rows_shift" in printed
    assert "Accuracy SAY12: FAILED" in (path / "report.md").read_text().partition("\n## ")[0]
    assert "stand_in_recogniser:transcript" in found["recogniser"]


def test_answers_are_kept_with_what_was_asked(run: tuple[Path, str]) -> None:
    """One WAV for each answer, as long as its record says; items in the order of the prompts; no bench table has it."""
    path, printed = run
    items = [json.loads(line) for line in (path / "accuracy" / "SAY12.items.jsonl").read_text().splitlines()]
    assert [item["index"] for item in items] == list(range(12))
    for record in requests_of(path, "cache_on", "SAY12"):
        (wav,) = path.glob(f"trials/r01-*-cache_on/SAY12.audio/{record['index']:05d}.wav")
        frames = (wav.stat().st_size - 44) / 2
        assert frames / 16_000 == pytest.approx(record["audio_seconds"])
    assert all(not cell["cell"]["reported"] for cell in cells(path) if cell["cell"]["bench"] == "SAY12")
    hit = {
        cell["cell"]["arm"]: cell["cell"]["hit_rate"]["rate"]
        for cell in cells(path)
        if cell["cell"]["bench"] == "SAY12"
    }
    assert hit["cache_off"] is None
    assert hit["cache_on"] > 0.6
    assert "SAY12" not in printed.partition("Accuracy")[0]


def test_scoring_again_without_what_it_takes_is_one_message_and_leaves_the_scores(
    run: tuple[Path, str], tmp_path: Path
) -> None:
    """`bench score` exits as the checks say; a model that is not here is named, and nothing is overwritten."""
    path = shutil.copytree(run[0], tmp_path / "run")
    before = summary(path)
    refused = bench("score", path, "--recogniser", "whisper", "--wer-model", tmp_path / "none.pt")
    assert refused.returncode == 2
    assert "none.pt" in refused.stderr
    assert len(refused.stderr.splitlines()) <= 3
    assert summary(path) == before
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        again = bench("score", path)
    assert again.returncode == 1, again.stderr
    assert summary(path) == before


def test_a_run_whose_answers_cannot_be_scored_here_is_whole_and_says_how_to_score_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no pass; one message names what is missing, and the answers wait for `bench score` or `--resume`."""
    scenario = tmp_path / "said.yaml"
    right_only = SCENARIO.partition("  rows_shift:")[0] + "rounds: 1" + SCENARIO.partition("rounds: 1")[2]
    scenario.write_text(right_only.format(path=SET).replace("SAY12 2           12", "SAY12 2           2"))
    text = scenario.read_text().replace('"stand_in_recogniser:transcript"', "not_installed:here")
    scenario.write_text(text)
    done = bench("run", scenario, "--arms", "cache_off", "--out", tmp_path / "results", timeout=240.0)
    assert done.returncode == 3, done.stdout + done.stderr
    path = only_run(tmp_path / "results")
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("accuracy not scored: ")]
    assert "not_installed:here" in told
    assert f"the answers are kept: bench score {path}" in done.stderr
    assert "Accuracy SAY12: not scored yet" in done.stdout
    assert len(list(path.glob("trials/*/SAY12.audio/*.wav"))) == 2
    (tmp_path / "not_installed.py").write_text("def here(wav):\n    return 'heard'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    again = bench("run", "--resume", path, timeout=60.0)
    assert "nothing left to do" in again.stderr
    assert "Accuracy SAY12: not scored yet" not in again.stdout
    scores = (path / "accuracy" / "SAY12" / "r01-1-cache_off.jsonl").read_text().splitlines()
    assert {json.loads(line)["heard"] for line in scores} == {"heard"}
