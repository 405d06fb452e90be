"""The `accuracy` section of a scenario file: what it becomes, and what is refused with place, found and allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from harness._scenario_accuracy import Normaliser, SpeakerEncoder
from harness.accuracy.normalise import NormaliserName
from harness.accuracy.similarity import EncoderName
from harness.errors import ScenarioError, UsageError
from harness.scenario import Check, Scenario, load_scenario, narrow

GOOD = """\
schema: 1
name: small
model: tiny-omni
server: {kind: tiny-omni}
arms:
  off: {baseline: true}
rounds: 1
order: alternate
workloads:
  - dataset: random
    table: |
      name shared_prefix random_len output range_ratio concurrency prompts seed
      P64  0             64         4      0.0         2           8       2
accuracy:
  - dataset: seed_tts
    path: set
    modalities: [text, audio]
    ignore_eos: false
    measure: speech
    wer: {model: ../models/tiny.pt}
    sim: {encoder: resemblyzer}
    accept: {max_wer: 0.05, min_sim: 0.8}
    table: |
      name concurrency prompts output
      SAY4 2           4       16
  - dataset: daily_omni
    path: set/qa.json
    media: https://example.org/videos
    measure: choice
    accept: {max_flips: 2}
    table: |
      name concurrency prompts output
      ASK  1           3       4
"""


def load(folder: Path, text: str = GOOD) -> Scenario:
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path)


def test_blocks_become_checks_beside_the_benches(tmp_path: Path) -> None:
    """Checks are loads of their own, never reported as benches, with absolute paths."""
    scenario = load(tmp_path)
    assert [bench.name for bench in scenario.benches] == ["P64"]
    say, ask = scenario.checks
    assert [bench.name for bench in scenario.loads] == ["P64", "SAY4", "ASK"]
    assert (say.measure, say.reported, say.task, say.path) == ("speech", False, "clone", str(tmp_path / "set"))
    assert say.wer is not None
    assert (say.wer.recogniser, say.wer.beam, say.wer.normaliser) == ("whisper", 5, "whisper-english")
    assert say.wer.model == str(tmp_path.parent / "models" / "tiny.pt")
    assert (ask.media, ask.accept.max_flips, ask.accept.max_wer) == ("https://example.org/videos", 2, None)


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("large-v3", "large-v3"),
        ('"${MODEL}"', "${MODEL}"),
        ('"${MODEL:-large-v3}"', "${MODEL:-large-v3}"),
        ('"${MODEL:-./a.pt}"', "${MODEL:-{folder}/a.pt}"),
        ("/models/a.pt", "/models/a.pt"),
    ],
)
def test_a_models_path_starts_at_the_files_folder_and_a_name_stays_one(
    tmp_path: Path, written: str, becomes: str
) -> None:
    """The default of a variable too; the variable itself is left for when scores are made."""
    say, _ = load(tmp_path, GOOD.replace("../models/tiny.pt", written)).checks
    assert say.wer is not None
    assert say.wer.model == becomes.replace("{folder}", str(tmp_path))


def test_a_recorded_scenario_keeps_its_checks(tmp_path: Path) -> None:
    """Out of a manifest comes the same scenario, checks and limits included."""
    scenario = load(tmp_path)
    recorded = Scenario.model_validate_json(json.dumps(scenario.resolved()))
    assert recorded == scenario
    assert all(type(check) is Check for check in recorded.checks)


def test_narrowing_chooses_among_benches_and_checks(tmp_path: Path) -> None:
    """A name or a pattern of either; a run of checks alone is a run."""
    scenario = load(tmp_path)
    chosen = narrow(scenario, only=["SAY*"])
    assert [bench.name for bench in chosen.loads] == ["SAY4"]
    assert Scenario.model_validate(chosen.model_dump(by_alias=True)).checks == chosen.checks
    with pytest.raises(UsageError, match="allowed: P64, SAY4, ASK"):
        narrow(scenario, only=["NONE"])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("measure: speech", "measure: sound", "accuracy[0].measure: found 'sound' (text); allowed: 'speech', 'choice'"),
        ("SAY4 2", "P64  2", "accuracy[0].table row 'P64': found the name again (first on line 13)"),
        ("max_wer: 0.05", "max_wre: 0.05", "an unknown key (did you mean 'max_wer'?)"),
        ("max_wer: 0.05", "max_flips: 1", "accuracy[0].accept.max_flips: found max_flips with measure speech"),
        ("    sim: {encoder: resemblyzer}\n", "", "accuracy[0].accept.min_sim: found min_sim without sim"),
        ("    wer: {model: ../models/tiny.pt}\n", "", "accuracy[0].accept.max_wer: found max_wer without wer"),
        ("modalities: [text, audio]", "modalities: [text]", "audio among them"),
        ("measure: choice", "measure: choice\n    reported: true", "accuracy[1].reported: found true; allowed: false"),
        ("measure: choice", "measure: choice\n    client: vllm-bench", "bench: the answers' audio is kept"),
        (
            "measure: choice",
            "measure: choice\n    wer: {model: tiny.pt}",
            "accuracy[1].wer: found wer with measure choice",
        ),
        ("measure: choice", "measure: speech", "accuracy[1].dataset: found 'daily_omni'; allowed: seed_tts or conv"),
        ("path: set\n", "path: set\n    locale: zh\n", "accuracy[0].wer.normaliser: found 'whisper-english'"),
        (
            "path: set\n",
            "path: set\n    task: speak\n",
            "accuracy[0].sim: found sim; allowed: measure speech with task",
        ),
        ("    path: set/qa.json\n", "", "accuracy[1].path: found nothing; allowed: a value: dataset daily_omni"),
        ("beam", "beam", None),
    ],
)
def test_a_wrong_check_is_one_message(tmp_path: Path, old: str, new: str, expected: str | None) -> None:
    """Place, found and allowed."""
    if expected is None:
        with pytest.raises(ScenarioError, match=r"wer\.beam: found 0 \(a whole number\); allowed: 1 or more"):
            load(tmp_path, GOOD.replace("tiny.pt}", "tiny.pt, beam: 0}"))
        return
    assert old in GOOD
    with pytest.raises(ScenarioError) as error:
        load(tmp_path, GOOD.replace(old, new, 1))
    assert expected in str(error.value)


def test_the_scenarios_names_are_those_of_the_scorers() -> None:
    """The scenario names normalisers and encoders without importing what computes them."""
    assert get_args(Normaliser) == get_args(NormaliserName)
    assert get_args(SpeakerEncoder) == get_args(EncoderName)
