"""One trial, step by step: the only place that knows the whole sequence (docs/design.md, section 5)."""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime

import aiohttp

from harness.accuracy.speech_file import wav_bytes
from harness.client import AudioError, LoadResult, VllmBench, VllmBenchLoad, drive, measure, pcm_of
from harness.client.small_request import SmallRequests
from harness.errors import (
    BenchError,
    CounterReset,
    HarnessFailure,
    MetricAbsent,
    ServerDied,
    ServerNotReady,
    SettleTimeout,
)
from harness.host_cpu import HostCpu
from harness.loads import Load, Loads
from harness.profiling import no_profile, no_profile_caveats, profile_bench
from harness.progress import Progress
from harness.provenance import utc_now
from harness.records import (
    Caveat,
    CellInfo,
    CellRecord,
    HitRate,
    MemoryPoint,
    MetricsDelta,
    PlannedTrial,
    Profile,
    TrialRecord,
)
from harness.scenario import Check, Scenario
from harness.servers.arm import ResolvedArm
from harness.servers.kinds import ServerKind
from harness.servers.launch import Launch, free_port
from harness.servers.live import Live, verify
from harness.servers.process import StopReport
from harness.servers.ready import wait_ready
from harness.servers.running import RunningServer
from harness.servers.shared_memory import caveats as shared_memory_caveats
from harness.setting import Setting, look_around
from harness.store import RunStore
from harness.telemetry.counters import HIT_COUNTERS, hit_counters, metrics_delta
from harness.telemetry.cpu_watch import CpuWatch
from harness.telemetry.gpu_watch import watch_gpus
from harness.telemetry.growth import memory_growth
from harness.telemetry.log_scan import scan_log
from harness.telemetry.memory import MemorySampler, NoMemory
from harness.telemetry.meter import Meter, Reading
from harness.telemetry.scrape import scrape
from harness.validity import cell_caveats, cell_invalid
from harness.watchdog import PATIENCE_S, called_off, hung
from harness.workloads import Tokenizer

_SETTLE_S = 60.0
_HUNG = "the server stopped answering"
_STATUS_READS, _STATUS_S = 200, 0.05
_FIRST_TOKENS = 2


@dataclass(slots=True)
class _Facts:
    """What is learned as the trial goes on, for its record."""

    time_to_ready: float | None = None
    first_request: float | None = None
    live: Live | None = None
    memory_ready: MemoryPoint | None = None
    memory_end: MemoryPoint | None = None
    memory_peak: MemoryPoint | None = None
    memory_passes: list[MemoryPoint | None] = field(default_factory=list)
    benches: list[str] = field(default_factory=list)
    failure: str | None = None
    log_size: int | None = None
    cells: list[CellRecord] = field(default_factory=list)
    root_pid: int | None = None
    gpu_caveats: tuple[Caveat, ...] = ()
    profile: Profile | None = None


class Trial:
    """One fresh server from start to stop, with every bench in file order.

    A server that dies ends the trial as `failed`, with the cells it had; everything else that goes wrong is raised,
    after the server has been stopped.
    """

    def __init__(
        self,
        scenario: Scenario,
        planned: PlannedTrial,
        arm: ResolvedArm,
        kind: ServerKind,
        loads: Loads,
        tokenizer: Tokenizer,
        store: RunStore,
        progress: Progress,
        vllm_bench: VllmBench | None = None,
    ) -> None:
        self._scenario, self._planned, self._arm, self._kind = scenario, planned, arm, kind
        self._loads, self._tokenizer, self._store, self._progress = loads, tokenizer, store, progress
        self._vllm_bench = vllm_bench
        self._facts, self._pass = _Facts(), 1

    async def run(self) -> TrialRecord:
        """Runs the trial and writes its records.

        Raises:
            BenchError: the message names the trial and its log.
        """
        folder = self._store.begin_trial(self._planned)
        started_at, load_1m = utc_now(), os.getloadavg()[0]
        setting = look_around(self._scenario, self._arm)
        launch = self._kind.command(self._arm, self._scenario, free_port(), folder)
        self._progress.phase("starting the server")
        try:
            with self._kind.start(launch, self._scenario.server.stop_timeout) as server:
                with watch_gpus(setting.gpus, server.root_pid) as gpus:
                    await self._drive(server, launch)
                self._facts.gpu_caveats = gpus.caveats()
                await self._profile(server, launch)
                self._progress.phase("stopping the server")
                if server.alive and self._facts.log_size is None:
                    self._facts.log_size = launch.log_path.stat().st_size
                stopped = server.stop()
        except BenchError as error:
            error.args = (self._named(str(error), launch),)
            raise
        if stopped.stopped_by == "died" and self._facts.failure is None:
            self._facts.failure = self._named("the server died after its last bench", launch)
        record = self._record(launch, server.pid, started_at, load_1m, setting, stopped)
        self._store.write_trial(record)
        return record

    async def _drive(self, server: RunningServer, launch: Launch) -> None:
        facts, first = self._facts, self._loads.all[0]
        async with aiohttp.ClientSession() as session:
            ready = await wait_ready(server, launch, session, self._scenario.server.ready_timeout)
            facts.time_to_ready = ready if server.ours else None
            # Once: of a server that is not ours, its process is looked for among all that listen here.
            facts.root_pid = server.root_pid
            requests = SmallRequests(session, launch.base_url, launch.model_name, first.bench, first.prompts[0])
            with self._memory(server, launch) as memory:
                try:
                    facts.first_request = await self._first_request(requests, server)
                    live = verify(self._kind, self._arm, await scrape(session, launch.base_url), launch.log_path)
                    facts.live, facts.memory_ready = live, memory.point()
                    server.look_at_shared_memory()
                    meter = Meter(session, requests, live.rule, live.pages, self._planned.slug, _SETTLE_S)
                    await meter.calibrate()
                    for number in range(1, self._scenario.passes + 1):
                        self._pass = number
                        for load in self._loads.all:
                            await self._measure(load, session, server, launch, meter, memory, live)
                            if facts.failure is not None:
                                break
                        # What was read after its last bench: walking a large server's memory again takes a second.
                        facts.memory_passes.append(facts.cells[-1].cell.memory)
                        if facts.failure is not None:
                            break
                except ServerDied as error:
                    facts.failure = self._named(f"{await _death(server)}: {error}", launch)
                facts.memory_end, facts.memory_peak = memory.point(), memory.peak

    def _memory(self, server: RunningServer, launch: Launch) -> AbstractContextManager[MemorySampler | NoMemory]:
        root_pid = self._facts.root_pid
        if root_pid is None:
            return NoMemory()
        pid = self._kind.stage0_pid(root_pid)
        return MemorySampler(pid, root_pid, launch.trial_dir / "samples.csv", with_root=not server.ours)

    async def _profile(self, server: RunningServer, launch: Launch) -> None:
        """Profiles stage 0, once in each arm, after all that is measured; what its log says meanwhile is no caveat."""
        settings = self._scenario.profile
        if settings is None or self._planned.round > 1 or self._facts.failure is not None or not server.alive:
            return
        if self._facts.root_pid is None:
            self._facts.profile = no_profile(settings, "the server's process was not found on this machine")
            return
        self._facts.log_size = launch.log_path.stat().st_size
        self._progress.phase(f"profiling {settings.bench}")
        pid, timeout = self._kind.stage0_pid(self._facts.root_pid), self._scenario.server.request_timeout
        bench = next(load.bench for load in self._loads.all if load.bench.name == settings.bench)
        self._facts.profile = await profile_bench(settings, bench, self._tokenizer, pid, launch, timeout)

    async def _first_request(self, requests: SmallRequests, server: RunningServer) -> float:
        """Seconds that the very first request takes: short, its prompt the trial's own, two tokens back."""
        try:
            text = f"First request {self._planned.slug}"
            return (await requests.send(text, _FIRST_TOKENS, "the first request")).latency
        except ServerNotReady as error:
            # A dying server may still refuse: its death is what is to be told, and costs one trial, not the run.
            await _death(server)
            if server.alive:
                raise
            raise ServerDied(str(error)) from error

    async def _measure(
        self,
        load: Load,
        session: aiohttp.ClientSession,
        server: RunningServer,
        launch: Launch,
        meter: Meter,
        memory: MemorySampler | NoMemory,
        live: Live,
    ) -> None:
        bench = load.bench
        self._progress.bench(bench.name, len(load.prompts), load.cost)
        before = await self._read(meter)
        started_at = utc_now()
        reasons: list[str] = []
        after: Reading | None = None
        cpus = CpuWatch(self._facts.root_pid)
        result = await self._watched(load, session, launch)
        host_cpu = cpus.read()
        if isinstance(bench, Check) and isinstance(result, LoadResult) and self._pass == 1:
            self._keep_speech(bench, result)
        if result is None:
            result = called_off(len(load.prompts), datetime.fromisoformat(started_at), _HUNG)
            reasons.append(_HUNG)
            self._facts.failure = self._named(f"{_HUNG} during bench {bench.name}", launch)
        else:
            try:
                after = await self._read(meter)
            except ServerDied:
                death = await _death(server)
                reasons.append(_HUNG if server.alive else "the server process died")
                self._facts.failure = self._named(f"{death} during bench {bench.name}", launch)
        cell = self._cell(load, result, before, after, started_at, memory.point(), reasons, live, host_cpu)
        if self._pass == 1:
            self._facts.benches.append(bench.name)
        self._facts.cells.append(cell)
        self._progress.cell(cell)

    def _keep_speech(self, check: Check, result: LoadResult) -> None:
        """Whatever came as speech: an answer without any is scored as such."""
        for raw in result.requests:
            with suppress(AudioError):
                self._store.write_audio(self._planned, check.name, raw.index, wav_bytes(*pcm_of(raw)))

    async def _read(self, meter: Meter) -> Reading:
        try:
            return await meter.read()
        except SettleTimeout:
            raise
        except HarnessFailure as error:
            # A server that leaves a scrape without any answer is as good as dead: it costs its trial, not the run.
            raise ServerDied(str(error)) from error

    async def _watched(
        self, load: Load, session: aiohttp.ClientSession, launch: Launch
    ) -> LoadResult | VllmBenchLoad | None:
        """Runs the load; None where the server hung and the load was called off."""
        request_timeout = self._scenario.server.request_timeout
        loading = asyncio.create_task(
            drive(
                load.bench,
                load.prompts,
                vllm_bench=self._vllm_bench,
                base_url=launch.base_url,
                model=launch.model_name,
                tokenizer=self._tokenizer,
                folder=self._store.begin_pass(self._planned, self._pass),
                timeout_s=request_timeout,
                on_progress=lambda done, _total: self._progress.request(done),
            )
        )
        watching = asyncio.create_task(hung(session, launch.base_url, min(PATIENCE_S, request_timeout)))
        try:
            await asyncio.wait({loading, watching}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                return await loading
            watching.result()
            return None
        finally:
            for task in (loading, watching):
                task.cancel()
            await asyncio.gather(loading, watching, return_exceptions=True)

    def _cell(
        self,
        load: Load,
        result: LoadResult | VllmBenchLoad,
        before: Reading,
        after: Reading | None,
        started_at: str,
        memory: MemoryPoint | None,
        reasons: list[str],
        live: Live,
        host_cpu: HostCpu | None,
    ) -> CellRecord:
        bench = load.bench
        measured = measure(
            result, bench=bench, prompts=load.prompts, model=self._scenario.model, tokenizer=self._tokenizer
        )
        records, summary = measured.records, measured.summary
        reasons += measured.failures
        lag = result.client_lag
        metrics, hit = None, None
        if after is not None:
            try:
                metrics = metrics_delta(before.scrape, after.scrape, HIT_COUNTERS, probe=after.probe)
                hit = self._hit_rate(metrics, load, live)
            except (MetricAbsent, CounterReset) as error:
                reasons.append(str(error))
        if not reasons:
            check = isinstance(bench, Check)
            reasons += cell_invalid(
                summary,
                expects_caching=live.caching,
                hit=hit,
                validity=self._scenario.validity,
                # A check is not about speed, and scores what failed.
                client_lag=None if check else lag,
                allow_failures=bench.prompts if check else self._scenario.validity.allow_failures,
                first_error=next((record.error for record in records if record.error is not None), None),
            )
        cell = CellRecord(
            **summary.model_dump(),
            cell=CellInfo(
                round=self._planned.round,
                position=self._planned.position,
                arm=self._planned.arm,
                bench=bench.name,
                reported=bench.reported and self._pass == 1,
                pass_number=self._pass,
                started_at=started_at,
                finished_at=utc_now(),
                modalities=bench.modalities,
                hit_rate=hit,
                metrics=metrics,
                memory=memory,
                client_lag_ms=None if lag is None else lag.late_ms,
                client_lag_waiting_ms=None if lag is None else lag.waiting_ms,
                foreign_cores=None if host_cpu is None else host_cpu.foreign,
                client=measured.client,
                invalid=tuple(reasons),
                caveats=cell_caveats(records, lag, host_cpu) + measured.caveats,
            ),
        )
        self._store.write_cell(self._planned, cell, records)
        return cell

    def _hit_rate(self, metrics: MetricsDelta, load: Load, live: Live) -> HitRate:
        queries, hits = hit_counters(metrics.delta)
        return HitRate(
            queries=queries,
            hits=hits,
            rate=hits / queries if queries else None,
            ideal=0.0 if live.caching is False else self._ideal(load, live),
        )

    def _ideal(self, load: Load, live: Live) -> float | None:
        # Later passes find what the first left, as far as the cache could hold it.
        return self._loads.ideal(live.block_size)[load.bench.name] if self._pass == 1 else None

    def _named(self, message: str, launch: Launch) -> str:
        log = "" if str(launch.log_path) in message else f"; its log: {launch.log_path}"
        return f"trial {self._planned.slug}: {message}{log}"

    def _record(
        self, launch: Launch, pid: int | None, started_at: str, load_1m: float, setting: Setting, stopped: StopReport
    ) -> TrialRecord:
        facts = self._facts
        unchecked = (Caveat(kind="not checked", message=what, line=None) for what in self._kind.unchecked(self._arm))
        return TrialRecord(
            round=self._planned.round,
            position=self._planned.position,
            arm=self._planned.arm,
            status="finished" if facts.failure is None else "failed",
            failure=facts.failure,
            started_at=started_at,
            finished_at=utc_now(),
            argv=launch.recorded_argv(),
            env=launch.recorded_env(),
            resolved=self._arm.as_dict(),
            resolved_sha256=self._arm.sha256,
            pid=pid,
            port=launch.port,
            versions=self._kind.versions(self._arm),
            sources=setting.sources,
            cache_config={} if facts.live is None else dict(facts.live.config),
            time_to_ready=facts.time_to_ready,
            first_request=facts.first_request,
            memory_ready=facts.memory_ready,
            memory_end=facts.memory_end,
            memory_peak=facts.memory_peak,
            memory_passes=tuple(facts.memory_passes),
            benches=tuple(facts.benches),
            stopped_by=stopped.stopped_by,
            load_1m=load_1m,
            caveats=(
                *unchecked,
                *facts.gpu_caveats,
                *memory_growth(facts.cells),
                *no_profile_caveats(facts.profile),
                *shared_memory_caveats(stopped.shared_memory),
                *scan_log(launch.log_path, facts.log_size),
            ),
            host=setting.host,
            model=setting.model,
            gpus=setting.gpus,
            profile=facts.profile,
        )


async def _death(server: RunningServer) -> str:
    # Its sockets close before its exit status is known.
    for _ in range(_STATUS_READS):
        if server.returncode is not None:
            return f"the server died with exit status {server.returncode}"
        await asyncio.sleep(_STATUS_S)
    return "the server died" if not server.alive else _HUNG
