"""Everything a reader must know beside the numbers: dropped pairs, caveats, failed trials, sources that differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from harness.records import CellRecord, Manifest, PlannedTrial, SourceTree, TrialRecord
from harness.report.text import listed
from harness.stats import Comparison

Kind = Literal[
    "failed trial", "no record", "dropped pair", "replaced pair", "invalid cell", "not reported", "resumed",
    "caveat", "source",
]  # fmt: skip

_NO_RECORD = (
    "it began and has not ended: it is running, or was stopped, or its server did not come up, which its log then shows"
)


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to know. `trial` is a folder name, `bench` the bench it touches, `log` a path in the run folder."""

    kind: Kind
    trial: str | None
    bench: str | None
    text: str
    log: str | None = None


def collect(
    manifest: Manifest,
    trials: Sequence[TrialRecord],
    cells: Sequence[CellRecord],
    comparisons: Sequence[Comparison],
    rounds: int,
    begun: Iterable[PlannedTrial],
) -> tuple[Note, ...]:
    """Every note of a run, the gravest kind first, then in plan order.

    Parameters:
        rounds: of the scenario; a dropped pair is replaced where as many valid ones are left.
        begun: trials that have a server's log and no record.
    """
    slugs = {(trial.round, trial.arm): trial.slug for trial in manifest.plan}
    return (
        *_failed(trials, slugs),
        *(Note("no record", trial.slug, None, _NO_RECORD, _log(trial.slug)) for trial in begun),
        # Two metrics of one pair are dropped for the same reason: say it once.
        *dict.fromkeys(_dropped(comparisons, slugs, rounds)),
        *_invalid(cells, comparisons, slugs),
        *_unreported(cells, slugs),
        *_resumed(manifest, trials, slugs),
        *_caveats(trials, cells, slugs),
        *_sources(manifest, trials, slugs),
    )


def _log(slug: str, line: int | None = None) -> str:
    path = f"trials/{slug}/server.log"
    return path if line is None else f"{path}:{line}"


def _failed(trials: Iterable[TrialRecord], slugs: dict[tuple[int, str], str]) -> Iterable[Note]:
    for trial in trials:
        slug = slugs[trial.round, trial.arm]
        if trial.status == "failed":
            yield Note("failed trial", slug, None, trial.failure or "no reason recorded", _log(slug))
        elif trial.stopped_by not in ("sigterm", "left running"):
            how = "it died before it was stopped"
            if trial.stopped_by != "died":
                how = "it was killed once its time to stop was over, or cut short by an interrupt"
            yield Note("caveat", slug, None, f"the server did not stop on SIGTERM: {how}", _log(slug))


def _dropped(comparisons: Iterable[Comparison], slugs: dict[tuple[int, str], str], rounds: int) -> Iterable[Note]:
    for one in comparisons:
        for pair in one.dropped:
            sides = [slugs[pair.round, arm] for arm in (one.baseline, one.arm)]
            for reason in pair.reasons:
                # A reason about one side begins with its trial; its log is the one to read.
                named = [slug for slug in sides if reason.startswith(f"{slug}: ")] or sides
                yield Note(
                    "dropped pair" if len(one.rounds) < rounds else "replaced pair",
                    " / ".join(named),
                    one.bench,
                    f"round {pair.round}, {one.arm} against {one.baseline}: "
                    + (reason.removeprefix(f"{named[0]}: ") if len(named) == 1 else reason),
                    ", ".join(_log(slug) for slug in named),
                )


def _invalid(
    cells: Iterable[CellRecord], comparisons: Iterable[Comparison], slugs: dict[tuple[int, str], str]
) -> Iterable[Note]:
    """Reported cells that do not count and that no dropped pair speaks of: those without a partner."""
    told = {
        (pair.round, arm, one.bench) for one in comparisons for pair in one.dropped for arm in (one.baseline, one.arm)
    }
    for cell in cells:
        if cell.cell.reported and (cell.cell.round, cell.cell.arm, cell.cell.bench) not in told:
            slug = slugs[cell.cell.round, cell.cell.arm]
            for reason in cell.cell.invalid:
                yield Note("invalid cell", slug, cell.cell.bench, reason, _log(slug))


def _unreported(cells: Iterable[CellRecord], slugs: dict[tuple[int, str], str]) -> Iterable[Note]:
    for cell in cells:
        if not cell.cell.reported:
            slug = slugs[cell.cell.round, cell.cell.arm]
            for reason in cell.cell.invalid:
                yield Note("not reported", slug, cell.cell.bench, f"invalid: {reason}", _log(slug))


def _resumed(manifest: Manifest, trials: Sequence[TrialRecord], slugs: dict[tuple[int, str], str]) -> Iterable[Note]:
    """What ran after each resume. Arms of one round are compared with each other: a round on both sides is named."""
    started = {slugs[trial.round, trial.arm]: (_instant(trial.started_at), trial.round) for trial in trials}
    resumes = [_instant(at) for at in manifest.resumed_at]
    for number, at in enumerate(manifest.resumed_at):
        until = resumes[number + 1 :][:1]
        after = {
            slug: round_
            for slug, (start, round_) in started.items()
            if start >= resumes[number] and all(start < end for end in until)
        }
        text = f"the run was taken up again at {at}; after that ran {listed(list(after)) or 'no trial that ended'}"
        before = {round_ for start, round_ in started.values() if start < resumes[number]}
        if parted := sorted(before & set(after.values())):
            one = len(parted) == 1
            text += f"; round{'' if one else 's'} {listed([str(each) for each in parted])} "
            text += f"{'has' if one else 'have'} trials from before and after it"
        yield Note("resumed", None, None, text)


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _caveats(
    trials: Iterable[TrialRecord], cells: Iterable[CellRecord], slugs: dict[tuple[int, str], str]
) -> Iterable[Note]:
    for trial in trials:
        slug = slugs[trial.round, trial.arm]
        for caveat in trial.caveats:
            times = f" ({caveat.count} times)" if caveat.count > 1 else ""
            yield Note("caveat", slug, None, f"{caveat.kind}: {caveat.message}{times}", _log(slug, caveat.line))
    for cell in cells:
        slug = slugs[cell.cell.round, cell.cell.arm]
        for text in cell.cell.caveats:
            yield Note("caveat", slug, cell.cell.bench, text, _log(slug))


def _sources(manifest: Manifest, trials: Sequence[TrialRecord], slugs: dict[tuple[int, str], str]) -> Iterable[Note]:
    for source in manifest.sources:
        if source.dirty:
            yield Note("source", None, None, f"{source.name} had uncommitted changes on {source.commit}")
        if source.commit is None:
            yield Note("source", None, None, f"{source.name} is under no version control: its code is not pinned")
    first: dict[tuple[str, str], SourceTree] = {}
    for trial in trials:
        for source in trial.sources:
            known = first.setdefault((trial.arm, source.name), source)
            if (known.commit, known.dirty) != (source.commit, source.dirty):
                yield Note(
                    "source",
                    slugs[trial.round, trial.arm],
                    None,
                    f"{source.name} changed between trials of {trial.arm}: {known.state}, then {source.state}",
                )
    resolved: dict[str, str] = {}
    for trial in trials:
        if resolved.setdefault(trial.arm, trial.resolved_sha256) != trial.resolved_sha256:
            yield Note(
                "source",
                slugs[trial.round, trial.arm],
                None,
                f"the resolved configuration of {trial.arm} changed between trials",
            )
