"""Our client against `vllm bench serve`: the same row on one running server, in turns.

    python benchmarks/compare_clients.py --url URL --model NAME --tokenizer FOLDER --python PYTHON_WITH_VLLM

Each client is a process of its own. First both are sent to a server that only writes down what it is asked, to compare
prompts; then they drive the real one, in alternating order, each on an empty prefix cache (POST /reset_prefix_cache,
which vLLM has with VLLM_SERVER_DEV_MODE=1) or, where the server has no such call, on one that has served the row
before, and each after the server has waited for the same imports. CPU is the client process's own while the load ran,
which the server shares where the two share cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
from aiohttp import web

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
_SAMPLE_S = 0.02
_SETTLE_S = 60.0


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
    """What one client made of one run; `cpu_s` is its process's own during the load."""

    client: str
    request_throughput: float
    duration_s: float
    median_ttft_ms: float
    median_e2el_ms: float
    completed: int
    input_tokens: int
    output_tokens: int
    texts: tuple[str, ...]
    cpu_s: float
    hits: float = 0.0
    queries: float = 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it. Medians are over the runs of one client."""

    prompts: int
    same_prompts: int
    readings: tuple[Reading, ...]

    def of(self, client: str) -> list[Reading]:
        return [reading for reading in self.readings if reading.client == client]

    def median(self, client: str, name: str) -> float:
        return statistics.median(getattr(reading, name) for reading in self.of(client))

    @property
    def ratio(self) -> float:
        """Our median request throughput over theirs."""
        return self.median("ours", "request_throughput") / self.median("vllm", "request_throughput")

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
    with _Cpu(psutil.Process) as cpu:
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
    start = result.started_ns / 1e9
    spent = cpu.between(start, start + result.duration_s)
    return _reading("ours", summary, [record.text for record in records], spent)


def drive_vllm(row: Row) -> Reading:
    """One run of `vllm bench serve`, its CPU time sampled from outside."""
    prompts = generate(row.bench, Tokenizer(row.tokenizer))
    with tempfile.TemporaryDirectory() as folder, _Cpu(partial(_serving, row.vllm.python)) as cpu:
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
    spent = cpu.between(start, start + load.summary.duration)
    return _reading("vllm", load.summary, [record.text for record in load.records], spent)


def _reading(client: str, summary: BenchSummary, texts: Sequence[str], cpu_s: float) -> Reading:
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
        cpu_s,
    )


class _Cpu:
    """Samples the CPU time of one process, both clients' in the same way.

    Parameters:
        find: the process, or None while there is none.
    """

    def __init__(self, find: Callable[[], psutil.Process | None]) -> None:
        self._find = find
        self._samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> _Cpu:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def between(self, start: float, stop: float) -> float:
        """CPU seconds between two instants of `time.perf_counter()`."""
        at, spent = np.array(self._samples).T
        return float(np.interp(stop, at, spent) - np.interp(start, at, spent))

    def _sample(self) -> None:
        process: psutil.Process | None = None
        while not self._stop.wait(_SAMPLE_S):
            try:
                process = process or self._find()
                if process is not None:
                    times = process.cpu_times()
                    self._samples.append((time.perf_counter(), times.user + times.system))
            except psutil.Error:
                process = None


def _serving(python: str) -> psutil.Process | None:
    """The descendant that is `vllm bench serve` in this interpreter."""
    for child in psutil.Process().children(recursive=True):
        words = child.cmdline()
        if words[:1] == [python] and "--save-detailed" in words:
            return child
    return None


class Notebook:
    """A simulated server: answers a token to everything, and writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        tokens = body.get("max_completion_tokens") or body["max_tokens"]
        chunk = {"choices": [{"delta": {"content": "x"}, "text": "x", "finish_reason": "length"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}
        for event in (json.dumps(chunk), json.dumps(usage), "[DONE]"):
            await response.write(f"data: {event}\n\n".encode())
        return response

    async def serve(self, ready: asyncio.Future[int]) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/completions", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.set_result(runner.addresses[0][1])
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


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
                if client == "ours":
                    _start_theirs(row.vllm.python)
                    reading = pool.submit(drive_ours, row).result()
                else:
                    reading = drive_vllm(row)
                delta = metrics_delta(before, asyncio.run(_at_rest(row.url)), HIT_COUNTERS)
                queries, hits = hit_counters(delta.delta)
                readings.append(replace(reading, hits=hits, queries=queries))
                print(f"{number + 1}/{repeats} {client}: {reading.request_throughput:.3f} req/s", file=sys.stderr)
    return Comparison(len(asked["ours"]), same, tuple(readings))


def table(found: Comparison) -> str:
    """The comparison for a person."""
    lines = [
        "client  req/s median  (each run)                                CPU s   TTFT ms  E2EL ms",
    ]
    for client in CLIENTS:
        runs = ", ".join(f"{reading.request_throughput:.3f}" for reading in found.of(client))
        cells = [found.median(client, name) for name in ("cpu_s", "median_ttft_ms", "median_e2el_ms")]
        lines.append(
            f"{client:<6}  {found.median(client, 'request_throughput'):<12.3f}  {runs:<40}  "
            f"{cells[0]:<6.2f}  {cells[1]:<7.1f}  {cells[2]:.1f}"
        )
    lines += [
        f"ratio of the medians, ours / vllm: {found.ratio:.4f} ({found.ratio - 1:+.2%})",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "model", "tokenizer", "python"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write every reading here")
    shape = {"shared_prefix": 256, "random_len": 64, "output": 16, "concurrency": 8, "prompts": 64, "seed": 7}
    for name, value in shape.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat")
    asked = parser.parse_args()
    bench = Bench(
        name="compare", dataset="random", range_ratio=0.0, endpoint=asked.endpoint,
        **{name: getattr(asked, name) for name in shape},
    )  # fmt: skip
    vllm = find_vllm_bench(asked.python, "external")
    row = Row(bench, asked.url.rstrip("/"), asked.model, Path(asked.tokenizer).absolute(), vllm)
    print(f"{vllm.name(omni=False)}; {bench.prompts} prompts at concurrency {bench.concurrency}")
    found = compare(row, asked.repeats)
    print(table(found))
    if asked.json is not None:
        asked.json.write_text(json.dumps({**asdict(found), "ratio": found.ratio}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
