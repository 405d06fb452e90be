"""The text of `bench check`: a check report for a person's terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from harness.check import ArmCheck, BenchCheck, CheckReport
from harness.servers.deploy import ArmDeploy

SHOWN = (
    "enable_prefix_caching",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "gpu_memory_utilization",
    "enforce_eager",
    "async_chunk",
    "model_runner",
)
"""Settings of a stage that decide what is measured; others are shown where arms differ, and all with --json."""

UNSET = "unset"
"""The engine decides, by the model."""


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
        f"Total: {report.requests:,} requests, {_count(report.prompt_tokens)} prompt tokens. `to compute` assumes that "
        "an unbounded cache",
        "hits all it can; requests that make a server ready or publish its counters are not counted.",
    ]
    if report.block_size is not None and report.tokenizer is not None:
        lines.append(f"Tokens counted with {report.tokenizer}, blocks of {report.block_size} tokens.")
    lines += _stages(report.deploy)
    lines += [f"warning: {warning}" for warning in report.warnings]
    return "\n".join([*lines, *(f"note: {note}" for note in report.notes)])


def _stages(deploys: Sequence[ArmDeploy]) -> list[str]:
    """What each stage gets: the settings in which arms differ as a table, then those of `SHOWN` that they share."""
    if not deploys:
        return []
    columns = {
        (stage_id, name): tuple(_value(deploy.setting(name, stage_id)) for deploy in deploys)
        for stage_id in sorted({stage.stage_id for deploy in deploys for stage in deploy.stages})
        for name in _named(deploys, stage_id)
    }
    differ = [(str(stage_id), name, *values) for (stage_id, name), values in columns.items() if len(set(values)) > 1]
    platforms = ", ".join(sorted({deploy.platform for deploy in deploys}))
    lines = [
        "",
        f"Stages on {platforms}, where the arms differ:" if differ else f"Stages on {platforms}, alike in all arms:",
    ]
    if differ:
        lines += _table(("stage", "setting", *(deploy.arm for deploy in deploys)), differ)
    for stage_id in sorted({stage_id for stage_id, _ in columns}):
        alike = [
            f"{name} {values[0]}"
            for (of, name), values in columns.items()
            if of == stage_id and name in SHOWN and len(set(values)) == 1 and (values[0] != UNSET or name == SHOWN[0])
        ]
        if alike:
            lines.append(f"  stage {stage_id}{', all arms' if differ else ''}: {', '.join(alike)}")
    return lines


def _named(deploys: Sequence[ArmDeploy], stage_id: int) -> list[str]:
    """Names of a stage's settings, those of `SHOWN` first."""
    names = {
        name for deploy in deploys for stage in deploy.stages if stage.stage_id == stage_id for name in stage.settings
    }
    return [*SHOWN, *sorted(names - set(SHOWN))]


def _value(value: Any) -> str:
    """As a table's cell."""
    if value is None:
        return UNSET
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _bench_row(bench: BenchCheck) -> tuple[str, ...]:
    rate = "" if bench.request_rate is None else f" at {bench.request_rate:g}/s"
    return (
        bench.name
        + (f" (accuracy: {bench.measure})" if bench.measure else "" if bench.reported else " (not reported)"),
        bench.dataset,
        "+".join(bench.modalities),
        f"{bench.concurrency} in flight{rate}",
        f"{bench.requests:,}",
        "-" if bench.prompt_tokens is None else f"{bench.prompt_tokens:,}",
        f"{bench.output_tokens:,}",
        "-" if bench.ideal_hit_rate is None else f"{bench.ideal_hit_rate:.1%}",
    )


def _arm_row(arm: ArmCheck) -> tuple[str, ...]:
    return (
        arm.name + (" (baseline)" if arm.baseline else ""),
        {True: "on", False: "off", None: "?"}[arm.caching],
        str(arm.trials),
        f"{arm.requests:,}",
        _count(arm.prompt_tokens),
        f"{arm.output_tokens:,}",
        _count(arm.computed_tokens),
    )


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


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
