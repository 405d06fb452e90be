"""Sections of the report on what its ratios rest on: their uncertainty, the tails of latency, the memory paid."""

from __future__ import annotations

from harness.noise import half_width
from harness.report.model import Report
from harness.report.pooled import P99_SAMPLES, PERCENTILES
from harness.report.text import NONE, between, gib, listed, percent, significant, spread, table
from harness.report.uncertainty import UncertaintyRow
from harness.second_opinion import FIRM_PAIRS


def uncertainty(report: Report) -> str:
    """How precise each ratio is; empty where nothing was compared."""
    if not report.uncertainty:
        return ""
    several = len(report.others) > 1
    firm = any(row.opinion is not None for row in report.uncertainty)
    head = [
        "bench", *(["arm"] if several else []), "rounds", "interval ±", "detectable change",
        *(["Hodges-Lehmann", "sign-flip p"] if firm else []), "called the same", "noise floor",
    ]  # fmt: skip
    rows = [
        [
            row.bench,
            *([row.arm] if several else []),
            str(row.rounds),
            _share(row.half_width),
            _share(row.detectable),
            *(_opinion(row) if firm else ()),
            between(row.band),
            NONE
            if row.floor is None
            else f"±{percent(half_width(row.floor, row.rounds), signed=False)} (run {row.floor.run})",
        ]
        for row in report.uncertainty
    ]
    parts = ["## Uncertainty", table(head, rows, left=2 if several else 1, words=("noise floor",)), _terms(firm)]
    if report.scenario.order == "aa":
        parts.append(
            "The baseline against itself: every change is noise, and its intervals are the noise floor of later runs "
            "of this scenario on hosts like this one."
        )
    elif report.noise is None:
        parts.append(
            "No noise floor was known for this host and scenario: `bench run --aa` measures it, by the baseline "
            "against itself."
        )
    parts += [_rounds(report)] if report.manifest.extensions or report.scenario.until is not None else []
    return "\n\n".join(parts)


def _terms(firm: bool) -> str:
    text = (
        "On request throughput. The interval is given by its half-width relative to its centre. Detectable: the "
        "smallest change that as many rounds as noisy as these would call in four runs of five. What is called the "
        "same is the wider of the practical threshold and the noise floor, which is named where it is the wider one."
    )
    if firm:
        return (
            f"{text} From {FIRM_PAIRS} rounds on a second opinion without the normal distribution: the Hodges-Lehmann "
            "estimate of the change, and the exact p of its sign."
        )
    return f"{text} A second opinion (Hodges-Lehmann, sign flips) needs {FIRM_PAIRS} rounds."


def _opinion(row: UncertaintyRow) -> tuple[str, str]:
    if row.opinion is None:
        return f"n < {FIRM_PAIRS}", f"n < {FIRM_PAIRS}"
    return percent(row.opinion.hodges_lehmann), f"{row.opinion.sign_flip_p:.4f}"


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"


def _rounds(report: Report) -> str:
    lines = [
        f"- round{'' if len(one.rounds) == 1 else 's'} {listed([str(number) for number in one.rounds])} added "
        f"({'to replace' if one.reason == 'replacement' else 'by `until`'}): {one.why}."
        for one in report.manifest.extensions
    ]
    rule = report.scenario.until
    if rule is not None:
        reached = "reached" if report.until_met else "not reached"
        lines.append(
            f"- `until`: an interval of ±{percent(rule.half_width, signed=False)} on every bench was {reached} with "
            f"{max((trial.round for trial in report.manifest.plan), default=0)} rounds; at most {rule.max_rounds}. "
            "Who stops at a narrow interval has stopped at a lucky one now and then: begun with three rounds, such 95% "
            "intervals cover the truth about nine times of ten."
        )
    return "\n".join(lines)


def latency(report: Report) -> str:
    """Percentiles of single requests, pooled and per round; empty where no request was timed."""
    if not report.pooled:
        return ""
    names = [f"p{percent}" for percent in PERCENTILES]
    head = ["bench", "arm", "latency (ms)", "n", *names, *(f"{name} by round" for name in names)]
    rows = [
        [
            row.bench,
            row.arm,
            row.latency,
            str(row.requests),
            *(NONE if value is None else significant(value) for value in row.pooled),
            *(spread(values, digits=1) for values in row.by_round),
        ]
        for row in report.pooled
    ]
    return "\n\n".join(
        (
            "## Latency of single requests",
            table(head, rows, left=3),
            "Percentiles over the requests of all valid rounds together, then the smallest to largest of the rounds' "
            f"own. {NONE}: withheld, under {P99_SAMPLES} requests.",
        )
    )


def memory(report: Report) -> str:
    """Memory of each arm at ready, after each pass over the benches and at its peak, beside what it bought."""
    if not report.memory:
        return ""
    passes = max(len(row.passes) for row in report.memory)
    bought = bool(report.others)
    head = [
        "arm", "measure", "ready", *(f"after pass {number}" for number in range(1, passes + 1)), "peak",
        *(["peak against baseline", "request throughput"] if bought else []),
    ]  # fmt: skip
    rows = [
        [
            row.arm,
            row.measure,
            gib(row.ready),
            *(gib(row.passes[number]) if number < len(row.passes) else NONE for number in range(passes)),
            gib(row.peak),
            *((NONE if row.added is None else percent(row.added), _bought(report, row.arm)) if bought else ()),
        ]
        for row in report.memory
    ]
    text = "Smallest to largest over the trials of an arm: when ready, after each pass over all benches, and the "
    text += "highest sample."
    if bought:
        text += (
            f" Against the baseline: mean of the peaks over that of `{report.baseline}`. Request throughput: the "
            "geometric mean of the change over all benches, and the smallest to largest of them."
        )
    return "\n\n".join(("## Memory (GiB)", table(head, rows, left=2), text))


def _bought(report: Report, arm: str) -> str:
    found = next((gain for gain in report.gains if gain.arm == arm), None)
    return NONE if found is None else f"{percent(found.mean)} ({percent(found.low)} .. {percent(found.high)})"
