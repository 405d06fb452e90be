"""The records of a run, as they lie on disk (docs/design.md, section 8).

A cell file keeps the keys of `vllm bench serve --save-result` at its top level, so that tool's readers work on it;
everything of ours sits under the one extra key `cell`. Times are seconds unless a name ends in `_ms`; instants are
ISO 8601 in UTC. An optional number that could not be measured is null: never 0.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from harness._record_base import Record as Record
from harness._record_facts import Container as Container
from harness._record_facts import FunctionShare as FunctionShare
from harness._record_facts import Gpu as Gpu
from harness._record_facts import GpuProcess as GpuProcess
from harness._record_facts import Host as Host
from harness._record_facts import Model as Model
from harness._record_facts import Profile as Profile
from harness._record_facts import SourceTree as SourceTree

SCHEMA = 1


class RequestRecord(Record):
    """One request, one line of `<bench>.requests.jsonl`. Times are seconds since the bench's first send."""

    index: int
    """Position in the prompt list; equal across arms, so requests pair by it."""
    status: Literal["ok", "failed"]
    error: str | None = None
    http_status: int | None = None
    sent: float
    queued: float | None
    """Wait for a place in the closed loop (or after the planned arrival), not part of any latency; null where the load
    generator does not tell."""
    ttft: float | None = None
    latency: float | None = None
    """E2EL: to the last content chunk."""
    itl: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_from: Literal["usage", "tokenizer"] | None = None
    cached_tokens: int | None = None
    text: str = ""
    finish_reason: str | None = None
    ttfp: float | None = None
    audio_seconds: float | None = None
    audio_rtf: float | None = None
    audio_sha256: str | None = None
    """Digest of the PCM samples: equal digests are equal speech."""
    audio_transcript: str | None = None
    """The words the server says it spoke, where it says so."""


class BenchSummary(Record):
    """The keys of `vllm bench serve --save-result` that are numbers over one bench, with its definitions."""

    date: str
    backend: str
    endpoint_type: str
    label: str | None = None
    model_id: str
    tokenizer_id: str
    num_prompts: int
    request_rate: float | Literal["inf"]
    burstiness: float | Literal["inf"]
    """Shape of the gaps of an open loop; "inf": constant gaps. 1.0 in a closed loop, where it says nothing."""
    max_concurrency: int | None
    duration: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    mean_ttft_ms: float | None = None
    median_ttft_ms: float | None = None
    std_ttft_ms: float | None = None
    p90_ttft_ms: float | None = None
    p99_ttft_ms: float | None = None
    mean_tpot_ms: float | None = None
    median_tpot_ms: float | None = None
    std_tpot_ms: float | None = None
    p90_tpot_ms: float | None = None
    p99_tpot_ms: float | None = None
    mean_itl_ms: float | None = None
    median_itl_ms: float | None = None
    std_itl_ms: float | None = None
    p90_itl_ms: float | None = None
    p99_itl_ms: float | None = None
    mean_e2el_ms: float | None = None
    median_e2el_ms: float | None = None
    std_e2el_ms: float | None = None
    p90_e2el_ms: float | None = None
    p99_e2el_ms: float | None = None
    mean_audio_ttfp_ms: float | None = None
    median_audio_ttfp_ms: float | None = None
    p99_audio_ttfp_ms: float | None = None
    mean_audio_rtf: float | None = None
    median_audio_rtf: float | None = None
    mean_audio_duration_s: float | None = None
    total_audio_duration_s: float | None = None
    audio_throughput: float | None = None


class Sample(Record):
    """One series of a scrape, labels and all."""

    name: str
    labels: dict[str, str]
    value: float


class MetricsDelta(Record):
    """Stage-0 counters before and after one bench. `delta` sums over engines and replicas of the stage."""

    before: tuple[Sample, ...]
    after: tuple[Sample, ...]
    delta: dict[str, float]
    probe: dict[str, float] = Field(default_factory=dict)
    """Tokens of the bench's closing probe, where the server needs one to publish: not in `delta`."""


class HitRate(Record):
    """Tokens asked and found in the prefix cache around one bench; `rate` is null when nothing was asked."""

    queries: float
    hits: float
    rate: float | None
    ideal: float | None
    """What an unbounded cache of full blocks would hit on these prompts in this order (last token recomputed); null
    where only the server knows the prompts' tokens."""


class MemoryPoint(Record):
    """Bytes of host memory at one instant. `rss`: VmRSS of stage 0's engine process; `pss`: of its process tree."""

    rss: int
    pss: int | None
    gpu: int | None = None


class CellInfo(Record):
    """Our part of a cell: which one it is, what was true around it, and whether it counts."""

    schema_version: int = SCHEMA
    round: int
    position: int
    arm: str
    bench: str
    reported: bool
    started_at: str
    finished_at: str
    modalities: tuple[str, ...]
    hit_rate: HitRate | None
    metrics: MetricsDelta | None
    memory: MemoryPoint | None
    pass_number: int = 1
    """Which time the server ran this bench; only the first counts, later ones lie under `pass2/` and so on."""
    client_lag_ms: float | None
    """Worst delay of the client's own event loop during the bench: a starved client measures itself."""
    client_lag_waiting_ms: float | None = None
    """Of that delay: how long its thread was runnable without a CPU; null where the kernel does not tell."""
    foreign_cores: float | None = None
    """Cores that processes other than the server and this one kept busy meanwhile, on average; null where unknown."""
    client: str | None = None
    """The load generator and its version (`vllm bench serve 0.32.0`); null: this project's own."""
    invalid: tuple[str, ...] = ()
    """Why the cell does not count; empty when it does."""
    caveats: tuple[str, ...] = ()


class CellRecord(BenchSummary):
    """One (round, arm, bench) measurement."""

    cell: CellInfo


def slug(round_: int, position: int, arm: str) -> str:
    """Folder name of a trial: `r01-1-cache_off`."""
    return f"r{round_:02d}-{position}-{arm}"


class Caveat(Record):
    """Known trouble seen in a server's log: data printed beside the affected cells, not an error."""

    kind: str
    message: str
    line: int | None
    """Of the server's log; null for what no line shows."""
    count: int = 1


class TrialRecord(Record):
    """One (round, arm): one fresh server from start to stop. Written last, so its presence means the trial ended."""

    schema_version: int = SCHEMA
    round: int
    position: int
    arm: str
    status: Literal["finished", "failed"]
    failure: str | None = None
    started_at: str
    finished_at: str
    argv: tuple[str, ...]
    env: dict[str, str]
    """The variables we set; secrets never reach a record."""
    resolved: dict[str, Any]
    """The arm's resolved configuration."""
    resolved_sha256: str
    pid: int | None
    """Of the server; null for one that runs on another machine."""
    port: int
    versions: dict[str, str]
    sources: tuple[SourceTree, ...]
    cache_config: dict[str, str]
    """Labels of `vllm:cache_config_info` (or resolved engine arguments) that proved the arm."""
    time_to_ready: float | None
    """Null for a server that ran already."""
    first_request: float | None
    memory_ready: MemoryPoint | None
    memory_end: MemoryPoint | None
    memory_peak: MemoryPoint | None
    memory_passes: tuple[MemoryPoint | None, ...] = ()
    """After each pass over the benches; empty where it was not recorded."""
    benches: tuple[str, ...]
    """Benches measured, in the order they ran."""
    stopped_by: Literal["sigterm", "sigkill", "died", "left running"]
    load_1m: float | None = None
    """The host's 1-minute load average just before the server started; null where it was not recorded."""
    caveats: tuple[Caveat, ...] = ()
    host: Host | None = None
    """Just before the server started; null where it was not recorded, as are the next three."""
    model: Model | None = None
    gpus: tuple[Gpu, ...] | None = None
    """Just before the server started; empty without NVML."""
    profile: Profile | None = None

    @property
    def slug(self) -> str:
        return slug(self.round, self.position, self.arm)


class PlannedTrial(Record):
    """One trial of the plan; `position` counts from 1 within its round."""

    round: int
    position: int
    arm: str

    @property
    def slug(self) -> str:
        return slug(self.round, self.position, self.arm)


class NoiseFloor(Record):
    """What one number of one bench varied by from round to round, with nothing changed."""

    bench: str
    metric: str = "request_throughput"
    deviation: float
    """Root mean square of the logarithms of the per-round ratios of the baseline to itself: their truth is zero."""
    rounds: int
    run: str


class NoiseRecord(Record):
    """The floors of one scenario on one host class, from its latest `aa` run."""

    schema_version: int = SCHEMA
    host_class: str
    scenario: str
    measured_at: str
    loads: dict[str, str]
    """SHA-256 by bench of what was measured: the bench, the server and the baseline arm, resolved."""
    floors: tuple[NoiseFloor, ...]


class Extension(Record):
    """Rounds that were appended to a plan while it ran, and why."""

    rounds: tuple[int, ...]
    reason: Literal["replacement", "until"]
    why: str
    at: str


class Manifest(Record):
    """What a run is: the resolved scenario, its hash, the plan, and where and with what it was started."""

    schema_version: int = SCHEMA
    run: str
    created_at: str
    command: tuple[str, ...]
    scenario_file: str
    scenario: dict[str, Any]
    scenario_sha256: str
    plan: tuple[PlannedTrial, ...]
    extensions: tuple[Extension, ...] = ()
    """Why the plan is longer than the scenario's rounds, in the order it grew."""
    versions: dict[str, str]
    sources: tuple[SourceTree, ...]
    host: Host
    ideal_hit_rates: dict[str, float | None] = Field(default_factory=dict)
    """Per bench, with the cache on; null where only the server knows the prompts' tokens."""
    resumed_at: tuple[str, ...] = ()
    """When an interrupted run was taken up again; trials that started later were measured after that."""
    tokenizer_sha256: str | None = None
    """Of the tokenizer.json that the prompts were made with; null in runs from before it was recorded."""
    finished_at: str | None = None
