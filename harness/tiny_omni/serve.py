"""`python -m harness.tiny_omni`: one process from its arguments to its exit code.

Exit codes: 0 after SIGTERM or SIGINT, 1 when the engine failed (a stage that died takes the server down), 2 for wrong
arguments, a port in use or a missing program.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.tiny_omni.faults import step_faults
from harness.tiny_omni.options import Options, parse_options

if TYPE_CHECKING:
    # torch and aiohttp take seconds to import: not before the arguments are known to be right.
    from harness.tiny_omni.api import Service
    from harness.tiny_omni.engine import Engine

WATCH_INTERVAL = 0.1
"""Seconds between two looks at the engine's health."""
GOODBYE_TIMEOUT = 0.5
"""Seconds that open connections get to end after the engine has."""

log = logging.getLogger("harness.tiny_omni")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal or a failure; the exit code."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    try:
        options = parse_options(argv)
        log.info("configuration %s", json.dumps(options.as_json()))
        return asyncio.run(serve(options))
    except UsageError as error:
        print(f"tiny_omni: {error}", file=sys.stderr)
        return error.exit_code


async def serve(options: Options) -> int:
    """One server's life on the running loop, signal handlers included; the exit code.

    Raises:
        UsageError: nothing can be served with these options.
    """
    stop = asyncio.Event()
    _install_signals(stop, stubborn=options.faults.stubborn)
    listener = _bind(options.host, options.port)
    if options.audio:
        from harness.tiny_omni.speech import require_flite

        require_flite()

    from aiohttp import web

    from harness.tiny_omni.api import Api

    api = Api(options.served_model_name, options.faults)
    runner = web.AppRunner(api.app, handler_cancellation=True, shutdown_timeout=GOODBYE_TIMEOUT, access_log=None)
    await runner.setup()
    site = web.SockSite(runner, listener)
    await site.start()
    address = json.dumps({"host": options.host, "port": listener.getsockname()[1]})
    log.info("listening %s", address)
    loaded: tuple[Engine, Service] | None = None
    try:
        loaded = engine, service = await asyncio.to_thread(_load, options)
        if options.faults.never_ready:
            await stop.wait()
        await _sleep_unless(stop, options.faults.slow_start)
        if not stop.is_set():
            api.open(service)
            log.info("ready %s", address)
        while not stop.is_set() and engine.failure is None:
            await _sleep_unless(stop, WATCH_INTERVAL)
        if engine.failure is not None:
            log.error("the engine failed, so the server ends", exc_info=engine.failure)
            return 1
        log.info("stopping")
        return 0
    finally:
        await site.stop()
        if loaded is not None:
            await asyncio.to_thread(loaded[0].shutdown)
        await runner.cleanup()
        if loaded is not None and loaded[1].talker is not None:
            await asyncio.to_thread(loaded[1].talker.close)


def _install_signals(stop: asyncio.Event, *, stubborn: bool) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, stop.set)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise UsageError(f"--host {host}: {error.strerror}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise UsageError(f"--port {port}: cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


def _load(options: Options) -> tuple[Engine, Service]:
    """The engine, started, and what serves it."""
    from harness.tiny_omni.api import Service
    from harness.tiny_omni.ear import Ear
    from harness.tiny_omni.engine import Engine
    from harness.tiny_omni.talker import Talker
    from harness.tiny_omni.tokenizer import load_tokenizer
    from harness.tiny_omni.wrong_rows import row_faults

    tokenizer = load_tokenizer()
    faults = options.faults
    engine = Engine(
        options.engine, slow_step=faults.slow_step, step_hook=step_faults(faults), cache_seam=row_faults(faults)
    )
    talker = Talker(tokenizer, engine.model.embedding) if options.audio else None
    engine.start()
    return engine, Service(engine, tokenizer, talker, Ear(tokenizer))


async def _sleep_unless(stop: asyncio.Event, seconds: float) -> None:
    """Sleep, or return early once `stop` is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
