"""Readiness: the server is up, it is ours, and it serves our model."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import aiohttp

from harness.errors import ServerNotReady, WrongModel
from harness.servers.launch import Launch
from harness.servers.running import RunningServer

_POLL_S = 0.1
_ANSWER_S = 5.0
_TAIL_LINES = 5
_TAIL_BYTES = 8192


async def wait_ready(server: RunningServer, launch: Launch, session: aiohttp.ClientSession, timeout: float) -> float:
    """Wait until `/health` answers 200 and `/v1/models` lists our model.

    Returns:
        Seconds from the start of the process.

    Raises:
        ServerNotReady: the process ended, or `timeout` seconds after its start it still was not ready.
        WrongModel: what answers on the port has another model, or is not our process.
    """
    deadline = server.started + timeout
    seen = "nothing answered"
    while True:
        if not server.alive:
            status = server.returncode
            how = "was lost with its guard" if status is None else f"ended with exit status {status}"
            raise ServerNotReady(f"the server {how} before it was ready{log_tail(launch.log_path)}")
        if time.monotonic() > deadline:
            raise ServerNotReady(f"the server was not ready after {timeout:g} s ({seen}){log_tail(launch.log_path)}")
        limit = aiohttp.ClientTimeout(total=min(_ANSWER_S, max(deadline - time.monotonic(), _POLL_S)))
        try:
            async with session.get(f"{launch.base_url}/health", timeout=limit) as answer:
                seen = f"/health answered {answer.status}"
                healthy = answer.status == 200
            if healthy:
                async with session.get(f"{launch.base_url}/v1/models", timeout=limit) as answer:
                    seen = f"/v1/models answered {answer.status}"
                    if answer.status == 200:
                        ready = time.monotonic() - server.started
                        _check_models(await answer.read(), server, launch)
                        return ready
        except TimeoutError:
            seen = "no answer in time"
        except aiohttp.ClientError as error:
            seen = f"last error: {error}"
        await asyncio.sleep(_POLL_S)


def log_tail(path: Path) -> str:
    """The end of a message about a server: where its log lies, and the log's last lines."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - _TAIL_BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError as error:
        return f"; its log {path} cannot be read: {error.strerror}"
    if not lines:
        return f"; its log {path} is empty"
    return f"; its log {path} ends:\n" + "\n".join(f"  {line}" for line in lines)


def _check_models(body: bytes, server: RunningServer, launch: Launch) -> None:
    where = f"{launch.base_url}/v1/models"
    names = _model_names(body)
    if names is None:
        raise WrongModel(f"{where} does not answer with a list of models: {body[:200]!r}{log_tail(launch.log_path)}")
    if launch.model_name not in names:
        raise WrongModel(
            f"{where} lists {', '.join(names) or 'no model'}, not {launch.model_name}: "
            f"a wrong server{log_tail(launch.log_path)}"
        )
    if not server.owns_port():
        raise WrongModel(
            f"{where} lists {launch.model_name}, but the server we started (process {server.pid}) does not listen "
            f"there: somebody else's server{log_tail(launch.log_path)}"
        )


def _model_names(body: bytes) -> list[str] | None:
    try:
        return [str(entry["id"]) for entry in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError):
        return None
