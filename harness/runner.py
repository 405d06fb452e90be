"""The runner: carries out a plan, trial after trial, so that it can be killed at any moment and resumed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import harness
from harness.client import VllmBench, check_vllm_bench
from harness.errors import ResumeError, UsageError
from harness.loads import Loads
from harness.plan import make_plan
from harness.progress import Progress
from harness.provenance import host, source_tree, utc_now, versions
from harness.recorded import scenario_of
from harness.records import Manifest, SourceTree, TrialRecord
from harness.scenario import Scenario, scenario_sha256
from harness.servers.kinds import common_block_size, resolve_server
from harness.servers.process import recover
from harness.store import RunStore
from harness.trial import Trial
from harness.workloads import Tokenizer, find_tokenizer


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
        self._vllm_bench = self._find_vllm_bench()
        folder = find_tokenizer(scenario, scenario_file.parent)
        if folder is None:
            raise UsageError(
                f"{scenario_file}: tokenizer: found none for model {scenario.model}; allowed: a folder that holds "
                "tokenizer.json, as `tokenizer:`"
            )
        self._tokenizer = Tokenizer(folder)
        try:
            self._block_size = common_block_size(self._kind, self._arms.values())
        except UsageError as error:
            raise UsageError(f"{scenario_file}: {error}") from error

    def start(self, path: Path, command: Sequence[str]) -> RunResult:
        """Runs everything, into a directory that must not exist yet."""
        loads = Loads(self._scenario.benches, self._tokenizer)
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
            ideal_hit_rates=dict(loads.ideal(self._block_size)),
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
        return self._carry_out(store, Loads(self._scenario.benches, self._tokenizer), resuming=True)

    def _carry_out(self, store: RunStore, loads: Loads, *, resuming: bool = False) -> RunResult:
        with store.writing():
            manifest = store.manifest()
            plan = manifest.plan
            for trial in plan:
                recover(store.trial_dir(trial))
            benches = tuple(load.bench.name for load in loads.all)
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
            self._progress.run(loads.cost * (len(plan) - len(done)))
            failed: list[TrialRecord] = []

            async def trials() -> None:
                for number, planned in enumerate(plan, 1):
                    if planned.slug in done:
                        continue
                    self._progress.trial(planned, number, len(plan))
                    arm = self._arms[planned.arm]
                    trial = Trial(
                        self._scenario,
                        planned,
                        arm,
                        self._kind,
                        loads,
                        self._tokenizer,
                        store,
                        self._progress,
                        self._vllm_bench.get(planned.arm),
                    )
                    record = await trial.run()
                    if record.status == "failed":
                        failed.append(record)

            run_until_signalled(trials)
            store.write_manifest(store.manifest().model_copy(update={"finished_at": utc_now()}))
        return RunResult(store, tuple(failed), len(done))

    def _find_vllm_bench(self) -> dict[str, VllmBench]:
        pythons = {name: arm.python or sys.executable for name, arm in self._arms.items()}
        trusting = [name for name, arm in self._arms.items() if arm.args.get("trust-remote-code")]
        try:
            return check_vllm_bench(self._scenario.benches, self._scenario.server.kind, pythons, trusting)
        except UsageError as error:
            raise UsageError(f"{self._file}: {error}") from error


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


def command_line() -> tuple[str, ...]:
    """This process' own command, for the record."""
    return ("bench", *sys.argv[1:])


def _commit(tree: SourceTree) -> str:
    return f"{tree.commit or 'outside version control'}{' with local changes' if tree.dirty else ''}"
