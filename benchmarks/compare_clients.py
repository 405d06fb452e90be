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
import shutil
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
import psutil
from comparison import CLIENTS, Comparison, Reading, table
from cpu_time import CpuTime, cores_of, listening
from notebook import Notebook

from harness.client import run_load, summarise, to_records
from harness.client.vllm_bench import RESULTS_DIR, VllmBench, find_vllm_bench, run_vllm_bench
from harness.errors import BenchError, ExitCode, HarnessFailure
from harness.records import BenchSummary, RequestRecord
from harness.scenario import Bench
from harness.servers.kinds import SettleRule
from harness.telemetry.counters import HIT_COUNTERS, hit_counters, metrics_delta
from harness.telemetry.scrape import Scrape
from harness.telemetry.settle import settle
from harness.workloads import Tokenizer, generate

STEPS = "vllm:iteration_tokens_total_count"
_SETTLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """The load and where it goes."""

    bench: Bench
    url: str
    model: str
    tokenizer: Path
    vllm: VllmBench


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
    return _reading("ours", summary, records, result.started_ns / 1e9, cpu)


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
            raise HarnessFailure(load.failure)
        written = json.loads((Path(folder) / RESULTS_DIR / f"{row.bench.name}.json").read_text(encoding="utf-8"))
    # Its instants are those of the monotonic clock that this process reads too.
    start = min(written["start_times"])
    return _reading("vllm", load.summary, load.records, start, cpu)


def _reading(
    client: str, summary: BenchSummary, records: Sequence[RequestRecord], started_s: float, cpu: CpuTime
) -> Reading:
    failed = [record for record in records if record.status != "ok"]
    if failed:
        raise HarnessFailure(
            f"{client}: {len(failed)} of {len(records)} requests failed, the first with: {failed[0].error}"
        )
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
        tuple(record.text for record in records),
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
    rule = SettleRule(publish_delay_s=0.2)
    async with aiohttp.ClientSession() as session:
        if reset:
            # Blocks that are still held would not be given up.
            await settle(session, url, rule, _SETTLE_S)
            async with session.post(f"{url}/reset_prefix_cache") as response:
                said = await response.text()
                if response.status != 200 or '"success":false' in said.replace(" ", ""):
                    raise HarnessFailure(f"{url} did not empty its prefix cache: HTTP {response.status} {said}")
        return await settle(session, url, rule, _SETTLE_S)


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
    reset, processes = asyncio.run(_can_reset(row.url)), listening(row.url)
    readings = []
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        # The first run compiles, allocates and, where the cache cannot be emptied, fills it.
        pool.submit(drive_ours, row).result()
        for number in range(repeats):
            for client in CLIENTS if number % 2 == 0 else CLIENTS[::-1]:
                before = asyncio.run(_at_rest(row.url, reset=reset))
                with CpuTime(lambda: processes) as server:
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
    server = cores_of(listening(url))
    ours = os.sched_getaffinity(0)
    shared = "cores of their own" if ours.isdisjoint(server) else "they share cores"
    return f"clients on cores {_listed(ours)}, server " + (f"on {_listed(server)}: {shared}" if server else "not seen")


def _program(text: str) -> str:
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: no program; allowed: an interpreter that has vLLM")
    # Not resolved: a virtual environment's interpreter is known by the link it was called through.
    return str(Path(found).absolute())


def main() -> None:
    """Exit status 2 for what was asked for wrongly, else that of what failed."""
    try:
        _main()
    except BenchError as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except aiohttp.ClientError as error:
        print(f"{Path(__file__).name}: no server answers: {error}", file=sys.stderr)
        raise SystemExit(ExitCode.FAILURE) from None


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "model", "tokenizer"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--python", required=True, type=_program, help="an interpreter that has vLLM")
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
    asyncio.run(_at_rest(row.url))
    found = compare(row, asked.repeats)
    print(table(found))
    if asked.json is not None:
        asked.json.write_text(json.dumps({**asdict(found), "ratio": found.ratio}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
