"""Our client against `vllm bench serve`: the same row on one running server, in turns.

    python benchmarks/compare_clients.py --url URL --model NAME --tokenizer FOLDER --python PYTHON_WITH_VLLM

Each client is a process of its own. First both are sent to a server that only writes down what it is asked, to compare
prompts; then they drive the real one, in alternating order, each on an empty prefix cache (POST /reset_prefix_cache,
which vLLM has with VLLM_SERVER_DEV_MODE=1) or, where the server has no such call, on one that has served the row
before, and each after the server has waited for the same imports.

On one machine a client also slows the server by the cores it takes, and a host's cores are not equally fast from run
to run. So give them cores of their own (the server `taskset -c 1`, this `--cpus 0`), and read beside the throughput how
many cores the server kept busy and how many steps its engine took: with either client as busy and in as many steps, it
was driven alike, and what the throughputs still differ by is how fast its cores were.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
from cpu_time import CpuTime, listening
from notebook import Notebook

from harness.client import run_load, summarise, to_records
from harness.client.vllm_bench import RESULTS_DIR, VllmBench, find_vllm_bench, run_vllm_bench
from harness.records import BenchSummary
from harness.scenario import Bench
from harness.servers.kinds import SettleRule
from harness.stats import geometric_interval
from harness.telemetry.counters import HIT_COUNTERS, hit_counters, metrics_delta
from harness.telemetry.scrape import Scrape
from harness.telemetry.settle import settle
from harness.workloads import Tokenizer, generate

CLIENTS = ("ours", "vllm")
STEPS = "vllm:iteration_tokens_total_count"
_SETTLE_S = 60.0
_COLUMNS = {
    "request_throughput": 6,
    "cpu_s": 6,
    "median_ttft_ms": 7,
    "median_e2el_ms": 7,
    "server_cores": 12,
    "engine_steps": 12,
}
"""What the table shows of a reading, and how wide."""


@dataclass(frozen=True, slots=True)
class Row:
    """The load and where it goes."""

    bench: Bench
    url: str
    model: str
    tokenizer: Path
    vllm: VllmBench


@dataclass(frozen=True, slots=True)
class Reading:
    """What one client made of one run.

    `cpu_s` is what its process spent during the load, `server_cpu_s` what the server's did: None where they are not to
    be seen. `started_s` is an instant of `time.perf_counter()`.
    """

    client: str
    request_throughput: float
    duration_s: float
    median_ttft_ms: float
    median_e2el_ms: float
    completed: int
    input_tokens: int
    output_tokens: int
    texts: tuple[str, ...]
    started_s: float
    cpu_s: float | None
    server_cpu_s: float | None = None
    engine_steps: float = 0.0
    hits: float = 0.0
    queries: float = 0.0

    @property
    def server_cores(self) -> float | None:
        """Cores that the server kept busy, on average."""
        return None if self.server_cpu_s is None else self.server_cpu_s / self.duration_s


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it. Medians are over the runs of one client."""

    prompts: int
    same_prompts: int
    readings: tuple[Reading, ...]

    def of(self, client: str) -> list[Reading]:
        return [reading for reading in self.readings if reading.client == client]

    def median(self, client: str, name: str) -> float | None:
        """None where one of its runs lacks the figure."""
        values = [getattr(reading, name) for reading in self.of(client)]
        return None if None in values else statistics.median(values)

    @property
    def ratio(self) -> float:
        """Our median request throughput over theirs."""
        ours, theirs = (self.median(client, "request_throughput") for client in CLIENTS)
        assert ours is not None
        assert theirs is not None
        return ours / theirs

    @property
    def by_turn(self) -> list[float]:
        """Ours over theirs, turn by turn: what drifts over minutes cancels."""
        return [
            ours.request_throughput / theirs.request_throughput
            for ours, theirs in zip(self.of("ours"), self.of("vllm"), strict=True)
        ]

    @property
    def counts(self) -> set[tuple[int, int, int]]:
        """Requests completed, tokens in, tokens out: one entry where every run of both agrees."""
        return {(reading.completed, reading.input_tokens, reading.output_tokens) for reading in self.readings}

    @property
    def hit_deltas(self) -> set[tuple[float, float]]:
        """Tokens hit and looked up: one entry where every run of both agrees."""
        return {(reading.hits, reading.queries) for reading in self.readings}


def drive_ours(row: Row) -> Reading:
    """One run of our client in this process."""
    tokenizer = Tokenizer(row.tokenizer)
    prompts = generate(row.bench, tokenizer)
    with CpuTime(lambda: [psutil.Process()]) as cpu:
        result = asyncio.run(run_load(row.bench, prompts, base_url=row.url, model=row.model))
    records = to_records(result, bench=row.bench, prompts=prompts)
    summary = summarise(
        records,
        bench=row.bench,
        duration_s=result.duration_s,
        started_at=result.started_at,
        model=row.model,
        tokenizer=str(row.tokenizer),
    )
    return _reading("ours", summary, [record.text for record in records], result.started_ns / 1e9, cpu)


def drive_vllm(row: Row) -> Reading:
    """One run of `vllm bench serve`, its CPU time sampled from outside."""
    prompts = generate(row.bench, Tokenizer(row.tokenizer))
    with tempfile.TemporaryDirectory() as folder, CpuTime(partial(_serving, row.vllm.python)) as cpu:
        load = asyncio.run(
            run_vllm_bench(
                row.vllm,
                row.bench,
                prompts,
                base_url=row.url,
                model=row.model,
                tokenizer=row.tokenizer,
                folder=Path(folder),
                timeout_s=600.0,
            )
        )
        if load.failure is not None:
            raise SystemExit(load.failure)
        written = json.loads((Path(folder) / RESULTS_DIR / f"{row.bench.name}.json").read_text(encoding="utf-8"))
    # Its instants are those of the monotonic clock that this process reads too.
    start = min(written["start_times"])
    return _reading("vllm", load.summary, [record.text for record in load.records], start, cpu)


def _reading(client: str, summary: BenchSummary, texts: Sequence[str], started_s: float, cpu: CpuTime) -> Reading:
    assert summary.median_ttft_ms is not None
    assert summary.median_e2el_ms is not None
    return Reading(
        client,
        summary.request_throughput,
        summary.duration,
        summary.median_ttft_ms,
        summary.median_e2el_ms,
        summary.completed,
        summary.total_input_tokens,
        summary.total_output_tokens,
        tuple(texts),
        started_s,
        cpu.between(started_s, started_s + summary.duration),
    )


def _serving(python: str) -> list[psutil.Process]:
    """The descendant that is `vllm bench serve` in this interpreter."""
    for child in psutil.Process().children(recursive=True):
        words = child.cmdline()
        if words[:1] == [python] and "--save-detailed" in words:
            return [child]
    return []


def asked_prompts(row: Row) -> dict[str, list[str]]:
    """What each client asks for: its prompts with the number of tokens wanted, as JSON, in the order of the row."""

    async def collect() -> dict[str, list[str]]:
        found = {}
        for client, drive in zip(CLIENTS, (drive_ours, drive_vllm), strict=True):
            notebook, ready = Notebook(), asyncio.get_running_loop().create_future()
            serving = asyncio.create_task(notebook.serve(ready))
            # One at a time, so that the order in which they are written down is the order of the row.
            bench = row.bench.model_copy(update={"concurrency": 1, "request_rate": None, "burstiness": None})
            there = Row(bench, f"http://127.0.0.1:{await ready}", row.model, row.tokenizer, row.vllm)
            await asyncio.to_thread(drive, there)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            found[client] = [_wish(body) for body in notebook.asked]
        return found

    return asyncio.run(collect())


def _wish(body: dict[str, Any]) -> str:
    prompt = body["messages"] if "messages" in body else body["prompt"]
    return json.dumps([prompt, body.get("max_completion_tokens") or body["max_tokens"]])


async def _at_rest(url: str, *, reset: bool = False) -> Scrape:
    async with aiohttp.ClientSession() as session:
        if reset:
            async with session.post(f"{url}/reset_prefix_cache") as response:
                await response.read()
        return await settle(session, url, SettleRule(publish_delay_s=0.2), _SETTLE_S)


async def _can_reset(url: str) -> bool:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/reset_prefix_cache") as response:
        return response.status == 200


def _start_theirs(python: str) -> None:
    """Lets the server wait while an interpreter imports what their client imports before it sends anything.

    A server that has idled, and whose cores were given to an import, is slower at first: ours must not go without.
    """
    subprocess.run([python, "-c", "import vllm.benchmarks.serve"], check=True, capture_output=True)


def compare(row: Row, repeats: int) -> Comparison:
    """Compare prompts, then drive the row `repeats` times with each client, in alternating order."""
    asked = asked_prompts(row)
    same = sum(ours == theirs for ours, theirs in zip(asked["ours"], asked["vllm"], strict=True))
    reset = asyncio.run(_can_reset(row.url))
    readings = []
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        # The first run compiles, allocates and, where the cache cannot be emptied, fills it.
        pool.submit(drive_ours, row).result()
        for number in range(repeats):
            for client in CLIENTS if number % 2 == 0 else CLIENTS[::-1]:
                before = asyncio.run(_at_rest(row.url, reset=reset))
                with CpuTime(partial(listening, row.url)) as server:
                    if client == "ours":
                        _start_theirs(row.vllm.python)
                        reading = pool.submit(drive_ours, row).result()
                    else:
                        reading = drive_vllm(row)
                spent = server.between(reading.started_s, reading.started_s + reading.duration_s)
                delta = metrics_delta(before, asyncio.run(_at_rest(row.url)), (*HIT_COUNTERS, STEPS))
                queries, hits = hit_counters(delta.delta)
                readings.append(
                    replace(reading, server_cpu_s=spent, engine_steps=delta.delta[STEPS], hits=hits, queries=queries)
                )
                print(f"{number + 1}/{repeats} {client}: {reading.request_throughput:.3f} req/s", file=sys.stderr)
    return Comparison(len(asked["ours"]), same, tuple(readings))


def table(found: Comparison) -> str:
    """The comparison for a person."""
    lines = ["client  req/s   CPU s   TTFT ms  E2EL ms  server cores  engine steps  (req/s of each run)"]
    for client in CLIENTS:
        cells = [
            f"{'-' if value is None else format(value, '.2f'):<{width}}"
            for name, width in _COLUMNS.items()
            for value in [found.median(client, name)]
        ]
        runs = ", ".join(f"{reading.request_throughput:.2f}" for reading in found.of(client))
        lines.append(f"{client:<6}  {'  '.join(cells)}  ({runs})")
    lines += [
        f"ratio of the medians, ours / vllm: {found.ratio - 1:+.2%}",
        f"turn by turn: {_spread(found.by_turn)}",
        f"same prompts: {found.same_prompts} of {found.prompts}",
        f"completed, tokens in, tokens out: {_agreed(found.counts)}",
        f"tokens hit, tokens looked up: {_agreed(found.hit_deltas)}",
        f"same answers: {'yes' if len({reading.texts for reading in found.readings}) == 1 else 'no'}",
    ]
    return "\n".join(lines)


def _spread(ratios: Sequence[float]) -> str:
    median = f"median {statistics.median(ratios) - 1:+.1%}"
    if len(ratios) < 2:
        return median
    low, centre, high = (float(bound) - 1 for bound in geometric_interval(np.array(ratios)))
    return f"geometric mean {centre:+.1%}, 95 % interval {low:+.1%} .. {high:+.1%}, {median}"


def _agreed(found: set[Any]) -> str:
    return (
        ", ".join(f"{value:g}" for value in next(iter(found))) if len(found) == 1 else f"runs differ: {sorted(found)}"
    )


def _cpus(text: str) -> set[int]:
    here = os.sched_getaffinity(0)
    try:
        asked = {int(number) for number in text.split(",")}
    except ValueError:
        asked = set()
    if not asked or asked - here:
        raise argparse.ArgumentTypeError(f"{text}: allowed are cores out of {_listed(here)}, with commas between")
    return asked


def _listed(cpus: set[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


def _where(url: str) -> str:
    """Which cores the clients and the server may use."""
    server = {cpu for process in listening(url) for cpu in process.cpu_affinity()}
    ours = os.sched_getaffinity(0)
    shared = "cores of their own" if ours.isdisjoint(server) else "they share cores"
    return f"clients on cores {_listed(ours)}, server " + (f"on {_listed(server)}: {shared}" if server else "not seen")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "model", "tokenizer", "python"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpus", type=_cpus, metavar="LIST", help="cores for both clients, such as 1 or 2,3")
    parser.add_argument("--json", type=Path, help="write every reading here")
    shape = {"shared_prefix": 256, "random_len": 64, "output": 16, "concurrency": 8, "prompts": 64, "seed": 7}
    for name, value in shape.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat")
    asked = parser.parse_args()
    if asked.cpus is not None:
        os.sched_setaffinity(0, asked.cpus)
    bench = Bench(
        name="compare", dataset="random", range_ratio=0.0, endpoint=asked.endpoint,
        **{name: getattr(asked, name) for name in shape},
    )  # fmt: skip
    vllm = find_vllm_bench(asked.python, "external")
    row = Row(bench, asked.url.rstrip("/"), asked.model, Path(asked.tokenizer).absolute(), vllm)
    print(f"{vllm.name(omni=False)}; {bench.prompts} prompts at concurrency {bench.concurrency}; {_where(row.url)}")
    found = compare(row, asked.repeats)
    print(table(found))
    if asked.json is not None:
        asked.json.write_text(json.dumps({**asdict(found), "ratio": found.ratio}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
