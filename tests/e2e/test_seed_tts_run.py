"""A bench of dataset seed_tts and a replay, end to end on the reference server."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_process import bench, cells, only_run

pytestmark = pytest.mark.slow

SET = Path(__file__).parents[1] / "golden" / "seed_tts"
SCENARIO = """\
schema: 1
name: speech
model: tiny-omni
server:
  kind: tiny-omni
  args: {{hidden-size: 64, num-layers: 4, num-blocks: 1024}}
arms:
  cache_on:
    baseline: true
    deploy: {{stages: [{{stage_id: 0, enable_prefix_caching: true}}]}}
    prefix_cache: bundled
rounds: 1
order: alternate
workloads:
  - dataset: random
    table: |
      name     shared_prefix random_len output range_ratio concurrency prompts seed
      P        0             100        4      0.0         2           6       7
      P_replay 0             100        4      0.0         2           6       7
  - dataset: seed_tts
    path: {path}
    task: speak
    modalities: [text, audio]
    ignore_eos: false
    table: |
      name  concurrency prompts output
      SPEAK 2           4       8
"""


def test_spoken_sentences_and_replays_hit_what_they_ideally_can(tmp_path: Path) -> None:
    """Every sentence is spoken, and the server hits to the token what its prompts share."""
    scenario = tmp_path / "speech.yaml"
    scenario.write_text(SCENARIO.format(path=SET), encoding="utf-8")
    done = bench("run", scenario, "--out", tmp_path / "results")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {cell["cell"]["bench"]: cell for cell in cells(only_run(tmp_path / "results"))}
    assert set(found) == {"P", "P_replay", "SPEAK"}
    for name, cell in found.items():
        hit = cell["cell"]["hit_rate"]
        assert hit["rate"] == pytest.approx(hit["ideal"], abs=1e-9), name
        assert cell["cell"]["invalid"] == [], name
    assert found["P"]["cell"]["hit_rate"]["rate"] < 0.1
    assert found["P_replay"]["cell"]["hit_rate"]["rate"] > 0.8
    assert found["SPEAK"]["cell"]["hit_rate"]["rate"] > 0.5
    assert (found["SPEAK"]["completed"], found["SPEAK"]["failed"]) == (4, 0)
    assert found["SPEAK"]["total_audio_duration_s"] > 1.0


def test_a_run_without_its_set_says_where_to_get_it_and_starts_nothing(tmp_path: Path) -> None:
    """At check it is a note, at run an error before any server."""
    scenario = tmp_path / "speech.yaml"
    scenario.write_text(SCENARIO.format(path="nowhere"), encoding="utf-8")
    checked = bench("check", scenario)
    assert checked.returncode == 0
    assert f"note: bench SPEAK: found no {tmp_path}/nowhere/en/meta.lst; allowed: a copy of" in checked.stdout
    done = bench("run", scenario, "--out", tmp_path / "results")
    assert done.returncode == 2
    assert "https://github.com/BytedanceSpeech/seed-tts-eval" in done.stderr
    assert not (tmp_path / "results").exists()
