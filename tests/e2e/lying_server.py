"""A small server in the reference server's place that lies when a request's key `lie` asks for it.

Only the standard library, so that it starts at once; put into a checkout as `harness/tiny_omni/__main__.py` it is what
an arm with that `source` runs. One kind of lie a bench; whatever is told about requests is written to the log. With
`LEAK` in its environment it leaves shared memory behind.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import sys
import threading
import wave
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory

PROMPT = 32
METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0"}} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{engine="0",block_size="16",enable_prefix_caching="{caching}"}} 1.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0"}} {queries}
"""
HITS = '# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total{{engine="0"}} {hits}\n'


class Server(ThreadingHTTPServer):
    """What is counted; touched under the lock."""

    daemon_threads = True
    model: str
    caching: bool
    queries = hits = 0
    lie = ""
    told: frozenset[str] = frozenset()
    lock = threading.Lock()

    def first(self, lie: str) -> bool:
        """Whether this is the first request that asks for the lie."""
        new, self.told = lie not in self.told, self.told | {lie}
        return new

    def leak(self) -> None:
        """Make shared memory that nobody will unlink; one is kept mapped, the other's name alone remains."""
        resource_tracker.register = lambda *_: None
        self.kept, closed = (SharedMemory(create=True, size=4096) for _ in range(2))
        closed.close()
        print("leaked", self.kept.name, closed.name, flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None: ...

    def answer(self, body: bytes, kind: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        server = self.server
        if self.path == "/v1/models":
            self.answer(json.dumps({"data": [{"id": server.model}]}).encode())
        elif self.path == "/metrics":
            # The series is gone only while the bench with this lie is the last that came.
            text = METRICS + ("" if server.lie == "absent series" else HITS)
            page = text.format(caching=server.caching, queries=float(server.queries), hits=float(server.hits))
            self.answer(page.encode(), "text/plain; version=0.0.4")
        else:
            self.answer(b"")

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        lie, caching = body.get("lie", ""), server.caching
        with server.lock:
            first = server.first(lie)
            server.lie = lie
            if (caching and lie != "no query") or (not caching and lie == "query"):
                server.queries += PROMPT
            if caching and lie == "hits":
                server.hits += PROMPT
            if caching and lie == "backwards":
                server.queries = 0
        print(f"request lie={lie!r}", flush=True)
        if lie == "death" and caching and first:
            os._exit(3)
        if lie == "failure" and caching and first:
            self.answer(b"broken", status=500)
        elif lie == "dropped" and caching and first:
            self.close_connection = True
            self.connection.close()
        else:
            self.answer(self.stream(body, lie if caching else ""), "text/event-stream")

    def stream(self, body: dict, lie: str) -> bytes:
        output = body.get("max_completion_tokens") or body["max_tokens"]
        told = output + 1 if lie == "tokens" else output
        events: list[dict] = [{"choices": [{"index": 0, "delta": {"content": f"word{i} "}}]} for i in range(output)]
        if "audio" in body.get("modalities", ()):
            content = base64.b64encode(speech(2.0 if lie == "audio" else 1.0)).decode()
            events.append({"modality": "audio", "choices": [{"index": 0, "delta": {"content": content}}]})
        events.append({"choices": [], "usage": {"prompt_tokens": PROMPT, "completion_tokens": told}})
        return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events) + b"data: [DONE]\n\n"


def speech(seconds: float) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(b"\1\0" * int(8000 * seconds))
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=False)
    options, _ = parser.parse_known_args()
    server = Server(("127.0.0.1", options.port), Handler)
    server.model, server.caching = options.served_model_name, options.enable_prefix_caching
    print("lying server", sys.executable, flush=True)
    if "LEAK" in os.environ:
        server.leak()
    server.serve_forever()


if __name__ == "__main__":
    main()
