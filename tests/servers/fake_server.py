"""A small real server with the faults that the tests of the process and telemetry modules inject.

Only the standard library, so that it starts quickly. `--moving N`: the counters of the first N scrapes differ;
`--busy N`: the first N scrapes show a running request. `--children N` starts children in the server's group,
`--detached N` in sessions of their own, `--orphans N` whose parent ends at once; their ids are printed to the log as
`child PID`, `detached PID`, `orphan PID`. `--hopping S` starts one in a session of its own that for so many seconds
lives on in a child and ends itself, over and over, and then stays. `--headless` starts one in a session of its own
whose first thread ends while another works on: `headless PID`. `--segment HOW:NAME` makes shared memory of 1 MiB, a
quarter of it written, that Python's own tracker knows nothing of: `mapped` until the server ends, `closed` at once, or
`tidy`, unlinked on SIGTERM.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory

SLEEPER = "import signal, time\n{}print('up', flush=True)\ntime.sleep(600)"
HOP = """
import os, time
until = time.monotonic() + {}
os.setsid()
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
time.sleep(600)
"""
HEADLESS = """
import ctypes, os, threading, time
os.setsid()
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
SEGMENT_BYTES, WRITTEN_BYTES = 2**20, 2**18
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


class Handler(BaseHTTPRequestHandler):
    options: argparse.Namespace
    scrapes = 0

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, body: str, status: int = 200, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer("", status=self.options.health)
        elif self.path == "/v1/models":
            self.answer(self.options.models or json.dumps({"data": [{"id": self.options.model}]}))
        elif self.path == "/metrics" and not self.options.no_metrics:
            self.answer(self.metrics(), kind="text/plain")
        else:
            self.answer("{}", status=404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print("request", json.dumps(body), flush=True)
        if body["model"] != self.options.model:
            self.answer('{"error": "no such model"}', status=404)
        else:
            self.answer(json.dumps({"choices": [{"message": {"content": "word"}}]}))

    def metrics(self) -> str:
        Handler.scrapes += 1
        tokens = min(Handler.scrapes, self.options.moving)
        busy = int(Handler.scrapes <= self.options.busy)
        return (
            "# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{engine="0"}} {busy}.0\n'
            "# TYPE vllm:num_requests_waiting gauge\n"
            'vllm:num_requests_waiting{engine="0"} 0.0\n'
            "# TYPE vllm:prompt_tokens_total counter\n"
            f'vllm:prompt_tokens_total{{engine="0"}} {tokens}.0\n'
            "# TYPE process_cpu_seconds_total counter\n"
            f"process_cpu_seconds_total {Handler.scrapes}.0\n"
        )


def make_segment(how: str, name: str) -> SharedMemory:
    segment = SharedMemory(name, create=True, size=SEGMENT_BYTES)
    segment.buf[:WRITTEN_BYTES] = b"x" * WRITTEN_BYTES
    if how == "closed":
        segment.close()
    return segment


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="m")
    parser.add_argument("--models", help="the body of /v1/models")
    parser.add_argument("--health", type=int, default=200)
    parser.add_argument("--no-metrics", action="store_true")
    parser.add_argument("--moving", type=int, default=0)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--children", type=int, default=0)
    parser.add_argument("--detached", type=int, default=0)
    parser.add_argument("--orphans", type=int, default=0)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--hopping", type=float, default=0.0)
    parser.add_argument("--stubborn-children", action="store_true")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--slow-start", type=float, default=0.0)
    parser.add_argument("--segment", action="append", default=[])
    parser.add_argument("--exit-code", type=int, help="exit at once")
    options = Handler.options = parser.parse_args()
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"ignored SIGTERM\n"))
    else:
        signal.signal(signal.SIGTERM, lambda *_: end())
    resource_tracker.register = resource_tracker.unregister = lambda *_: None
    segments = {name: make_segment(how, name) for how, name in (one.split(":") for one in options.segment)}

    def end() -> None:
        for one in options.segment:
            if one.startswith("tidy:"):
                segments[one.removeprefix("tidy:")].unlink()
        os._exit(0)

    code = SLEEPER.format(IGNORE if options.stubborn_children else "")
    children = {"child": options.children, "detached": options.detached}
    for name, count in children.items():
        for _ in range(count):
            command = [sys.executable, "-I", "-S", "-c", code]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=name == "detached")
            child.stdout.readline()
            print(name, child.pid, flush=True)
    for _ in range(options.orphans):
        start = (
            "import subprocess, sys\n"
            f"command = [sys.executable, '-I', '-S', '-c', {code!r}]\n"
            "print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid)\n"
        )
        parent = subprocess.run([sys.executable, "-I", "-S", "-c", start], stdout=subprocess.PIPE, text=True)
        print("orphan", parent.stdout.strip(), flush=True)
    if options.headless:
        print("headless", subprocess.Popen([sys.executable, "-I", "-S", "-c", HEADLESS]).pid, flush=True)
    if options.hopping:
        first = subprocess.Popen([sys.executable, "-I", "-S", "-c", HOP.format(options.hopping)])
        print("hopping", first.pid, flush=True)
        first.wait()
    if options.exit_code is not None:
        print("bad weights", file=sys.stderr, flush=True)
        os._exit(options.exit_code)
    time.sleep(options.slow_start)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("listening", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
