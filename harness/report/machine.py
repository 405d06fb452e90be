"""The report for machines: the numbers of the main table, the notes, and whether everything counted, as JSON data."""

from __future__ import annotations

from typing import Any

from harness.report.measures import Hit
from harness.report.model import MainRow, Report
from harness.stats import Comparison, Interval


def to_json(report: Report) -> dict[str, Any]:
    """JSON-able; ratios are shares (0.02 is two percent), hit rates are shares, an absent number is null."""
    return {
        "run": report.manifest.run,
        "scenario": report.scenario.name,
        "scenario_file_sha256": report.scenario_file_sha256,
        "scenario_sha256": report.manifest.scenario_sha256,
        "baseline": report.baseline,
        "trials": {"planned": len(report.manifest.plan), "ended": len(report.trials)},
        "valid": report.valid,
        "benches": [_row(row) for row in report.main],
        "alone": [
            {"bench": row.bench, "hit": _hit(row.hit), "mean": row.request_throughput, "rounds": row.rounds}
            for row in report.alone
        ],
        "accuracy": [
            {
                "check": one.check.name,
                "verdict": None if one.summary is None else one.summary.verdict,
                "summary": None if one.summary is None else one.summary.model_dump(mode="json"),
            }
            for one in report.accuracy
        ],
        "uncertainty": [
            {
                "bench": row.bench,
                "arm": row.arm,
                "half_width": row.half_width,
                "detectable": row.detectable,
                "hodges_lehmann": None if row.opinion is None else row.opinion.hodges_lehmann,
                "sign_flip_p": None if row.opinion is None else row.opinion.sign_flip_p,
                "band": _interval(row.band),
                "noise_floor_run": None if row.floor is None else row.floor.run,
            }
            for row in report.uncertainty
        ],
        "extensions": [one.model_dump(mode="json") for one in report.manifest.extensions],
        "until_met": report.until_met,
        "notes": [
            {"kind": note.kind, "trial": note.trial, "bench": note.bench, "text": note.text, "log": note.log}
            for note in report.notes
        ],
    }


def _row(row: MainRow) -> dict[str, Any]:
    return {
        "bench": row.bench.name,
        "arm": row.arm,
        "hit": _hit(row.hit),
        "request_throughput": _comparison(row.throughput),
        "median_audio_ttfp": None if row.ttfp is None else _comparison(row.ttfp),
    }


def _hit(hit: Hit) -> dict[str, Any]:
    rate = None if hit.rate is None else [hit.rate.low, hit.rate.high]
    return {"queries": hit.queries, "hits": hit.hits, "rate": rate, "ideal": hit.ideal}


def _comparison(one: Comparison) -> dict[str, Any]:
    return {
        "baseline_mean": one.base_mean,
        "mean": one.other_mean,
        "ratio": one.ratio,
        "range": _interval(one.spread),
        "geometric_ratio": one.geometric,
        "interval": _interval(one.interval),
        "verdict": one.verdict.value,
        "advisory": one.advisory,
        "rounds": [{"round": r.round, "baseline": r.base, "arm": r.other, "ratio": r.ratio} for r in one.rounds],
        "dropped": [{"round": d.round, "reasons": list(d.reasons)} for d in one.dropped],
        "warnings": list(one.warnings),
    }


def _interval(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
