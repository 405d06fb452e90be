"""A run with kept answers in the real format, made up for tests of scoring: nothing in it was measured."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.accuracy.items import items_of_loads
from harness.accuracy.speech_file import wav_bytes
from harness.client import summarise
from harness.loads import Loads
from harness.plan import make_plan
from harness.provenance import host
from harness.records import CellInfo, CellRecord, Manifest, PlannedTrial, RequestRecord, TrialRecord
from harness.scenario import load_scenario, scenario_sha256
from harness.store import RunStore
from harness.workloads import Tokenizer

ASSETS = Path(__file__).parents[2] / "harness" / "tiny_omni" / "assets"
NOW = "2026-01-01T00:00:00Z"
HEAD = """\
schema: 1
name: kept
model: tiny-omni
server: {kind: tiny-omni}
arms:
  off: {baseline: true}
  on: {prefix_cache: bundled}
rounds: 2
order: alternate
workloads:
  - dataset: random
    table: |
      name shared_prefix random_len output range_ratio concurrency prompts seed
      P    0             8          1      0.0         1           1       1
accuracy:
"""


@dataclass(frozen=True)
class Said:
    """One answer: text, and the words of its audio, None for no audio; `failed` for a request that failed."""

    text: str = "said"
    words: str | None = None
    failed: bool = False


def write_run(folder: Path, accuracy: str, answers: dict[tuple[int, str], list[Said]]) -> RunStore:
    """Write a run with one check, answered per (round, arm) as `answers` say; a trial not named did not end."""
    file = folder / "kept.yaml"
    file.write_text(HEAD + accuracy, encoding="utf-8")
    scenario = load_scenario(file)
    plan = make_plan(scenario)
    manifest = Manifest(
        run="kept",
        created_at=NOW,
        command=("bench",),
        scenario_file=str(file),
        scenario=scenario.resolved(),
        scenario_sha256=scenario_sha256(scenario),
        plan=plan,
        versions={},
        sources=(),
        host=host(),
    )
    store = RunStore.create(folder / "run", manifest, file.read_bytes())
    loads = Loads(scenario.checks, Tokenizer(ASSETS))
    for check, (items, references) in items_of_loads(loads.all).items():
        for name, source in references.items():
            store.keep(name, source)
        store.write_lines(f"{check}.items.jsonl", items)
    for trial in plan:
        if (said := answers.get((trial.round, trial.arm))) is not None:
            _write_trial(store, trial, loads, said)
    return store


def _write_trial(store: RunStore, trial: PlannedTrial, loads: Loads, said: list[Said]) -> None:
    store.begin_trial(trial)
    (load,) = loads.all
    records = tuple(_record(index, one) for index, one in enumerate(said))
    for index, one in enumerate(said):
        if one.words is not None:
            # The samples stand for the words: equal words are equal sound.
            store.write_audio(trial, load.bench.name, index, _sound(one.words))
    summary = summarise(
        records, bench=load.bench, duration_s=1.0, started_at=datetime.now(UTC), model="tiny-omni", tokenizer="none"
    )
    info = CellInfo(
        round=trial.round,
        position=trial.position,
        arm=trial.arm,
        bench=load.bench.name,
        reported=False,
        started_at=NOW,
        finished_at=NOW,
        modalities=load.bench.modalities,
        hit_rate=None,
        metrics=None,
        memory=None,
        client_lag_ms=0.0,
    )
    store.write_cell(trial, CellRecord(**summary.model_dump(), cell=info), records)
    store.write_trial(
        TrialRecord(
            round=trial.round,
            position=trial.position,
            arm=trial.arm,
            status="finished",
            started_at=NOW,
            finished_at=NOW,
            argv=(),
            env={},
            resolved={},
            resolved_sha256="0" * 64,
            pid=1,
            port=1,
            versions={},
            sources=(),
            cache_config={},
            time_to_ready=None,
            first_request=None,
            memory_ready=None,
            memory_end=None,
            memory_peak=None,
            benches=(load.bench.name,),
            stopped_by="sigterm",
        )
    )


def _record(index: int, one: Said) -> RequestRecord:
    return RequestRecord(
        index=index,
        status="failed" if one.failed else "ok",
        error="HTTP 500" if one.failed else None,
        sent=0.0,
        queued=0.0,
        ttft=0.1,
        latency=0.2,
        prompt_tokens=1,
        output_tokens=1,
        tokens_from="usage",
        text="" if one.failed else one.text,
        audio_seconds=None if one.words is None else 1.0,
        audio_sha256=None if one.words is None else hashlib.sha256(_samples(one.words).tobytes()).hexdigest(),
    )


def _sound(words: str) -> bytes:
    """The words' code points as samples: `spoken_words` reads them back."""
    return wav_bytes(_samples(words), 16_000)


def _samples(words: str) -> npt.NDArray[np.int16]:
    return np.array([ord(letter) for letter in words] or [0], np.int16)


def spoken_words(wav: Path) -> str:
    """A stand-in for a recogniser, for the sounds of `_sound` alone."""
    from scipy.io import wavfile

    return "".join(chr(sample) for sample in wavfile.read(wav)[1] if sample)
