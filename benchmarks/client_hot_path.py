"""What our client costs, and what it adds to what it measures, next to other clients in the same run.

    python benchmarks/client_hot_path.py [--peer PYTHON_WITH_VLLM] [--concurrency 32] [--audio-bytes 0] ...

A scripted server (a process of its own) streams events and writes into each the instant it sent it. Every client (each
a process of its own, one after the other, repeated in alternating order) drives the same closed loop at it:

* `ours`: `harness.client.run_load`;
* `naive`: aiohttp, line by line, JSON parsed as it arrives, the clock read after the parse;
* `vllm`: with --peer, the request function of `vllm bench serve` from that interpreter.

Two loads: *paced*, a fixed gap between events, for the jitter a client adds: |its ITL - the server's own gap|; and
*flood*, no gap, for how much a client can take in: requests and chunks per second. CPU is the client process's own:
`load` while it measures, `total` with what it needs after that to know the result (we parse then, the others do not).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

Timed = tuple[list[float], str]
"""One request as a client saw it: gaps between its events in seconds, and the text: the server's instants."""

Driven = tuple[float, float, list[Timed]]
"""One load: its wall time and the client's CPU time in it, in seconds, and its requests."""


@dataclass(frozen=True)
class Shape:
    """One load: `audio_bytes` of base64 audio follow each text event in the same event's `audio` field."""

    name: str
    requests: int
    concurrency: int
    chunks: int
    gap_ms: float
    audio_bytes: int


@dataclass(frozen=True)
class Reading:
    """What one client made of one load."""

    requests_per_s: float
    chunks_per_s: float
    load_cpu_ms_per_request: float
    total_cpu_ms_per_request: float
    jitter_p50_us: float
    jitter_p99_us: float


async def serve() -> None:
    """The scripted server: minimal HTTP/1.1, chunked, kept alive, so that it is not what limits the clients."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                await stream(writer, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def stream(writer: asyncio.StreamWriter, body: dict[str, float]) -> None:
        chunks, gap_s = int(body["chunks"]), body["gap_ms"] / 1e3
        filler = base64.b64encode(bytes(int(body["audio_bytes"]))).decode()
        for _ in range(chunks):
            content = f"{time.perf_counter_ns()} "
            delta = f'{{"content":"{content}"}},"filler":"{filler}"'
            send(writer, f'{{"id":"x","object":"chat.completion.chunk","choices":[{{"index":0,"delta":{delta}}}]}}')
            await writer.drain()
            if gap_s:
                await asyncio.sleep(gap_s)
            else:
                await asyncio.sleep(0)
        send(writer, f'{{"choices":[],"usage":{{"prompt_tokens":1,"completion_tokens":{chunks}}}}}')
        send(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def send(writer: asyncio.StreamWriter, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 20, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    # The parent closes our standard input when it is done with us.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


def script_of(shape: Shape) -> dict[str, float]:
    return {"chunks": shape.chunks, "gap_ms": shape.gap_ms, "audio_bytes": shape.audio_bytes}


async def drive_ours(url: str, shape: Shape) -> Driven:
    from harness.client import run_load, to_records
    from harness.scenario import Bench
    from harness.workloads.prompt import Prompt

    bench = Bench(
        name=shape.name,
        dataset="random",
        shared_prefix=0,
        random_len=1,
        range_ratio=0.0,
        concurrency=shape.concurrency,
        prompts=shape.requests,
        seed=0,
        output=shape.chunks,
        extra_body=script_of(shape),
    )
    prompts = [Prompt("x", 1, shape.chunks)] * shape.requests
    cpu = time.process_time()
    load = await run_load(bench, prompts, base_url=url, model="m")
    cpu_s = time.process_time() - cpu
    records = to_records(load, bench=bench, prompts=prompts)
    if failed := [record.error for record in records if record.status != "ok"]:
        raise SystemExit(f"ours: {len(failed)} failed, the first: {failed[0]}")
    return load.duration_s, cpu_s, [(list(record.itl), record.text) for record in records]


async def drive_naive(url: str, shape: Shape) -> Driven:
    import aiohttp

    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True} | script_of(shape)

    async def one(session: aiohttp.ClientSession) -> Timed:
        stamps: list[float] = []
        text = ""
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            async for line in response.content:
                data = line.decode().strip().removeprefix("data: ")
                if not data or data == "[DONE]":
                    continue
                for choice in json.loads(data)["choices"]:
                    text += choice["delta"]["content"]
                    stamps.append(time.perf_counter())
        return [after - before for before, after in pairwise(stamps)], text

    connector = aiohttp.TCPConnector(limit=shape.concurrency)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=4 << 20) as session:
        return await closed_loop(shape, lambda: one(session))


async def drive_vllm(url: str, shape: Shape) -> Driven:
    import aiohttp
    from vllm.benchmarks.lib.endpoint_request_func import (
        RequestFuncInput,
        async_request_openai_chat_completions,
    )

    request = RequestFuncInput(
        prompt="x",
        api_url=f"{url}/v1/chat/completions",
        prompt_len=1,
        output_len=shape.chunks,
        model="m",
        ignore_eos=True,
        extra_body=script_of(shape),
    )

    async def one(session: aiohttp.ClientSession) -> Timed:
        output = await async_request_openai_chat_completions(request, session)
        if not output.success:
            raise SystemExit(f"vllm: {output.error}")
        return output.itl, output.generated_text

    # The session settings are those of `vllm bench serve`.
    connector = aiohttp.TCPConnector(limit=shape.concurrency, limit_per_host=shape.concurrency, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector) as session:
        return await closed_loop(shape, lambda: one(session))


async def closed_loop(shape: Shape, one) -> Driven:  # type: ignore[no-untyped-def]
    """All requests as tasks behind a semaphore: how the peers of this benchmark bound their concurrency."""
    places = asyncio.Semaphore(shape.concurrency)

    async def placed() -> Timed:
        async with places:
            return await one()

    began, cpu = time.perf_counter(), time.process_time()
    results = await asyncio.gather(*(placed() for _ in range(shape.requests)))
    return time.perf_counter() - began, time.process_time() - cpu, list(results)


CLIENTS = {"ours": drive_ours, "naive": drive_naive, "vllm": drive_vllm}


def read(shape: Shape, driven: Driven, total_cpu_s: float) -> Reading:
    """Jitter: the client's gap between two events against the gap between the instants the server wrote in them."""
    duration_s, load_cpu_s, requests = driven
    errors = []
    for itl, text in requests:
        sent = [int(stamp) for stamp in text.split()]
        if len(sent) != shape.chunks or len(itl) != shape.chunks - 1:
            raise SystemExit(f"a client saw {len(sent)} events and {len(itl)} gaps of {shape.chunks} events")
        gaps = [(after - before) / 1e9 for before, after in pairwise(sent)]
        errors += [abs(seen - true) for seen, true in zip(itl, gaps, strict=True)]
    cuts = statistics.quantiles(errors, n=100, method="inclusive")
    return Reading(
        requests_per_s=len(requests) / duration_s,
        chunks_per_s=len(requests) * shape.chunks / duration_s,
        load_cpu_ms_per_request=load_cpu_s / len(requests) * 1e3,
        total_cpu_ms_per_request=total_cpu_s / len(requests) * 1e3,
        jitter_p50_us=cuts[49] * 1e6,
        jitter_p99_us=cuts[98] * 1e6,
    )


def run_client(name: str, url: str, shape: Shape) -> None:
    drive = CLIENTS[name]
    # One small load first: imports and first connections are not what is measured.
    warm = Shape("warm", 4, 2, 4, 0.0, shape.audio_bytes)
    asyncio.run(drive(url, warm))
    cpu = time.process_time()
    driven = asyncio.run(drive(url, shape))
    json.dump(asdict(read(shape, driven, time.process_time() - cpu)), sys.stdout)


def measure(client: str, python: str, url: str, shape: Shape) -> Reading:
    command = [python, __file__, "--run-client", client, "--url", url, "--shape", json.dumps(asdict(shape))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{client} failed:\n{done.stdout}{done.stderr}")
    return Reading(**json.loads(done.stdout.splitlines()[-1]))


def median(readings: Sequence[Reading]) -> Reading:
    rows = [asdict(reading) for reading in readings]
    return Reading(**{key: statistics.median(row[key] for row in rows) for key in rows[0]})


def report(shape: Shape, results: dict[str, Reading]) -> None:
    audio = f", {shape.audio_bytes} audio bytes each" if shape.audio_bytes else ""
    print(
        f"\n{shape.name}: {shape.requests} requests of {shape.chunks} events{audio}, {shape.concurrency} in flight, "
        f"gap {shape.gap_ms:g} ms"
    )
    print(
        f"{'':26}"
        + "".join(f"{name:>14}" for name in results)
        + "".join(f"{f'{n}/ours':>14}" for n in results if n != "ours")
    )
    for key in asdict(results["ours"]):
        values = {name: getattr(reading, key) for name, reading in results.items()}
        ratios = "".join(f"{value / values['ours']:>14.2f}" for name, value in values.items() if name != "ours")
        print(f"{key:26}" + "".join(f"{value:>14.1f}" for value in values.values()) + ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter with vLLM: adds `vllm bench serve`'s client")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--chunks", type=int, default=32)
    parser.add_argument("--gap-ms", type=float, default=20.0)
    parser.add_argument("--audio-bytes", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--run-client", choices=sorted(CLIENTS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve())
        return
    if args.run_client:
        run_client(args.run_client, args.url, Shape(**json.loads(args.shape)))
        return

    clients = {"ours": sys.executable, "naive": sys.executable} | ({"vllm": args.peer} if args.peer else {})
    # A flood is over at once: more requests, so that what a load costs only once does not weigh.
    shapes = [
        Shape("paced", args.requests, args.concurrency, args.chunks, args.gap_ms, args.audio_bytes),
        Shape("flood", args.requests * 8, args.concurrency, args.chunks, 0.0, args.audio_bytes),
    ]
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        print(f"python {sys.version.split()[0]}, {os.cpu_count()} CPUs, median of {args.repeats} runs")
        for shape in shapes:
            readings: dict[str, list[Reading]] = {name: [] for name in clients}
            for repeat in range(args.repeats):
                for name in list(clients)[:: 1 if repeat % 2 == 0 else -1]:
                    readings[name].append(measure(name, clients[name], url, shape))
            report(shape, {name: median(taken) for name, taken in readings.items()})
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(timeout=10)


if __name__ == "__main__":
    # The peer's interpreter does not have this project installed, nor needs it; ours may be run from a checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
