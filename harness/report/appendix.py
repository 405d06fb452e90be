# ruff: noqa: RUF001 - the report prints a real minus sign and a real dash
"""The last sections of the report: where the numbers come from, and what the words mean."""

from __future__ import annotations

from datetime import datetime

from harness.records import TrialRecord
from harness.report import words
from harness.report.model import P99_SAMPLES, Report
from harness.report.setting import setting_rows
from harness.report.text import NONE, between, count, percent, table
from harness.stats import LEVEL


def provenance(report: Report) -> str:
    manifest, host = report.manifest, report.manifest.host
    versions = {**manifest.versions, **{name: v for trial in report.trials for name, v in trial.versions.items()}}
    facts = [
        ["run", manifest.run],
        ["created, finished", f"{manifest.created_at}, {manifest.finished_at or 'not finished'}"],
        *([["resumed", ", ".join(manifest.resumed_at)]] if manifest.resumed_at else []),
        ["scenario file", f"`{manifest.scenario_file}`"],
        ["file sha256", f"`{report.scenario_file_sha256}`"],
        [
            "resolved scenario sha256",
            f"`{manifest.scenario_sha256}`: of what was really run, narrowing included",
        ],
        ["model", report.scenario.model],
        ["server", report.scenario.server.kind],
        ["host", f"{host.hostname}, {host.platform}, kernel {host.kernel}"],
        ["CPU", f"{host.cpu_model}, {count(host.cpu_count, 'core')}, load {host.load_1m:.2f} at the start"],
        *([] if host.autogroup is None else [["scheduling by session", "on" if host.autogroup else "off"]]),
        ["memory", f"{host.memory_bytes / 1024**3:.1f} GiB"],
        ["GPU", ", ".join(host.gpus) or "none"],
        *setting_rows(report.trials),
        ["Python", host.python],
        ["versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) or NONE],
        *([f"source {name}", text] for name, text in _sources(report)),
    ]
    order = [
        [
            trial.slug,
            *(
                (done.started_at, done.finished_at, _duration(done), _load(done), done.status)
                if (done := ended.get((trial.round, trial.arm)))
                else (NONE, NONE, NONE, NONE, "not run")
            ),
        ]
        for ended in [{(trial.round, trial.arm): trial for trial in report.trials}]
        for trial in manifest.plan
    ]
    return "\n\n".join(
        (
            "## Provenance",
            words.weights(report),
            table(["fact", "value"], facts, left=2),
            table(
                ["trial", "started", "finished", "duration (s)", "load before", "status"],
                order,
                left=3,
                words=("status",),
            ),
            f"Load before: the host's 1-minute average just before {_begin(report)}. The trial before is still in it.",
        )
    )


def _begin(report: Report) -> str:
    if report.scenario.server.kind == "external":
        return "the trial's start; the server ran already"
    return "the server's start"


def _duration(trial: TrialRecord) -> str:
    start, end = (datetime.fromisoformat(at) for at in (trial.started_at, trial.finished_at))
    return f"{(end - start).total_seconds():.1f}"


def _load(trial: TrialRecord) -> str:
    return NONE if trial.load_1m is None else f"{trial.load_1m:.2f}"


def _sources(report: Report) -> list[tuple[str, str]]:
    trees = dict.fromkeys(
        tree for sources in (report.manifest.sources, *(t.sources for t in report.trials)) for tree in sources
    )
    return [
        (
            tree.name,
            f"`{tree.path}`, "
            + ("no version control" if tree.commit is None else f"commit `{tree.commit}`")
            + (", with uncommitted changes" if tree.dirty else ""),
        )
        for tree in trees
    ]


def definitions(report: Report) -> str:
    band = report.scenario.validity
    items = (
        "**ratio of means**: mean over the valid rounds / mean over the baseline's same rounds − 1. The sentence on "
        "top and the tables of means use it.",
        "**per-round range**: smallest .. largest of the per-round ratios. It is not an interval.",
        f"**geometric mean ({LEVEL:.0%} interval)**: of the per-round ratios, and the Student t interval on their "
        "logarithms around it; the interval needs 2 rounds. The figure of throughput draws these. The two means differ "
        "where rounds do.",
        f"**verdict**: on request throughput. `same`: the interval lies inside {between(report.band)}, the practical "
        f"threshold of {percent(band.practical_threshold, signed=False)} made even in logarithms, or inside the noise "
        "floor where that is wider; `faster`, `slower`: it lies wholly outside; `inconclusive`: neither. Under 3 valid "
        "rounds it is advisory.",
        "**noise floor**: what the interval stays inside, 19 times of 20, with nothing changed: from the per-round "
        "ratios of the baseline to itself (`bench run --aa`), for as many rounds as stand here, with Student's t for "
        "the interval and Snedecor's F for how well its noise is known.",
        "**stage-0 hit**: tokens found over tokens looked up in the prefix cache around one bench, from the server's "
        "counters; **ideal hit**: what an unbounded cache of full blocks finds on these prompts in this order. "
        "The benches of one trial share one server, in file order, so a later bench may hit what an earlier one left; "
        "the ideal counts exactly that.",
        "**output parity**: text answers are computed from the KV cache, so equal texts prove that one and say nothing "
        "of the output cache; speech is made from the rows the output cache hands over, so equal audio and transcripts "
        "prove that.",
        f"**valid**: all prompts answered (failures allowed: {band.allow_failures}); no look-up with the cache off; "
        f"with it on, a hit rate within {band.hit_rate_band * 100:.1f} points of the ideal; equal output "
        "tokens in both arms where the bench fixes them; audio seconds within "
        f"{percent(band.audio_tolerance, signed=False)}. A cell that is not valid drops its whole pair.",
        "**request throughput**: completed requests / duration; **TTFT**: send to first content; **TPOT**: "
        "(E2EL − TTFT) / (output tokens − 1); **E2EL**: send to last content; **TTFP**: send to first audio packet; "
        "**RTF**: audio generation time / audio duration. Definitions are those of `vllm bench serve`.",
        f"**p99**: inclusive method, withheld under {P99_SAMPLES} requests a round.",
        "**VmRSS**: resident memory of stage 0's engine process; **PSS**: of its whole process tree, shared pages "
        "divided among their users.",
    )
    return "## Definitions\n\n" + "\n".join(f"- {item}" for item in items)
