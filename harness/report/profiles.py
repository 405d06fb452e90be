"""The section on profiles: what share of stage 0's samples lies inside the cache, by function."""

from __future__ import annotations

from harness.records import Profile, TrialRecord
from harness.report.model import Report
from harness.report.text import percent, table

MOST = 15
"""Functions of an arm that are listed one by one."""


def profiles(report: Report) -> str:
    """Only for runs that took one; of an arm's trials the one that did."""
    taken = [(trial, trial.profile) for trial in report.trials if trial.profile and not trial.profile.failure]
    if not taken:
        return ""
    rows = [row for trial, profile in taken for row in _rows(trial, profile)]
    return "\n\n".join(
        (
            "## Profile of stage 0",
            "\n".join(f"- {_head(trial, profile)}" for trial, profile in taken),
            *([table(["arm", "function", "file", "thread", "samples", "share"], rows, left=4)] if rows else []),
            "Taken with py-spy under the bench's load in a pass of its own, after everything that was measured; the "
            "prompts are new ones of the same shape. A sample is one running thread at one instant, and belongs to "
            "the innermost function of a package `prefix_cache` on its stack, whatever that called; shares are of all "
            "samples, threads that only waited for work left out. The cache's own threads run beside the engine's: "
            "their samples cost the engine nothing but the processor they use.",
        )
    )


def _head(trial: TrialRecord, profile: Profile) -> str:
    inside = sum(one.samples for one in profile.cache)
    share = percent(inside / profile.samples, signed=False) if profile.samples else "none"
    path = f"trials/{trial.slug}/{profile.file}"
    return (
        f"`{trial.arm}`, {profile.bench}, {profile.seconds:g} s: {share} of {profile.samples} samples are inside the "
        f"cache; flame graph: [`{path}`]({path}), drawn by <https://www.speedscope.app>"
    )


def _rows(trial: TrialRecord, profile: Profile) -> list[list[str]]:
    def row(function: str, file: str, thread: str, samples: int) -> list[str]:
        return [trial.arm, function, file, thread, str(samples), percent(samples / profile.samples, signed=False)]

    rows = [row(f"`{one.function}`", one.file, one.thread, one.samples) for one in profile.cache[:MOST]]
    rest = profile.cache[MOST:]
    if rest:
        rows.append(row(f"{len(rest)} more", "", "", sum(one.samples for one in rest)))
    return rows
