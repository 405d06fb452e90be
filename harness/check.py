"""What a scenario would run: the content of `bench check`. Starts nothing.

The cost it states is the load the scenario defines, in requests and tokens; how long that takes depends on the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.plan import make_plan
from harness.records import PlannedTrial
from harness.scenario import Bench, Scenario, scenario_sha256
from harness.servers.arm import ResolvedArm, resolve_arm
from harness.servers.kinds import ServerKind, server_kind
from harness.workloads import Tokenizer, find_tokenizer, generate, ideal_hit_rates, served_ids


@dataclass(frozen=True, slots=True)
class BenchCheck:
    """One bench of a trial.

    Parameters:
        prompt_tokens: over all its requests, as the server sees them; as the table names them without a tokenizer.
        output_tokens: to ask for, over all its requests; the table's mean without a tokenizer.
        ideal_hit_rate: with the cache on; None where it cannot be computed.
    """

    name: str
    dataset: str
    modalities: tuple[str, ...]
    endpoint: str
    concurrency: int
    request_rate: float | None
    requests: int
    prompt_tokens: int
    output_tokens: int
    ideal_hit_rate: float | None
    reported: bool


@dataclass(frozen=True, slots=True)
class ArmCheck:
    """One arm over the whole run.

    Parameters:
        caching: whether its configuration turns the prefix cache of stage 0 on; None where it does not say.
        computed_tokens: prompt tokens left to compute if an unbounded cache hits, or all of them with the cache off;
            None where that is not known.
    """

    name: str
    baseline: bool
    caching: bool | None
    trials: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int | None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a scenario would run.

    Parameters:
        tokenizer: the folder the tokens were counted with; None: counted from the table.
        block_size: tokens per KV block that the ideal hit rates assume; None: they are not computed.
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
    notes: tuple[str, ...]

    @property
    def requests(self) -> int:
        """Requests of the whole run."""
        return sum(arm.requests for arm in self.arms)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of the whole run, cached or not."""
        return sum(arm.prompt_tokens for arm in self.arms)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            **asdict(self),
            "trials": [{**trial.model_dump(), "slug": trial.slug} for trial in self.trials],
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
        }


def check_report(scenario: Scenario, path: Path) -> CheckReport:
    """Work out what a validated scenario would run.

    Parameters:
        path: the scenario's file; its folder is where a relative `tokenizer` starts.

    Raises:
        UsageError: an arm's settings contradict each other or are not what its server takes, or the
            tokenizer is named and cannot be read.
    """
    try:
        return _report(scenario, path)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def render_check(report: CheckReport) -> str:
    """The report as text for a terminal."""
    lines = [
        f"{report.file}: valid",
        f"  {report.name}: {report.model} on {report.kind}, {report.rounds} rounds in {report.order} order, "
        f"{len(report.trials)} trials",
        "",
        *_table(
            ("round", "trials in order"),
            [
                (str(number), "  ".join(trial.arm for trial in report.trials if trial.round == number))
                for number in range(1, report.rounds + 1)
            ],
        ),
        "",
        *_table(
            ("bench", "dataset", "answers", "load", "requests", "prompt tok", "output tok", "ideal hit"),
            [_bench_row(bench) for bench in report.benches],
        ),
        "",
        *_table(
            ("arm", "cache", "trials", "requests", "prompt tok", "output tok", "to compute"),
            [_arm_row(arm) for arm in report.arms],
        ),
        "",
        f"Total: {report.requests:,} requests, {report.prompt_tokens:,} prompt tokens. `to compute` assumes that an "
        "unbounded cache",
        "hits all it can; requests that make a server ready or publish its counters are not counted.",
    ]
    if report.block_size is not None and report.tokenizer is not None:
        lines.append(f"Tokens counted with {report.tokenizer}, blocks of {report.block_size} tokens.")
    return "\n".join([*lines, *(f"note: {note}" for note in report.notes)])


def _report(scenario: Scenario, path: Path) -> CheckReport:
    arms = [resolve_arm(scenario, name) for name in scenario.arms]
    notes: list[str] = []
    kind = _kind(scenario, notes)
    if kind is not None:
        _refuse(arms, kind, scenario)
    folder = find_tokenizer(scenario, path.parent)
    tokenizer = None if folder is None else Tokenizer(folder)
    block_size = _block_size(arms, kind, notes)
    if tokenizer is None:
        notes.append(
            "ideal hit rate: not computed (no local tokenizer); tokens are the table's, without a chat template"
        )
    benches = _benches(scenario.benches, tokenizer, block_size, notes)
    trials = make_plan(scenario)
    return CheckReport(
        file=str(path),
        name=scenario.name,
        sha256=scenario_sha256(scenario),
        kind=scenario.server.kind,
        model=scenario.model,
        order=scenario.order,
        rounds=scenario.rounds,
        arms=tuple(_arm(arm, scenario, kind, benches, sum(trial.arm == arm.name for trial in trials)) for arm in arms),
        trials=trials,
        benches=benches,
        tokenizer=None if folder is None else str(folder),
        block_size=block_size,
        notes=tuple(notes),
    )


def _kind(scenario: Scenario, notes: list[str]) -> ServerKind | None:
    try:
        return server_kind(scenario.server.kind)
    except UsageError as error:
        notes.append(str(error))
        return None


def _refuse(arms: Sequence[ResolvedArm], kind: ServerKind, scenario: Scenario) -> None:
    """Raises what a run would raise before it starts a server."""
    for arm in arms:
        kind.check(arm, scenario)
    sizes = {kind.block_size(arm) for arm in arms if kind.expects_caching(arm) is not False}
    if len(sizes) > 1:
        raise UsageError(f"arms: found block sizes {sorted(sizes)}; allowed: one for all arms that cache")


def _block_size(arms: Sequence[ResolvedArm], kind: ServerKind | None, notes: list[str]) -> int | None:
    """Tokens per KV block where the arms say or the kind's default is known, and all arms agree."""
    sizes: set[int] = set()
    for arm in arms:
        found = arm.setting("block-size")
        if found is None and kind is not None:
            found = kind.block_size(arm)
        if found is None:
            notes.append("ideal hit rate: not computed (the block size is the server's choice: set block-size)")
            return None
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise UsageError(f"arms.{arm.name}: found block-size {found!r}; allowed: a whole number, 1 or more")
        sizes.add(found)
    if len(sizes) > 1:
        notes.append(f"ideal hit rate: not computed (block sizes differ: {', '.join(map(str, sorted(sizes)))})")
        return None
    return sizes.pop()


def _benches(
    benches: Sequence[Bench], tokenizer: Tokenizer | None, block_size: int | None, notes: list[str]
) -> tuple[BenchCheck, ...]:
    if tokenizer is None:
        return tuple(_bench(bench, *_nominal_tokens(bench), None) for bench in benches)
    if not tokenizer.has_chat_template and any(bench.endpoint == "chat" for bench in benches):
        notes.append("ideal hit rate: not computed (the tokenizer has no chat template); tokens are the table's")
        return tuple(_bench(bench, *_nominal_tokens(bench), None) for bench in benches)
    prompts = {bench.name: generate(bench, tokenizer) for bench in benches}
    ids = {bench.name: served_ids(bench, prompts[bench.name], tokenizer) for bench in benches}
    ideal = {} if block_size is None else ideal_hit_rates(list(ids.items()), block_size)
    return tuple(
        _bench(
            bench,
            sum(len(request) for request in ids[bench.name]),
            sum(prompt.output_len for prompt in prompts[bench.name]),
            ideal.get(bench.name),
        )
        for bench in benches
    )


def _nominal_tokens(bench: Bench) -> tuple[int, int]:
    """Prompt and output tokens by the table alone, at the mean of a range."""
    length = (bench.shared_prefix or 0) + (bench.random_len or 0) + (bench.prefix_len or 0) + (bench.suffix_len or 0)
    return bench.prompts * length, bench.prompts * bench.output


def _bench(bench: Bench, prompt_tokens: int, output_tokens: int, ideal: float | None) -> BenchCheck:
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
        ideal_hit_rate=ideal,
        reported=bench.reported,
    )


def _arm(
    arm: ResolvedArm, scenario: Scenario, kind: ServerKind | None, benches: Sequence[BenchCheck], trials: int
) -> ArmCheck:
    caching = None if kind is None else kind.expects_caching(arm)
    prompt_tokens = sum(bench.prompt_tokens for bench in benches)
    computed: int | None = prompt_tokens
    if caching is not False:
        rates = [bench.ideal_hit_rate for bench in benches]
        known = caching is True and None not in rates
        hits = sum(round(bench.prompt_tokens * (bench.ideal_hit_rate or 0.0)) for bench in benches)
        computed = prompt_tokens - hits if known else None
    return ArmCheck(
        name=arm.name,
        baseline=scenario.arms[arm.name].baseline,
        caching=caching,
        trials=trials,
        requests=trials * sum(bench.requests for bench in benches),
        prompt_tokens=trials * prompt_tokens,
        output_tokens=trials * sum(bench.output_tokens for bench in benches),
        computed_tokens=None if computed is None else trials * computed,
    )


def _bench_row(bench: BenchCheck) -> tuple[str, ...]:
    rate = "" if bench.request_rate is None else f" at {bench.request_rate:g}/s"
    return (
        bench.name + ("" if bench.reported else " (not reported)"),
        bench.dataset,
        "+".join(bench.modalities),
        f"{bench.concurrency} in flight{rate}",
        f"{bench.requests:,}",
        f"{bench.prompt_tokens:,}",
        f"{bench.output_tokens:,}",
        "-" if bench.ideal_hit_rate is None else f"{bench.ideal_hit_rate:.1%}",
    )


def _arm_row(arm: ArmCheck) -> tuple[str, ...]:
    return (
        arm.name + (" (baseline)" if arm.baseline else ""),
        {True: "on", False: "off", None: "?"}[arm.caching],
        str(arm.trials),
        f"{arm.requests:,}",
        f"{arm.prompt_tokens:,}",
        f"{arm.output_tokens:,}",
        "?" if arm.computed_tokens is None else f"{arm.computed_tokens:,}",
    )


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligned columns, numbers to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    right = [all(row[column][:1].isdigit() or row[column] in "-?" for row in rows) for column in range(len(header))]
    right[0] = False
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in (header, *rows)
    ]
