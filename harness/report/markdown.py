# ruff: noqa: RUF002 - the report prints a real minus sign and a real dash
"""The report as Markdown: `report.md`. A pure function of the `Report`, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence

from harness.accuracy.decision import Verdict
from harness.report import accuracy_text, appendix, details, evidence, words
from harness.report.model import P99_SAMPLES, MainRow, PerformanceRow, Report, Series
from harness.report.profiles import profiles
from harness.report.reproduce import reproduce
from harness.report.text import (
    NONE,
    between,
    difference,
    hit_rate,
    mean_and_interval,
    percent,
    significant,
    spread,
    table,
)
from harness.stats import LEVEL, Metric

FIGURES_MISSING = (
    "Figures are left out: matplotlib is not installed. "
    "Install the extra with `pip install 'omni-prefix-bench[figures]'` and regenerate the report."
)
_CAPTIONS = {
    "throughput.png": "Request throughput against the baseline: geometric mean, interval and rounds",
    "latency.png": "Median latency by bench and arm, with every round",
}


def render_markdown(report: Report, figures: Sequence[str] | None = ()) -> str:
    """The whole report.

    Parameters:
        report: what to say.
        figures: names of the drawn figures under `figures/`; None when they cannot be drawn here.
    """
    sections = (
        _head(report),
        _figures(figures),
        _main(report),
        accuracy_text.section(report.accuracy),
        evidence.uncertainty(report),
        details.rounds(report),
        _performance(report),
        evidence.latency(report),
        details.cache_work(report),
        profiles(report),
        _parity(report),
        evidence.memory(report),
        _starts(report),
        _notes(report),
        appendix.provenance(report),
        reproduce(report),
        appendix.definitions(report),
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(report: Report) -> str:
    lines = [f"# {report.manifest.run}"]
    if report.scenario.description:
        lines.append(report.scenario.description.strip())
    if (progress := words.progress(report)) is not None:
        lines.append(f"> **{progress}**")
    lines.append(words.verdict(report))
    lines += [
        told if verdict in (None, Verdict.PASS) else f"> **{told}**"
        for verdict, told in accuracy_text.sentences(report.accuracy)
    ]
    return "\n\n".join(lines)


def _figures(figures: Sequence[str] | None) -> str:
    if figures is None:
        return f"_{FIGURES_MISSING}_"
    return "\n\n".join(f"![{_CAPTIONS.get(name, name)}](figures/{name})" for name in figures)


def ratio_cell(row: MainRow) -> str:
    """`+19.5%`, and where the bench speaks `+19.5%; TTFP −74.9%`."""
    if row.throughput.ratio is None:
        return NONE
    text = percent(row.throughput.ratio)
    if row.ttfp is not None and row.ttfp.ratio is not None:
        text += f"; TTFP {percent(row.ttfp.ratio)}"
    return text


def verdict_cell(row: MainRow) -> str:
    """`faster`, or `faster (advisory)` with too few rounds behind it."""
    advisory = row.throughput.advisory and bool(row.throughput.rounds)
    return f"{row.throughput.verdict}{' (advisory)' if advisory else ''}"


def _alone(report: Report) -> str:
    if not report.alone:
        return ""
    rows = [
        [
            row.bench,
            hit_rate(row.hit),
            NONE if row.hit.ideal is None else percent(row.hit.ideal, signed=False),
            NONE if row.request_throughput is None else significant(row.request_throughput),
            str(row.rounds),
        ]
        for row in report.alone
    ]
    head = ["bench", "stage-0 hit", "ideal hit", f"{report.baseline} (req/s)", "rounds"]
    return "\n\n".join(("## Request throughput", table(head, rows), words.baseline_proof(report)))


def _main(report: Report) -> str:
    if not report.others:
        return _alone(report)
    if not report.main:
        return ""
    several = len(report.others) > 1
    head = [
        "bench",
        *(["arm"] if several else []),
        "stage-0 hit",
        "ideal hit",
        f"{report.baseline} (req/s)",
        "ratio of means" if several else f"{''.join(report.others)}, ratio of means",
        "per-round range",
        f"geometric mean ({LEVEL:.0%} interval)",
        "rounds",
        "verdict",
    ]
    rows = [
        [
            row.bench.name,
            *([row.arm] if several else []),
            hit_rate(row.hit),
            NONE if row.hit.ideal is None else percent(row.hit.ideal, signed=False),
            NONE if row.throughput.base_mean is None else significant(row.throughput.base_mean),
            ratio_cell(row),
            between(row.throughput.spread),
            mean_and_interval(row.throughput.geometric, row.throughput.interval),
            str(len(row.throughput.rounds)),
            verdict_cell(row),
        ]
        for row in report.main
    ]
    warnings = [
        f"- {row.bench.name}, `{row.arm}`: {warning}." for row in report.main for warning in row.throughput.warnings
    ]
    parts = [
        "## Request throughput against the baseline",
        table(head, rows, left=2 if several else 1, words=("verdict",)),
        words.baseline_proof(report),
    ]
    parts.append(
        "The ratio of means is the one in the sentence on top. The verdict goes by the interval around the "
        "geometric mean of the per-round ratios, which is what the figure draws: `same` means an interval inside "
        f"{between(report.band)}{', or the wider noise floor under Uncertainty' if report.noise else ''}. "
        "TTFP is the median audio time to first packet: lower is better."
    )
    return "\n\n".join(parts + (["\n".join(warnings)] if warnings else []))


def _performance(report: Report) -> str:
    if not report.performance:
        return ""
    metrics = list(dict.fromkeys(series.metric for row in report.performance for series in row.series))
    # A column that withholds every number is said in one sentence.
    withheld = all(row.requests < P99_SAMPLES for row in report.performance)
    head = ["bench", "arm", "n", *(_title(metric) for metric in metrics), *([] if withheld else ["p99 E2EL (ms)"])]
    rows = [
        [
            row.bench,
            row.arm,
            str(row.requests),
            *(_series(row, metric) for metric in metrics),
            *([] if withheld else [_p99(row)]),
        ]
        for row in report.performance
    ]
    return "\n\n".join(
        (
            "## Normalised throughput and latency",
            table(head, rows, left=2),
            "Means over the valid rounds of each round's value; in brackets the change against the baseline. "
            "n is the number of completed requests a round."
            + (f" 99th percentiles are withheld: they need {P99_SAMPLES} requests a round." if withheld else ""),
        )
    )


def _title(metric: Metric) -> str:
    return f"{metric.label} ({metric.unit})" if metric.unit else metric.label


def _series(row: PerformanceRow, metric: Metric) -> str:
    found: Series | None = next((series for series in row.series if series.metric == metric), None)
    if found is None:
        return NONE
    if found.mean is None:
        return "absent"
    text = significant(found.mean)
    if found.comparison is not None and found.comparison.ratio is not None:
        text += f" ({percent(found.comparison.ratio)})"
    if len(found.by_round) < row.rounds:
        text += f" [{len(found.by_round)} of {row.rounds} rounds]"
    return text


def _p99(row: PerformanceRow) -> str:
    if row.p99_e2el is not None:
        return significant(row.p99_e2el)
    return f"withheld (n < {P99_SAMPLES})" if row.requests < P99_SAMPLES else "absent"


def _parity(report: Report) -> str:
    head = [
        "bench", "answers of", "rounds", "compared", "missing", "text equal", "text differs", "text empty",
        "first difference", "audio equal", "audio differs", "audio seconds", "transcript equal",
    ]  # fmt: skip
    rows = []
    for row in report.parity:
        one = row.parity
        spoken = one.digests.equal + one.digests.differ > 0
        told = one.transcripts.equal + one.transcripts.differ
        rows.append(
            [
                row.bench,
                f"{row.left} twice (control)" if row.control else f"{row.left}, {row.right}",
                row.rounds,
                str(one.compared),
                str(one.missing),
                str(one.texts.equal),
                str(one.texts.differ),
                str(one.texts.absent),
                NONE if one.median_position is None else f"character {one.median_position}",
                str(one.digests.equal) if spoken else NONE,
                str(one.digests.differ) if spoken else NONE,
                NONE if one.audio_ratio is None else difference(one.audio_ratio),
                f"{one.transcripts.equal} of {told}" if told else NONE,
            ]
        )
    if not rows:
        return ""
    return "\n\n".join(
        (
            "## Output parity",
            table(head, rows, left=3),
            "Answers to the same prompt, compared character by character and audio sample by audio sample. Servers "
            "that batch need not repeat themselves: read a row beside its control, the baseline against itself in "
            "two rounds. First difference is the median over the texts that differ, counted from 0.",
        )
    )


def _starts(report: Report) -> str:
    rows = [[row.arm, spread(row.ready), spread(row.first_request, digits=3)] for row in report.starts]
    if not rows:
        return ""
    return "## Start\n\n" + table(["arm", "time to ready (s)", "first request (s)"], rows)


def _notes(report: Report) -> str:
    parts = ["## Caveats and dropped pairs"]
    if not report.notes:
        of = "of those with a record " if report.missing else ""
        parts.append(f"None: no trial {of}failed, no pair was dropped, no log showed known trouble.")
    else:
        parts.append(
            table(
                ["what", "trial", "bench", "why", "log"],
                [
                    [
                        note.kind,
                        note.trial or NONE,
                        note.bench or NONE,
                        note.text,
                        NONE if note.log is None else f"`{note.log}`",
                    ]
                    for note in report.notes
                ],
                left=5,
            )
        )
    if report.client_lag is not None:
        lag = report.client_lag.lag
        waiting = "" if lag.waiting_ms is None else f", {significant(lag.waiting_ms, 3)} ms of it waiting for a CPU"
        parts.append(
            f"The client's own event loop was late by at most {significant(lag.late_ms, 3)} ms{waiting} "
            f"({report.client_lag.trial}, {report.client_lag.bench})."
        )
    return "\n\n".join(parts)
