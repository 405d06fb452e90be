"""A run folder in the real format, filled with made-up numbers: nothing in it was measured.

Numbers come from small tables written out here, so that tests can recompute what a report must say by hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from harness.plan import make_plan
from harness.records import (
    Caveat,
    CellInfo,
    CellRecord,
    HitRate,
    Host,
    Manifest,
    MemoryPoint,
    MetricsDelta,
    PlannedTrial,
    RequestRecord,
    SourceTree,
    TrialRecord,
)
from harness.scenario import Scenario, load_scenario

GIB = 1024**3

SCENARIO = """\
schema: 1
name: synthetic
description: Made-up numbers for tests; nothing here was measured.
model: synthetic-model
server: {kind: tiny-omni}
arms:
  cache_off: {baseline: true}
  cache_on: {prefix_cache: bundled}
rounds: 4
order: abba
workloads:
  - dataset: random
    modalities: [text]
    table: |
      name           shared_prefix random_len output range_ratio concurrency prompts seed
      warm           64            64         4      0.0         2           4       1
      P1024_h0_c4    0             1024       8      0.0         4           8       2
      P1024_h94_c4   960           64         8      0.0         4           8       3
      DEC100_c4      0             100        100    0.0         4           120     4
  - dataset: random
    modalities: [text, audio]
    table: |
      name           shared_prefix random_len output range_ratio concurrency prompts seed
      AUD_h94_c2     480           32         16     0.0         2           6       5
"""

# req/s by bench and arm, one value a round.
THROUGHPUT = {
    "warm": {"cache_off": (3.0, 3.0, 3.0, 3.0), "cache_on": (3.1, 3.1, 3.1, 3.1)},
    "P1024_h0_c4": {"cache_off": (7.90, 7.95, 7.88, 7.93), "cache_on": (7.82, 7.91, 7.86, 7.84)},
    "P1024_h94_c4": {"cache_off": (19.40, 19.60, 19.55, 19.49), "cache_on": (88.1, 90.3, 86.7, 91.2)},
    "DEC100_c4": {"cache_off": (22.4, 22.5, 22.3, 22.6), "cache_on": (20.9, 21.3, 20.7, 21.1)},
    "AUD_h94_c2": {"cache_off": (1.25, 1.27, 1.24, 1.26), "cache_on": (1.49, 1.53, 1.31, 1.51)},
}
HITS = {"warm": 0.4, "P1024_h0_c4": 0.0, "P1024_h94_c4": 0.926, "DEC100_c4": 0.003, "AUD_h94_c2": 0.925}
IDEAL = {"warm": 0.4, "P1024_h0_c4": 0.0, "P1024_h94_c4": 0.9375, "DEC100_c4": 0.0, "AUD_h94_c2": 0.93}
# The output cache's own counters of cache_on in round 1; they grow by a tenth of that a round.
WORK = {
    "P1024_h0_c4": {"steps_total": 40.0, "buffered_steps_total": 0.0, "rows_written_total": 8000.0},
    "P1024_h94_c4": {"steps_total": 60.0, "buffered_steps_total": 45.0, "hit_tokens_total": 7680.0},
    "DEC100_c4": {"steps_total": 100.0, "buffered_steps_total": 90.0, "copy_out_seconds_total": 0.05},
    "AUD_h94_c2": {"steps_total": 200.0, "write_seconds_total": 0.02, "materialized_total": 10.0},
}
ANSWERS = ("the quick brown fox", "jumps over the dog", "and runs into the wood")


@dataclass
class SyntheticRun:
    """What to write, and where; `skip`, `failed`, `rounds` and `invalid` break a run on purpose."""

    root: Path
    scenario: Scenario = field(init=False)
    plan: tuple[PlannedTrial, ...] = field(init=False)
    skip: tuple[str, ...] = ()
    """Slugs of trials that were never run."""
    failed: tuple[str, ...] = ()
    """Slugs of trials whose server died."""
    rounds: int = 4
    third_arm: bool = False
    """Adds the arm `cache_new`, with the numbers of `cache_on`."""
    one_arm: bool = False
    """Leaves only the baseline."""
    run: str = "synthetic-20260101T000000Z"
    resumed_at: tuple[str, ...] = ()
    command: tuple[str, ...] = ("bench", "run", "scenarios/synthetic.yaml")
    commit: str | None = "0" * 40
    dirty: bool | None = False
    published: bool = True
    """Whether the server publishes the output cache's own counters."""
    invalid: tuple[tuple[str, str, str], ...] = ()
    """(slug, bench, reason)."""

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        file = self.root / "scenario.yaml"
        text = SCENARIO.replace("rounds: 4", f"rounds: {self.rounds}")
        if self.third_arm:
            text = text.replace("rounds:", "  cache_new: {prefix_cache: bundled}\nrounds:").replace("abba", "latin")
        if self.one_arm:
            text = text.replace("  cache_on: {prefix_cache: bundled}\n", "")
        file.write_text(text)
        self.scenario = load_scenario(file)
        self.plan = tuple(make_plan(self.scenario))

    def write(self) -> Path:
        """Write every file; returns the run folder."""
        (self.root / "manifest.json").write_text(self.manifest().model_dump_json(indent=1))
        for trial in self.plan:
            if trial.slug in self.skip:
                continue
            folder = self.root / "trials" / trial.slug
            folder.mkdir(parents=True)
            for bench in self.scenario.benches:
                cell = self.cell(trial, bench.name)
                (folder / f"{bench.name}.json").write_text(cell.model_dump_json(indent=1))
                lines = [one.model_dump_json() for one in self.requests(trial, bench.name)]
                (folder / f"{bench.name}.requests.jsonl").write_text("\n".join(lines) + "\n")
            (folder / "trial.json").write_text(self.trial(trial).model_dump_json(indent=1))
        return self.root

    def manifest(self) -> Manifest:
        return Manifest(
            run=self.run,
            created_at="2026-01-01T00:00:00Z",
            finished_at=None if self.skip else "2026-01-01T01:00:00Z",
            command=self.command,
            resumed_at=self.resumed_at,
            scenario_file="scenarios/synthetic.yaml",
            scenario=json.loads(json.dumps(self.scenario.resolved())),
            scenario_sha256="5" * 64,
            plan=self.plan,
            versions={"omni-prefix-bench": "0.0.0", "torch": "0.0.0"},
            sources=(SourceTree(name="harness", path="/synthetic", commit=self.commit, dirty=self.dirty),),
            host=Host(
                hostname="synthetic-host",
                platform="Linux",
                kernel="0.0",
                cpu_model="no CPU",
                cpu_count=2,
                memory_bytes=8 * GIB,
                python="3.11.0",
                load_1m=0.25,
            ),
            ideal_hit_rates=IDEAL,
        )

    def trial(self, planned: PlannedTrial) -> TrialRecord:
        on = planned.arm != "cache_off"
        start = (planned.round - 1) * len(self.scenario.arms) + planned.position
        grown = GIB * (5 + 0.02 * planned.round) if on else GIB * (1 + 0.01 * planned.round)
        dead = planned.slug in self.failed
        return TrialRecord(
            round=planned.round,
            position=planned.position,
            arm=planned.arm,
            status="failed" if dead else "finished",
            failure="the server died: signal 9" if dead else None,
            started_at=f"2026-01-01T00:{start:02d}:00Z",
            finished_at=f"2026-01-01T00:{start:02d}:50Z",
            argv=("python", "-m", "harness.tiny_omni", f"--prefix-caching={planned.arm}"),
            env={"LD_LIBRARY_PATH": "/inherited", "OMP_NUM_THREADS": "2", "SYNTHETIC": "a b"},
            resolved={"prefix_caching": on, "env": {"SYNTHETIC": "a b"}},
            resolved_sha256=("1" if on else "2") * 64,
            pid=1000 + start,
            port=9000 + start,
            versions={"torch": "0.0.0"},
            sources=(),
            cache_config={"enable_prefix_caching": str(on)},
            time_to_ready=2.0 + 0.1 * planned.round + (0.5 if on else 0.0),
            first_request=0.183 + 0.001 * planned.round,
            memory_ready=MemoryPoint(rss=GIB, pss=GIB // 2),
            memory_end=MemoryPoint(rss=int(grown), pss=int(grown * 0.9)),
            memory_peak=MemoryPoint(rss=int(grown * 1.1), pss=int(grown)),
            benches=tuple(bench.name for bench in self.scenario.benches),
            stopped_by="died" if dead else "sigterm",
            load_1m=0.5 * (start - 1),
            caveats=(Caveat(kind="preemption", message="2 requests were preempted", line=17, count=2),)
            if planned.slug == "r02-1-cache_on"
            else (),
        )

    def cell(self, planned: PlannedTrial, name: str) -> CellRecord:
        bench = next(bench for bench in self.scenario.benches if bench.name == name)
        on, number = planned.arm != "cache_off", planned.round - 1
        throughput = THROUGHPUT[name]["cache_on" if on else "cache_off"][number]
        audio = "audio" in bench.modalities
        queries = float(bench.prompts * 1024) if on else 0.0
        latency = 1000.0 * bench.concurrency / throughput
        output = bench.prompts * bench.output
        duration = bench.prompts / throughput
        seconds = 2.5 * bench.prompts
        return CellRecord(
            date="20260101-000000",
            backend="openai-chat",
            endpoint_type="openai-chat",
            model_id="synthetic-model",
            tokenizer_id="synthetic-model",
            num_prompts=bench.prompts,
            request_rate="inf",
            burstiness=1.0,
            max_concurrency=bench.concurrency,
            duration=duration,
            completed=bench.prompts,
            failed=0,
            total_input_tokens=bench.prompts * 1024,
            total_output_tokens=output,
            request_throughput=throughput,
            output_throughput=output / duration,
            total_token_throughput=(output + bench.prompts * 1024) / duration,
            median_ttft_ms=latency * 0.6,
            median_tpot_ms=latency * 0.4 / (bench.output - 1),
            mean_e2el_ms=latency * 1.1,
            median_e2el_ms=latency,
            p99_e2el_ms=latency * 1.5 if bench.prompts >= 100 else None,
            median_audio_ttfp_ms=latency * (0.2 if on else 0.7) if audio else None,
            median_audio_rtf=0.5 if audio else None,
            total_audio_duration_s=seconds if audio else None,
            audio_throughput=seconds / duration if audio else None,
            cell=CellInfo(
                round=planned.round,
                position=planned.position,
                arm=planned.arm,
                bench=name,
                reported=bench.reported,
                started_at="2026-01-01T00:00:00Z",
                finished_at="2026-01-01T00:00:10Z",
                modalities=bench.modalities,
                hit_rate=HitRate(
                    queries=queries,
                    hits=queries * HITS[name],
                    rate=HITS[name] if on else None,
                    ideal=IDEAL[name] if on else 0.0,
                ),
                metrics=self.metrics(planned, name),
                memory=None,
                client_lag_ms=3.0 + planned.round / 4 + (1.0 if audio else 0.0),
                client_lag_waiting_ms=2.0 + planned.round / 8,
                invalid=tuple(reason for slug, where, reason in self.invalid if (slug, where) == (planned.slug, name)),
            ),
        )

    def metrics(self, planned: PlannedTrial, name: str) -> MetricsDelta | None:
        if not self.published or planned.arm == "cache_off":
            return None
        grown = 1 + (planned.round - 1) / 10
        delta = {f"prefix_cache:{series}": value * grown for series, value in WORK.get(name, {}).items()}
        return MetricsDelta(before=(), after=(), delta={"vllm:prefix_cache_hits_total": 1.0, **delta})

    def requests(self, planned: PlannedTrial, name: str) -> tuple[RequestRecord, ...]:
        bench = next(bench for bench in self.scenario.benches if bench.name == name)
        audio = "audio" in bench.modalities
        # The third prompt of every cell of the other arm is answered differently from its ninth character on.
        changed = planned.arm != "cache_off" and not audio
        return tuple(
            RequestRecord(
                index=index,
                status="ok",
                sent=0.1 * index,
                queued=0.0,
                ttft=0.05,
                latency=0.1,
                output_tokens=bench.output,
                tokens_from="usage",
                text="and runs upon a hill" if changed and index == 2 else ANSWERS[index % 3],
                audio_seconds=2.5 if audio else None,
                audio_sha256=f"{index:064x}" if audio else None,
                audio_transcript=ANSWERS[index % 3] if audio else None,
            )
            for index in range(bench.prompts)
        )
