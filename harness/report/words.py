"""The verdict of a run in words: what is faster, what is the same, what cannot be said."""

from __future__ import annotations

from harness.report.measures import Hit
from harness.report.model import MainRow, Report
from harness.report.text import between, count, listed, percent
from harness.stage0 import stage0_setting
from harness.stats import FIRM_ROUNDS, Verdict

_SAYS = {
    Verdict.FASTER: "faster",
    Verdict.SLOWER: "slower",
    Verdict.SAME: "the same",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.INVALID: "without a single valid round",
}
# The reader looks for a regression first.
_ORDER = (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.INCONCLUSIVE, Verdict.INVALID)


def progress(report: Report) -> str | None:
    """The loud line of an unfinished run; None when every planned trial has a record."""
    if not report.missing:
        return None
    planned = len(report.manifest.plan)
    names = listed([trial.slug for trial in report.missing])
    return (
        f"UNFINISHED RUN: {len(report.trials)} of {count(planned, 'trial')} have a record. "
        f"Everything below rests on those alone. Not run: {names}."
    )


def verdict(report: Report) -> str:
    """One paragraph."""
    if not report.others:
        invalid = [note.bench for note in report.notes if note.kind == "invalid cell" and note.bench is not None]
        only = f"`{report.baseline}` is the only arm: nothing to compare."
        return f"{only} Not every cell counted ({listed(list(dict.fromkeys(invalid)))})." if invalid else only
    sentences = [_arm(report, arm) for arm in report.others]
    dropped = [one for row in report.main for one in row.throughput.dropped]
    pairs = sum(len(row.throughput.rounds) for row in report.main) + len(dropped)
    if dropped:
        benches = listed(list(dict.fromkeys(one.bench for one in dropped)))
        sentences.append(
            f"{len(dropped)} of {count(pairs, 'measured pair')} did not count ({benches}); the reasons are below."
        )
        replaced = sum(len(one.rounds) for one in report.manifest.extensions if one.reason == "replacement")
        if replaced:
            sentences.append(f"{count(replaced, 'round')} {'was' if replaced == 1 else 'were'} added in their place.")
    elif pairs:
        sentences.append("The one measured pair counted." if pairs == 1 else f"All {pairs} measured pairs counted.")
    thin = [row for row in report.main if row.throughput.rounds and row.throughput.advisory]
    if thin:
        what = "Every verdict is" if len(thin) == len(report.main) else f"{count(len(thin), 'verdict')} of them:"
        tail = "" if len(thin) == len(report.main) else f" {_names(thin)}"
        sentences.append(f"{what} advisory{tail}: fewer than {FIRM_ROUNDS} valid rounds.")
    return " ".join(sentences)


def _arm(report: Report, arm: str) -> str:
    rows = [row for row in report.main if row.arm == arm]
    if not rows:
        return f"`{arm}`: nothing was measured."
    clauses = [
        f"{len(chosen)} {'is' if len(chosen) == 1 else 'are'} {_SAYS[says]} ({_detail(chosen, says)})"
        for says in _ORDER
        if (chosen := [row for row in rows if row.throughput.verdict is says])
    ]
    return f"With `{arm}` against `{report.baseline}`, of {count(len(rows), 'bench', 'benches')} {listed(clauses)}."


def _detail(rows: list[MainRow], says: Verdict) -> str:
    if says is Verdict.INVALID:
        return _names(rows)
    if says is Verdict.SAME:
        bands = list(dict.fromkeys(between(row.throughput.band) for row in rows))
        return f"within {bands[0] if len(bands) == 1 else 'the band of each'}: {_names(rows)}"
    ordered = sorted(rows, key=lambda row: row.throughput.ratio or 0.0, reverse=says is Verdict.FASTER)
    return ", ".join(
        f"{row.bench.name} {percent(row.throughput.ratio)}" if row.throughput.ratio is not None else row.bench.name
        for row in ordered
    )


def _names(rows: list[MainRow]) -> str:
    return ", ".join(dict.fromkeys(row.bench.name for row in rows))


def baseline_proof(report: Report) -> str:
    """What the counters say of the baseline's own cache."""
    measured = [hit for hit in report.baseline_hits if hit.cells]
    cells = sum(hit.cells for hit in measured)
    if not cells:
        return f"`{report.baseline}`: no cell carries prefix-cache counters, so its cache state is not verified."
    queries = sum(hit.queries for hit in measured)
    if queries == 0 and sum(hit.hits for hit in measured) == 0:
        return (
            f"`{report.baseline}`: 0 queries and 0 hits in the stage-0 prefix cache over "
            f"{'the one reported cell' if cells == 1 else f'all {cells} reported cells'} "
            "(verified from the server's counters)."
        )
    return f"`{report.baseline}`: {queries:.0f} tokens were looked up, {_share(measured)} of them hit."


def _share(hits: list[Hit]) -> str:
    return percent(sum(hit.hits for hit in hits) / sum(hit.queries for hit in hits), signed=False)


def weights(report: Report) -> str:
    """What is real and what is not in this run: what is simulated or broken on purpose, and weights may be random."""
    kind = report.scenario.server.kind
    dummy = any("--load-format dummy" in " ".join(trial.argv).replace("=", " ") for trial in report.trials)
    if kind == "tiny-omni":
        told = _on_purpose(report)
        start = " ".join([*told, "Every"]) if told else "Nothing is simulated: every"
        return (
            f"{start} time, count and byte was measured on this host. The model is the bundled "
            "tiny omni model with seeded random weights: its speed is that of a small model on a CPU, and its "
            "answers carry no knowledge."
        )
    if dummy:
        return (
            "Nothing is simulated: every time, count and byte was measured on this host. The weights are random "
            "(`--load-format dummy`), so the answers carry no knowledge."
        )
    if kind == "external":
        return (
            "Every time and count was measured here. The server was started by somebody else: its weights and "
            "hardware, and whether it simulates anything, are what its owner says."
        )
    return "Nothing is simulated: every time, count and byte was measured on this host."


def _on_purpose(report: Report) -> list[str]:
    """What the reference server was told to pretend."""
    told = []
    for name, says in (
        ("min-step-ms", "**Simulated**: a step of {arms} lasts at least {value} ms, as a device's would (`{name}`)."),
        ("fault", "**On purpose**: {arms} ran with `{name}: {value}`."),
    ):
        arms: dict[str, list[str]] = {}
        for trial in report.trials:
            if value := stage0_setting(trial.resolved.get("args", {}), trial.resolved.get("deploy"), name):
                arms.setdefault(str(value), []).append(f"`{trial.arm}`")
        told += [
            says.format(arms=listed(list(dict.fromkeys(each))), value=value, name=name) for value, each in arms.items()
        ]
    return told
