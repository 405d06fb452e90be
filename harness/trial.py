"""One trial, step by step: the only place that knows the whole sequence (docs/design.md, section 5)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

import aiohttp

from harness.client import LoadResult, run_load, summarise, to_records
from harness.errors import (
    BenchError,
    CounterReset,
    HarnessFailure,
    MetricAbsent,
    ServerDied,
    ServerNotReady,
    SettleTimeout,
)
from harness.progress import Progress
from harness.provenance import source_tree, utc_now
from harness.records import (
    CellInfo,
    CellRecord,
    HitRate,
    MemoryPoint,
    MetricsDelta,
    PlannedTrial,
    TrialRecord,
)
from harness.scenario import Bench, Scenario
from harness.servers.arm import ResolvedArm
from harness.servers.kinds import ServerKind
from harness.servers.launch import Launch, free_port
from harness.servers.process import ServerProcess, StopReport
from harness.servers.ready import first_request, wait_ready
from harness.store import RunStore
from harness.telemetry.counters import HIT_COUNTERS, cache_config, hit_counters, metrics_delta, verify_arm
from harness.telemetry.log_scan import scan_log
from harness.telemetry.memory import MemorySampler
from harness.telemetry.scrape import Scrape, scrape
from harness.telemetry.settle import settle
from harness.validity import cell_caveats, cell_invalid
from harness.watchdog import PATIENCE_S, called_off, hung
from harness.workloads import Prompt, Tokenizer

_SETTLE_S = 60.0
_HUNG = "the server stopped answering"
_STATUS_READS, _STATUS_S = 40, 0.05


@dataclass(frozen=True, slots=True)
class Load:
    """A bench with its prompts.

    Parameters:
        ideal: hit rate of an unbounded cache on these prompts, with the cache on.
        cost: tokens to compute with the cache off, what its running time goes by.
    """

    bench: Bench
    prompts: tuple[Prompt, ...]
    ideal: float
    cost: float


@dataclass(slots=True)
class _Facts:
    """What is learned as the trial goes on, for its record."""

    time_to_ready: float = 0.0
    first_request: float | None = None
    cache_config: dict[str, str] = field(default_factory=dict)
    memory_ready: MemoryPoint | None = None
    memory_end: MemoryPoint | None = None
    memory_peak: MemoryPoint | None = None
    benches: list[str] = field(default_factory=list)
    failure: str | None = None


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
        loads: Sequence[Load],
        tokenizer: Tokenizer,
        store: RunStore,
        progress: Progress,
    ) -> None:
        self._scenario, self._planned, self._arm, self._kind = scenario, planned, arm, kind
        self._loads, self._tokenizer, self._store, self._progress = loads, tokenizer, store, progress
        self._facts = _Facts()

    async def run(self) -> TrialRecord:
        """Runs the trial and writes its records.

        Raises:
            BenchError: the message names the trial and its log.
        """
        folder = self._store.begin_trial(self._planned)
        started_at, load_1m = utc_now(), os.getloadavg()[0]
        launch = self._kind.command(self._arm, self._scenario, free_port(), folder)
        self._progress.phase("starting the server")
        try:
            with ServerProcess.start(launch, self._scenario.server.stop_timeout) as server:
                await self._drive(server, launch)
                self._progress.phase("stopping the server")
                stopped = server.stop()
        except BenchError as error:
            error.args = (self._named(str(error), launch),)
            raise
        if stopped.stopped_by == "died" and self._facts.failure is None:
            self._facts.failure = self._named("the server died after its last bench", launch)
        record = self._record(launch, server.pid, started_at, load_1m, stopped)
        self._store.write_trial(record)
        return record

    async def _drive(self, server: ServerProcess, launch: Launch) -> None:
        facts = self._facts
        async with aiohttp.ClientSession() as session:
            facts.time_to_ready = await wait_ready(server, launch, session, self._scenario.server.ready_timeout)
            pid = self._kind.stage0_pid(server.guard_pid)
            with MemorySampler(pid, server.guard_pid, launch.trial_dir / "samples.csv") as memory:
                try:
                    facts.first_request = await self._first_request(session, server, launch)
                    facts.cache_config = cache_config(await scrape(session, launch.base_url))
                    verify_arm(self._expects_caching, facts.cache_config)
                    facts.memory_ready = memory.point()
                    for load in self._loads:
                        await self._measure(load, session, server, launch, memory)
                        if facts.failure is not None:
                            break
                except ServerDied as error:
                    facts.failure = self._named(f"{await _death(server)}: {error}", launch)
                facts.memory_end, facts.memory_peak = memory.point(), memory.peak

    async def _first_request(self, session: aiohttp.ClientSession, server: ServerProcess, launch: Launch) -> float:
        try:
            return await first_request(session, launch.base_url, launch.model_name, self._planned.slug)
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
        server: ServerProcess,
        launch: Launch,
        memory: MemorySampler,
    ) -> None:
        bench = load.bench
        self._progress.bench(bench.name, len(load.prompts), load.cost)
        before = await self._settle(session, launch)
        started_at = utc_now()
        reasons: list[str] = []
        after: Scrape | None = None
        result = await self._watched(load, session, launch)
        lag_ms = None if result is None else result.client_lag_ms
        if result is None:
            result = called_off(len(load.prompts), datetime.fromisoformat(started_at), _HUNG)
            reasons.append(_HUNG)
            self._facts.failure = self._named(f"{_HUNG} during bench {bench.name}", launch)
        else:
            try:
                after = await self._settle(session, launch)
            except ServerDied:
                death = await _death(server)
                reasons.append(_HUNG if server.alive else "the server process died")
                self._facts.failure = self._named(f"{death} during bench {bench.name}", launch)
        cell = self._cell(load, result, lag_ms, before, after, started_at, memory.point(), reasons)
        self._facts.benches.append(bench.name)
        self._progress.cell(cell)

    async def _settle(self, session: aiohttp.ClientSession, launch: Launch) -> Scrape:
        try:
            return await settle(session, launch.base_url, self._kind.settle_rule, _SETTLE_S)
        except SettleTimeout:
            raise
        except HarnessFailure as error:
            # A server that leaves a scrape without any answer is as good as dead: it costs its trial, not the run.
            raise ServerDied(str(error)) from error

    async def _watched(self, load: Load, session: aiohttp.ClientSession, launch: Launch) -> LoadResult | None:
        """Runs the load; None where the server hung and the load was called off."""
        request_timeout = self._scenario.server.request_timeout
        loading = asyncio.create_task(
            run_load(
                load.bench,
                load.prompts,
                base_url=launch.base_url,
                model=launch.model_name,
                on_progress=lambda done, _total: self._progress.request(done),
                timeout_s=request_timeout,
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
        result: LoadResult,
        lag_ms: float | None,
        before: Scrape,
        after: Scrape | None,
        started_at: str,
        memory: MemoryPoint | None,
        reasons: list[str],
    ) -> CellRecord:
        bench = load.bench
        records = to_records(
            result, bench=bench, prompts=load.prompts, count_tokens=lambda text: len(self._tokenizer.encode(text))
        )
        summary = summarise(
            records,
            bench=bench,
            duration_s=result.duration_s,
            started_at=result.started_at,
            model=self._scenario.model,
            tokenizer=str(self._tokenizer.folder),
        )
        metrics, hit = None, None
        if after is not None:
            try:
                metrics = metrics_delta(before, after, HIT_COUNTERS)
                hit = self._hit_rate(metrics, load)
            except (MetricAbsent, CounterReset) as error:
                reasons.append(str(error))
        if not reasons:
            reasons += cell_invalid(
                summary,
                expects_caching=self._expects_caching,
                hit=hit,
                validity=self._scenario.validity,
                client_lag_ms=lag_ms,
            )
        cell = CellRecord(
            **summary.model_dump(),
            cell=CellInfo(
                round=self._planned.round,
                position=self._planned.position,
                arm=self._planned.arm,
                bench=bench.name,
                reported=bench.reported,
                started_at=started_at,
                finished_at=utc_now(),
                modalities=bench.modalities,
                hit_rate=hit,
                metrics=metrics,
                memory=memory,
                client_lag_ms=lag_ms,
                invalid=tuple(reasons),
                caveats=cell_caveats(records, lag_ms),
            ),
        )
        self._store.write_cell(self._planned, cell, tuple(records))
        return cell

    def _hit_rate(self, metrics: MetricsDelta, load: Load) -> HitRate:
        queries, hits = hit_counters(metrics.delta)
        return HitRate(
            queries=queries,
            hits=hits,
            rate=hits / queries if queries else None,
            ideal=load.ideal if self._expects_caching is not False else 0.0,
        )

    @cached_property
    def _expects_caching(self) -> bool | None:
        return self._kind.expects_caching(self._arm)

    def _named(self, message: str, launch: Launch) -> str:
        log = "" if str(launch.log_path) in message else f"; its log: {launch.log_path}"
        return f"trial {self._planned.slug}: {message}{log}"

    def _record(self, launch: Launch, pid: int, started_at: str, load_1m: float, stopped: StopReport) -> TrialRecord:
        facts = self._facts
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
            sources=() if self._arm.source is None else (source_tree(launch.cwd, "server"),),
            cache_config=facts.cache_config,
            time_to_ready=facts.time_to_ready,
            first_request=facts.first_request,
            memory_ready=facts.memory_ready,
            memory_end=facts.memory_end,
            memory_peak=facts.memory_peak,
            benches=tuple(facts.benches),
            stopped_by=stopped.stopped_by,
            load_1m=load_1m,
            caveats=scan_log(launch.log_path),
        )


async def _death(server: ServerProcess) -> str:
    # Its sockets close before its exit status is known.
    for _ in range(_STATUS_READS):
        if server.returncode is not None:
            return f"the server died with exit status {server.returncode}"
        await asyncio.sleep(_STATUS_S)
    return "the server died" if not server.alive else _HUNG
