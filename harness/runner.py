"""The runner: carries out a plan, trial after trial, so that it can be killed at any moment and resumed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

import harness
from harness.errors import RecordError, ResumeError, UsageError
from harness.plan import make_plan
from harness.progress import Progress
from harness.provenance import host, source_tree, utc_now, versions
from harness.records import Manifest, SourceTree, TrialRecord
from harness.scenario import Scenario, scenario_sha256
from harness.servers.kinds import resolve_server
from harness.servers.process import recover
from harness.store import RunStore
from harness.trial import Load, Trial
from harness.workloads import Tokenizer, find_tokenizer, generate, ideal_hit_rates, served_ids


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Parameters:
        store: its directory.
        failed: the trials whose server died.
        kept: trials that an earlier attempt had finished.
    """

    store: RunStore
    failed: tuple[TrialRecord, ...]
    kept: int


class Runner:
    """One run of one scenario.

    Parameters:
        scenario: validated and narrowed.
        scenario_file: where it was read from; its folder is where a relative tokenizer starts.
        progress: told what goes on.

    Raises:
        UsageError: something the scenario names does not exist or cannot be used; nothing was started.
    """

    def __init__(self, scenario: Scenario, scenario_file: Path, progress: Progress) -> None:
        self._scenario, self._file, self._progress = scenario, scenario_file, progress
        self._kind, self._arms = resolve_server(scenario, scenario_file)
        folder = find_tokenizer(scenario, scenario_file.parent)
        if folder is None:
            raise UsageError(
                f"{scenario_file}: tokenizer: found none for model {scenario.model}; allowed: a folder that holds "
                "tokenizer.json, as `tokenizer:`"
            )
        self._tokenizer = Tokenizer(folder)

    def start(self, path: Path, command: Sequence[str]) -> RunResult:
        """Runs everything, into a directory that must not exist yet."""
        loads = self._loads()
        manifest = Manifest(
            run=path.name,
            created_at=utc_now(),
            command=tuple(command),
            scenario_file=str(self._file.absolute()),
            scenario=self._scenario.resolved(),
            scenario_sha256=scenario_sha256(self._scenario),
            plan=make_plan(self._scenario),
            versions=versions(),
            sources=(our_source(),),
            host=host(),
            ideal_hit_rates={load.bench.name: load.ideal for load in loads},
            tokenizer_sha256=self._tokenizer.sha256,
        )
        store = RunStore.create(path, manifest, self._file.read_bytes())
        return self._carry_out(store, loads)

    def resume(self, store: RunStore) -> RunResult:
        """Runs what an interrupted run has left, after stopping whatever servers it may have left.

        Raises:
            ResumeError: what is here now is not what the finished trials were measured with.
        """
        manifest = store.manifest()
        changes = differences(manifest, self._scenario, self._tokenizer.sha256)
        finished = [record for trial in manifest.plan if (record := store.finished(trial)) is not None]
        for name, arm in self._arms.items():
            changes += arm_differences(name, finished, self._kind.versions(arm))
        changes = list(dict.fromkeys(changes))
        if changes:
            raise ResumeError(
                f"{store.path}: cannot be resumed, its finished trials were measured with something else:\n  "
                + "\n  ".join(changes)
            )
        return self._carry_out(store, self._loads(), resuming=True)

    def _carry_out(self, store: RunStore, loads: tuple[Load, ...], *, resuming: bool = False) -> RunResult:
        with store.writing():
            manifest = store.manifest()
            plan = manifest.plan
            for trial in plan:
                recover(store.trial_dir(trial))
            benches = tuple(load.bench.name for load in loads)
            done = {
                trial.slug
                for trial in plan
                if (record := store.finished(trial)) is not None and store.whole(record, benches)
            }
            if manifest.finished_at is not None and len(done) == len(plan):
                return RunResult(store, (), len(done))
            if resuming and len(done) < len(plan):
                resumed = {"resumed_at": (*manifest.resumed_at, utc_now()), "finished_at": None}
                store.write_manifest(manifest.model_copy(update=resumed))
            self._progress.run(sum(load.cost for load in loads) * (len(plan) - len(done)))
            failed: list[TrialRecord] = []

            async def trials() -> None:
                for number, planned in enumerate(plan, 1):
                    if planned.slug in done:
                        continue
                    self._progress.trial(planned, number, len(plan))
                    arm = self._arms[planned.arm]
                    trial = Trial(
                        self._scenario, planned, arm, self._kind, loads, self._tokenizer, store, self._progress
                    )
                    record = await trial.run()
                    if record.status == "failed":
                        failed.append(record)

            run_until_signalled(trials)
            store.write_manifest(store.manifest().model_copy(update={"finished_at": utc_now()}))
        return RunResult(store, tuple(failed), len(done))

    def _loads(self) -> tuple[Load, ...]:
        caching = [arm for arm in self._arms.values() if self._kind.expects_caching(arm) is not False]
        sizes = {self._kind.block_size(arm) for arm in caching}
        if len(sizes) > 1:
            raise UsageError(f"{self._file}: arms: found block sizes {sorted(sizes)}; allowed: one for all arms")
        prompts = {bench.name: generate(bench, self._tokenizer) for bench in self._scenario.benches}
        served = [
            (bench.name, served_ids(bench, prompts[bench.name], self._tokenizer)) for bench in self._scenario.benches
        ]
        ideal = ideal_hit_rates(served, sizes.pop()) if sizes else {bench: 0.0 for bench, _ in served}
        return tuple(
            Load(
                bench,
                prompts[bench.name],
                ideal[bench.name],
                float(sum(len(ids) for ids in ids_of) + sum(prompt.output_len for prompt in prompts[bench.name])),
            )
            for bench, (_, ids_of) in zip(self._scenario.benches, served, strict=True)
        )


def run_until_signalled(main: Callable[[], Coroutine[None, None, None]]) -> None:
    """Runs a coroutine function; Ctrl-C, SIGTERM and SIGHUP cancel it, so that its own clean-up runs.

    Raises:
        KeyboardInterrupt: one of these signals came.
    """

    async def guarded() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
        await main()

    try:
        asyncio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def our_source() -> SourceTree:
    """The checkout this harness runs from."""
    return source_tree(Path(harness.__file__).parent, "omni-prefix-bench")


def differences(manifest: Manifest, scenario: Scenario, tokenizer_sha256: str) -> list[str]:
    """What has changed since a run was started, one line each; empty when it may be resumed.

    Raises:
        RecordError: the manifest's scenario is not one.
    """
    changes = []
    recorded = scenario_of(manifest)
    if manifest.scenario_sha256 != scenario_sha256(recorded):
        changes.append("manifest.json: its scenario was edited")
    if manifest.plan != make_plan(recorded):
        changes.append("manifest.json: its plan is not the one of its scenario")
    if scenario_sha256(recorded) != scenario_sha256(scenario):
        changes += [f"scenario: {key}" for key in changed_keys(recorded.resolved(), scenario.resolved())]
    elif manifest.plan != make_plan(scenario) and manifest.plan == make_plan(recorded):
        changes.append("scenario: the order of its arms")
    if manifest.tokenizer_sha256 not in (None, tokenizer_sha256):
        changes.append(f"sha256 of the tokenizer: was {manifest.tokenizer_sha256}, is {tokenizer_sha256}")
    now = versions()
    for name in sorted(manifest.versions.keys() | now.keys()):
        before, after = manifest.versions.get(name, "not installed"), now.get(name, "not installed")
        if before != after:
            changes.append(f"version of {name}: was {before}, is {after}")
    source = our_source()
    for tree in manifest.sources:
        if tree.name == source.name and (tree.commit, tree.dirty) != (source.commit, source.dirty):
            changes.append(f"commit of {tree.name}: was {_commit(tree)}, is {_commit(source)}")
    return changes


def arm_differences(arm: str, trials: Sequence[TrialRecord], now: Mapping[str, str]) -> list[str]:
    """What the server of an arm runs on now that its finished trials did not run on, one line each.

    Parameters:
        trials: finished ones, of any arm.
        now: versions of the distributions that the server would run on.
    """
    changes = []
    for trial in trials:
        if trial.arm != arm:
            continue
        for name in sorted(trial.versions.keys() | now.keys()):
            before, after = trial.versions.get(name, "not installed"), now.get(name, "not installed")
            if before != after:
                changes.append(f"arm {arm}: version of {name} was {before}, is {after}")
        for tree in trial.sources:
            found = source_tree(Path(tree.path), tree.name)
            if (tree.commit, tree.dirty) != (found.commit, found.dirty):
                changes.append(f"arm {arm}: source commit was {_commit(tree)}, is {_commit(found)}")
    return list(dict.fromkeys(changes))


def changed_keys(before: object, after: object, at: str = "") -> list[str]:
    """Dotted keys whose values differ, with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key in dict.fromkeys([*before, *after]):
            path = f"{at}.{key}" if at else str(key)
            found += changed_keys(before.get(key), after.get(key), path)
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line for i, pair in enumerate(zip(before, after, strict=True)) for line in changed_keys(*pair, f"{at}[{i}]")
        ]
    return [] if before == after else [f"{at}: was {json.dumps(before)}, is {json.dumps(after)}"]


def scenario_of(manifest: Manifest) -> Scenario:
    """The scenario a run was started with, narrowed as it was then.

    Raises:
        RecordError: the manifest's scenario does not validate.
    """
    try:
        # Through JSON text: only there do strict models take a list for a tuple.
        return Scenario.model_validate_json(json.dumps(manifest.scenario))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"manifest.json of {manifest.run}: scenario.{where}: {first['msg']}") from None


def command_line() -> tuple[str, ...]:
    """This process' own command, for the record."""
    return ("bench", *sys.argv[1:])


def _commit(tree: SourceTree) -> str:
    return f"{tree.commit or 'outside version control'}{' with local changes' if tree.dirty else ''}"
