"""What a scenario would run: the content of `bench check`. Starts nothing.

The cost it states is the load the scenario defines, in requests and tokens; how long that takes depends on the server.
What this machine lacks for a run (an interpreter, a model, a data set) is a note, not an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.accuracy.items import items_of
from harness.accuracy.readiness import cannot_score
from harness.check_deploy import check_deploy
from harness.check_notes import grouped
from harness.errors import MissingDependency, UsageError
from harness.needs import lacking
from harness.plan import make_plan
from harness.records import PlannedTrial
from harness.scenario import Bench, Check, Scenario, scenario_sha256
from harness.servers.arm import ResolvedArm, resolve_arm
from harness.servers.deploy import ArmDeploy, check_device
from harness.servers.kinds import server_kind, voice_in_prompt
from harness.telemetry.py_spy import find_py_spy
from harness.workloads import (
    Prompt,
    Tokenizer,
    find_tokenizer,
    generate,
    how_to_mend,
    ideal_hit_rates,
    missing_set,
    served_ids,
)

MAX_PROMPT_TOKENS = 1_000_000
"""Prompt tokens by the tables above which no prompts are made here: that takes some 20 s a million."""


@dataclass(frozen=True, slots=True)
class BenchCheck:
    """One bench of a trial.

    Parameters:
        prompt_tokens: over all its requests, as the server sees them; as the table names them without a tokenizer;
            None where neither is known, which notes say and totals leave out.
        output_tokens: to ask for, over all its requests; the table's mean without a tokenizer.
        longest: tokens of its longest request, prompt and answer; of a mean one without a tokenizer, None as above.
        ideal_hit_rate: with the cache on; None where it cannot be computed.
    """

    name: str
    dataset: str
    modalities: tuple[str, ...]
    endpoint: str
    concurrency: int
    request_rate: float | None
    requests: int
    prompt_tokens: int | None
    output_tokens: int
    longest: int | None
    ideal_hit_rate: float | None
    reported: bool
    measure: str | None = None
    """What is scored of an accuracy check; None for a bench."""


@dataclass(frozen=True, slots=True)
class ArmCheck:
    """One arm over the whole run.

    Parameters:
        caching: whether its configuration turns the prefix cache of stage 0 on; None where it does not say.
        prompt_tokens: None where some bench's are not known.
        computed_tokens: prompt tokens left to compute if an unbounded cache hits, or all of them with the cache off;
            None where that is not known.
    """

    name: str
    baseline: bool
    caching: bool | None
    trials: int
    requests: int
    prompt_tokens: int | None
    output_tokens: int
    computed_tokens: int | None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a scenario would run.

    Parameters:
        tokenizer: the folder the tokens were counted with; None: counted from the table.
        block_size: tokens per KV block that the ideal hit rates assume; None: they are not computed.
        deploy: what the stages of each arm get, for servers of several stages.
        warnings: settings of the scenario that no server will have, requests that it will refuse.
        notes: what a person should know before believing the numbers.
    """

    file: str
    name: str
    sha256: str
    kind: str
    model: str
    order: str
    rounds: int
    arms: tuple[ArmCheck, ...]
    trials: tuple[PlannedTrial, ...]
    benches: tuple[BenchCheck, ...]
    tokenizer: str | None
    block_size: int | None
    deploy: tuple[ArmDeploy, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def requests(self) -> int:
        """Requests of the whole run."""
        return sum(arm.requests for arm in self.arms)

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens of the whole run, cached or not; None where some bench's are not known."""
        return _total(arm.prompt_tokens for arm in self.arms)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            **asdict(self),
            "trials": [{**trial.model_dump(), "slug": trial.slug} for trial in self.trials],
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
        }


def check_report(scenario: Scenario, path: Path, platform: str | None = None) -> CheckReport:
    """Work out what a validated scenario would run.

    Parameters:
        path: the scenario's file; its folder is where a relative `tokenizer` starts.
        platform: the device that deploy overlays are resolved for; None: that of each arm's interpreter.

    Raises:
        UsageError: no such device, an arm's settings contradict each other or are not what its server takes, or the
            tokenizer is named and cannot be read.
    """
    if platform is not None:
        check_device(platform)
    try:
        return _report(scenario, path, platform)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _report(scenario: Scenario, path: Path, platform: str | None) -> CheckReport:
    arms = [resolve_arm(scenario, name) for name in scenario.arms]
    kind = server_kind(scenario.server.kind)
    notes: list[str] = []
    for arm in arms:
        kind.check(arm, scenario)
    notes += lacking(kind, scenario, arms, path.parent)
    deploy: tuple[ArmDeploy, ...] = ()
    warnings: tuple[str, ...] = ()
    if scenario.server.kind == "vllm-omni":
        deploy, warnings, told = check_deploy(arms, platform)
        notes += told
    claims = [_Claim(found.expects_caching, found.block_size) for found in deploy] or [
        _Claim(kind.expects_caching(arm), kind.block_size(arm)) for arm in arms
    ]
    folder = find_tokenizer(scenario, path.parent)
    tokenizer = None if folder is None else Tokenizer(folder)
    if tokenizer is None:
        notes.append(
            "ideal hit rate: not computed (no local tokenizer); tokens are the table's, without a chat template"
        )
    notes += _rules(scenario)
    notes += cannot_score(scenario.checks)
    block_size = _block_size(scenario.server.kind, claims, notes)
    benches = _benches(scenario, tokenizer, block_size, notes)
    limits = {arm.name: kind.max_model_len(arm) for arm in arms}
    warnings += tuple(grouped("arms.", {arm: _refused(arm, limit, benches) for arm, limit in limits.items()}))
    trials = make_plan(scenario)
    return CheckReport(
        file=str(path),
        name=scenario.name,
        sha256=scenario_sha256(scenario),
        kind=scenario.server.kind,
        model=scenario.model,
        order=scenario.order,
        rounds=scenario.rounds,
        arms=tuple(
            _arm(arm, scenario, claim.caching, benches, sum(trial.arm == arm.name for trial in trials))
            for arm, claim in zip(arms, claims, strict=True)
        ),
        trials=trials,
        benches=benches,
        tokenizer=None if folder is None else str(folder),
        block_size=block_size,
        deploy=deploy,
        warnings=warnings,
        notes=tuple(dict.fromkeys(notes)),
    )


def _rules(scenario: Scenario) -> list[str]:
    """What may make the run longer than the plan, or leave something out of it."""
    notes = []
    if scenario.until is not None:
        rule = scenario.until
        notes.append(
            f"until: rounds are added in pairs until the interval of every bench is ±{rule.half_width:.1%}, "
            f"up to {rule.max_rounds}"
        )
    if scenario.passes > 1:
        notes.append(f"passes: each server runs all benches {scenario.passes} times; counted here is the first")
    if scenario.profile is not None:
        try:
            find_py_spy()
        except MissingDependency as missing:
            notes.append(f"profile: none will be taken: {missing}")
    return notes


@dataclass(frozen=True, slots=True)
class _Claim:
    """What an arm's configuration says of stage 0's cache; None where it does not."""

    caching: bool | None
    block_size: int | None


def _block_size(kind: str, claims: Sequence[_Claim], notes: list[str]) -> int | None:
    """Tokens per KV block where the arms say or the kind's default is known, and all arms agree."""
    caching = {claim.block_size for claim in claims if claim.caching is not False} - {None}
    if len(caching) > 1:
        raise UsageError(
            f"arms: found block sizes {sorted(filter(None, caching))}; allowed: one for all arms that cache"
        )
    sizes = {claim.block_size for claim in claims}
    if None in sizes:
        why = (
            "only the running server knows the block size, and a run computes the rate where it publishes that"
            if kind == "external"
            else "the block size is the server's choice: set block-size"
        )
        notes.append(f"ideal hit rate: not computed ({why})")
        return None
    if len(sizes) > 1:
        notes.append(
            f"ideal hit rate: not computed (block sizes differ: {', '.join(map(str, sorted(filter(None, sizes))))})"
        )
        return None
    return sizes.pop()


def _benches(
    scenario: Scenario, tokenizer: Tokenizer | None, block_size: int | None, notes: list[str]
) -> tuple[BenchCheck, ...]:
    benches = scenario.loads
    missing = {bench.name: meta for bench in benches if (meta := missing_set(bench)) is not None}
    notes += [
        how_to_mend(meta, [bench for bench in benches if missing.get(bench.name) == meta])
        for meta in dict.fromkeys(missing.values())
    ]
    nominal = sum(_nominal_tokens(bench)[0] or 0 for bench in benches)
    if tokenizer is not None and nominal > MAX_PROMPT_TOKENS:
        notes.append(
            f"ideal hit rate: not computed ({nominal:,} prompt tokens, and prompts are made here up to "
            f"{MAX_PROMPT_TOKENS:,}: narrow with --only); tokens are the table's, without a chat template"
        )
        tokenizer = None
    if tokenizer is None:
        return tuple(_nominal(bench) for bench in benches)
    if not tokenizer.has_chat_template and any(bench.endpoint == "chat" for bench in benches):
        notes.append("ideal hit rate: not computed (the tokenizer has no chat template); tokens are the table's")
        return tuple(_nominal(bench) for bench in benches)
    prompts = {bench.name: generate(bench, tokenizer) for bench in benches if bench.name not in missing}
    for check in scenario.checks:
        if check.name in prompts:
            items_of(check, prompts[check.name])
    ids = {
        bench.name: served_ids(
            bench, prompts[bench.name], tokenizer, voice_in_prompt=voice_in_prompt(scenario.server.kind)
        )
        if bench.name in prompts
        else None
        for bench in benches
    }
    unknown = [name for name, served in ids.items() if served is None]
    if unknown:
        notes.append(f"prompt tokens and ideal hit rate: known to the server only for {', '.join(unknown)}")
    ideal = {} if block_size is None else ideal_hit_rates(list(ids.items()), block_size)
    return tuple(
        _counted(bench, prompts[bench.name], ids[bench.name], ideal.get(bench.name))
        if bench.name in prompts
        else _bench(bench, None, bench.prompts * bench.output, None, ideal.get(bench.name))
        for bench in benches
    )


def _counted(
    bench: Bench, prompts: Sequence[Prompt], served: Sequence[Sequence[int]] | None, ideal: float | None
) -> BenchCheck:
    answers = [prompt.output_len for prompt in prompts]
    if served is None:
        return _bench(bench, None, sum(answers), None, ideal)
    lengths = [len(ids) for ids in served]
    longest = max((ids + answer for ids, answer in zip(lengths, answers, strict=True)), default=None)
    return _bench(bench, sum(lengths), sum(answers), longest, ideal)


def _nominal(bench: Bench) -> BenchCheck:
    prompt_tokens, output_tokens = _nominal_tokens(bench)
    mean = None if prompt_tokens is None else (prompt_tokens + output_tokens) // bench.prompts
    return _bench(bench, prompt_tokens, output_tokens, mean, None)


def _refused(arm: str, limit: int | None, benches: Sequence[BenchCheck]) -> str | None:
    """That an arm's server will refuse requests, and which."""
    found = [(bench.name, bench.longest) for bench in benches if bench.longest is not None]
    long = [f"{name} ({tokens:,})" for name, tokens in found if limit is not None and tokens > limit]
    if not long:
        return None
    return (
        f"arms.{arm}: max_model_len is {limit:,}: the server refuses the requests that are longer, prompt and answer: "
        f"{', '.join(long)}"
    )


def _nominal_tokens(bench: Bench) -> tuple[int | None, int]:
    """Prompt and output tokens by the table alone, at the mean of a range."""
    if bench.path is not None:
        return None, bench.prompts * bench.output
    length = (bench.shared_prefix or 0) + (bench.random_len or 0) + (bench.prefix_len or 0) + (bench.suffix_len or 0)
    return bench.prompts * length, bench.prompts * bench.output


def _bench(
    bench: Bench, prompt_tokens: int | None, output_tokens: int, longest: int | None, ideal: float | None
) -> BenchCheck:
    return BenchCheck(
        name=bench.name,
        dataset=bench.dataset,
        modalities=bench.modalities,
        endpoint=bench.endpoint,
        concurrency=bench.concurrency,
        request_rate=bench.request_rate,
        requests=bench.prompts,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        longest=longest,
        ideal_hit_rate=ideal,
        reported=bench.reported,
        measure=bench.measure if isinstance(bench, Check) else None,
    )


def _arm(
    arm: ResolvedArm, scenario: Scenario, caching: bool | None, benches: Sequence[BenchCheck], trials: int
) -> ArmCheck:
    prompt_tokens = _total(bench.prompt_tokens for bench in benches)
    computed = prompt_tokens
    if caching is not False and prompt_tokens is not None:
        rates = [bench.ideal_hit_rate for bench in benches]
        known = caching is True and None not in rates
        hits = sum(round((bench.prompt_tokens or 0) * (bench.ideal_hit_rate or 0.0)) for bench in benches)
        computed = prompt_tokens - hits if known else None
    return ArmCheck(
        name=arm.name,
        baseline=scenario.arms[arm.name].baseline,
        caching=caching,
        trials=trials,
        requests=trials * sum(bench.requests for bench in benches),
        prompt_tokens=None if prompt_tokens is None else trials * prompt_tokens,
        output_tokens=trials * sum(bench.output_tokens for bench in benches),
        computed_tokens=None if computed is None else trials * computed,
    )


def _total(parts: Iterable[int | None]) -> int | None:
    """The sum, None where a part is not known."""
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total
