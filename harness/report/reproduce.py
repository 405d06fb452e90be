"""How to get a run's numbers again: the revision, the commands, and the server of each arm."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from harness.records import Manifest, SourceTree, TrialRecord
from harness.report.model import Report
from harness.scenario import Arm, Scenario, Server

_NARROWING = ("--only", "--rounds", "--arms")
_WITH_VALUE = (*_NARROWING, "--out", "--resume")
_SHOWN_PREFIXES = ("PREFIX_CACHE", "VLLM_", "OMP_")
_SHOWN = ("CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED")


def reproduce(report: Report) -> str:
    """The section; commands are to be run at the root of a checkout."""
    manifest = report.manifest
    blocks = [
        *(line for tree in manifest.sources for line in _checkout(tree)),
        "# the whole run",
        shlex.join(manifest.command),
        *_from_copy(manifest, report.scenario),
        "# this report, from the records",
        shlex.join(("bench", "report", f"results/{manifest.run}")),
    ]
    for arm in report.scenario.arms:
        first = next((trial for trial in report.trials if trial.arm == arm), None)
        if first is not None and report.scenario.server.kind == "external":
            # As recorded, without what a URL may hold of a password.
            where = first.resolved.get("url", "an address that was not recorded")
            blocks += [f"# server of {arm}: it ran already, at {where}; how it was started is not known here"]
        elif first is not None:
            blocks += [f"# server of {arm} (resolved {first.resolved_sha256[:12]}{_revisions(first.sources)})"]
            blocks += [" ".join((*_variables(first), shlex.join(first.argv)))]
    return "\n\n".join(
        (
            "## How to reproduce",
            "```bash\n" + "\n".join(blocks) + "\n```",
            f"The resolved scenario's sha256 is `{manifest.scenario_sha256}`: runs that share it were defined alike. "
            "A version of this project that knows other keys gives the same file another one.",
        )
    )


def _from_copy(manifest: Manifest, scenario: Scenario) -> Iterator[str]:
    """The run again from its own copy of the scenario, which works only where the copy's relative paths lead on."""
    kept, again = f"results/{manifest.run}/scenario.yaml", narrowing(manifest.command)
    what = "# the same, from the copy of the scenario kept in the run's folder"
    if _names_no_place(scenario):
        yield from (what, shlex.join(("bench", "run", kept, *again)))
        return
    # Under a name of its own: what stands in the original's place may have been changed since, and is kept.
    beside = str(_folder(manifest) / f"{manifest.run}.yaml")
    yield f"{what}: beside the original, where its relative paths start"
    yield shlex.join(("cp", kept, beside))
    yield shlex.join(("bench", "run", beside, *again))


def _names_no_place(scenario: Scenario) -> bool:
    """Whether a scenario means the same in every folder.

    The records hold paths resolved, so one that was absolute in the file counts as a place too.
    """
    given: list[str | None] = [scenario.tokenizer, scenario.server.model_path]
    configurations: tuple[Server | Arm, ...] = (scenario.server, *scenario.arms.values())
    for settings in configurations:
        given += [settings.source, (settings.deploy or {}).get("base_config")]
        given += [settings.python if "/" in (settings.python or "") else None]
    given += [load.path for load in scenario.loads]
    models = [scorer.model for check in scenario.checks for scorer in (check.wer, check.sim) if scorer is not None]
    given += [model for model in models if "/" in (model or "")]
    # Every other kind's model may be a folder beside the file, where its tokenizer is looked for.
    return scenario.server.kind == "tiny-omni" and not any(given)


def _folder(manifest: Manifest) -> Path:
    """Where the scenario stood, as its command called it."""
    file = Path(manifest.scenario_file)
    for word in map(Path, manifest.command):
        if word.name and file.parts[-len(word.parts) :] == word.parts:
            return word.parent
    return file.parent


def narrowing(command: Sequence[str]) -> tuple[str, ...]:
    """The options of a `bench run` command that narrow its scenario, as they were given.

    Where results go is left out: it changes nothing that is measured.
    """
    return tuple(_narrowing(command))


def _narrowing(command: Sequence[str]) -> Iterator[str]:
    words = iter(command)
    for word in words:
        name, joined, _ = word.partition("=")
        if word == "--":
            return
        if name in _WITH_VALUE:
            given = (word,) if joined else (word, next(words, ""))
            if name in _NARROWING:
                yield from given
        elif word == "--aa":
            yield word


def _checkout(tree: SourceTree) -> Iterable[str]:
    if tree.commit is None:
        return (f"# {tree.name} was under no version control: which code ran is not known",)
    if tree.dirty is False:
        return (f"# {tree.name}, at the commit that ran", f"git checkout {tree.commit}")
    state = "with local changes, which this does not bring back" if tree.dirty else "(whether unchanged, is not known)"
    return (f"# {tree.name}, at the commit that ran {state}", f"git checkout {tree.commit}")


def _revisions(sources: Iterable[SourceTree]) -> str:
    return "".join(
        f"; {tree.name} at {tree.commit or 'an unknown commit'}{' with local changes' if tree.dirty else ''}"
        for tree in sources
    )


def _variables(trial: TrialRecord) -> Iterator[str]:
    """The cache's and the engine's own variables, and those that the scenario sets: not what else was inherited."""
    of_scenario = trial.resolved.get("env") or {}
    for name, value in sorted(trial.env.items()):
        if name.startswith(_SHOWN_PREFIXES) or name in _SHOWN or name in of_scenario:
            yield f"{name}={shlex.quote(value)}"
