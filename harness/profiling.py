"""The profiled pass: a bench's load once more, after everything was measured, with py-spy at stage 0."""

from __future__ import annotations

import asyncio

from harness.client.load import run_load
from harness.errors import BenchError
from harness.records import Caveat, Profile
from harness.scenario import Bench, Profiling
from harness.servers.launch import Launch
from harness.telemetry.profile_shares import profile_shares
from harness.telemetry.py_spy import find_py_spy, record_profile
from harness.workloads import Prompt, Tokenizer, generate

_OTHER_SEED = 1_000_003
_SEEDS = 2**32

_OK = 200


def file_name(bench: str) -> str:
    """Of the profile, from the trial's folder; www.speedscope.app draws it as a flame graph."""
    return f"profile/{bench}.speedscope.json"


def profiled_prompts(bench: Bench, tokenizer: Tokenizer, number: int) -> tuple[Prompt, ...]:
    """Prompts of the same shape with a seed of the pass' own.

    The measured ones lie in the cache by now: sent again, they would hit as they never did while measured. A data set
    whose prompts are taken as they come has no others.
    """
    return generate(bench.model_copy(update={"seed": (bench.seed + number * _OTHER_SEED) % _SEEDS}), tokenizer)


def no_profile(settings: Profiling, why: str, passes: int = 0) -> Profile:
    """The record of a profile that could not be taken."""
    return Profile(
        bench=settings.bench, seconds=settings.seconds, file=None, passes=passes, samples=0, cache=(), failure=why
    )


def no_profile_caveats(profile: Profile | None) -> tuple[Caveat, ...]:
    """That a profile was asked for and is not there."""
    if profile is None or profile.failure is None:
        return ()
    return (Caveat(kind="no profile", message=f"{profile.bench}: {profile.failure}", line=None),)


async def profile_bench(
    settings: Profiling, bench: Bench, tokenizer: Tokenizer, pid: int, launch: Launch, timeout_s: float
) -> Profile:
    """Load the server with a bench until py-spy has sampled it long enough. What stands in the way is in the record.

    Parameters:
        settings: how long.
        pid: stage 0's process.
        launch: of the server.
        timeout_s: bound on one request.
    """
    path = launch.trial_dir / file_name(settings.bench)
    passes = 0

    async def load() -> None:
        nonlocal passes
        answered = True
        while answered:
            passes += 1
            prompts = await asyncio.to_thread(profiled_prompts, bench, tokenizer, passes)
            sent = await run_load(
                bench, prompts, base_url=launch.base_url, model=launch.model_name, timeout_s=timeout_s
            )
            answered = any(raw.http_status == _OK for raw in sent.requests)

    try:
        program = find_py_spy()
        path.parent.mkdir(exist_ok=True)
        loading = asyncio.create_task(load())
        try:
            await record_profile(program, pid, settings.seconds, path)
        finally:
            loading.cancel()
            ended = await asyncio.gather(loading, return_exceptions=True)
        shares = await asyncio.to_thread(lambda: profile_shares(path.read_bytes()))
    except BenchError as error:
        return no_profile(settings, str(error), passes)
    except OSError as error:
        return no_profile(settings, f"py-spy's file cannot be read: {error.strerror}", passes)
    broken = [one for one in ended if isinstance(one, Exception)]
    if broken:
        return no_profile(settings, f"its load broke off: {broken[0]}", passes)
    return Profile(
        bench=settings.bench,
        seconds=settings.seconds,
        file=file_name(settings.bench),
        passes=passes,
        samples=shares.samples,
        waiting=shares.waiting,
        cache=shares.cache,
    )
