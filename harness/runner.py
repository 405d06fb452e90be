"""The runner: carries out a plan, trial after trial, so that it can be killed at any moment and resumed."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.accuracy.items import items_of_loads
from harness.changed import changed
from harness.errors import ResumeError, UsageError
from harness.extend import more_rounds
from harness.loads import Loads
from harness.needs import need_tokenizer, need_vllm_bench
from harness.noise import noise_for
from harness.pairs import pair_up
from harness.plan import make_plan
from harness.progress import Progress
from harness.provenance import host, source_tree, utc_now, versions
from harness.recorded import scenario_of
from harness.records import Extension, Manifest, PlannedTrial, SourceTree, TrialRecord
from harness.scenario import Scenario, scenario_sha256
from harness.servers.kinds import common_block_size, resolve_server, voice_in_prompt
from harness.servers.process import recover
from harness.servers.sources import OURS, our_source, server_sources
from harness.store import RunStore
from harness.trial import Trial
from harness.workloads import Tokenizer


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
        try:
            self._vllm_bench = need_vllm_bench(scenario, tuple(self._arms.values()))
            self._tokenizer = Tokenizer(need_tokenizer(scenario, scenario_file.parent))
            self._block_size = common_block_size(self._kind, self._arms.values())
        except UsageError as error:
            raise UsageError(f"{scenario_file}: {error}") from error

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
            ideal_hit_rates=dict(loads.ideal(self._block_size)),
            tokenizer_sha256=self._tokenizer.sha256,
        )
        asked = items_of_loads(loads.all)
        store = RunStore.create(path, manifest, self._file.read_bytes())
        for check, (items, references) in asked.items():
            for name, source in references.items():
                store.keep(name, source)
            store.write_lines(f"{check}.items.jsonl", items)
        # Kept in the run, so that its report stays the same when the host is measured again.
        store.write_noise(noise_for(path.parent, manifest.host, self._scenario))
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
            changes += arm_differences(name, finished, self._kind.versions(arm), server_sources(arm))
        changes = list(dict.fromkeys(changes))
        if changes:
            raise ResumeError(
                f"{store.path}: cannot be resumed, its finished trials were measured with something else:\n  "
                + "\n  ".join(changes)
            )
        return self._carry_out(store, self._loads(), resuming=True)

    def _carry_out(self, store: RunStore, loads: Loads, *, resuming: bool = False) -> RunResult:
        with store.writing():
            manifest = store.manifest()
            plan = manifest.plan
            for trial in plan:
                recover(store.trial_dir(trial))
            benches, passes = tuple(load.bench.name for load in loads.all), self._scenario.passes
            done = {
                trial.slug
                for trial in plan
                if (record := store.finished(trial)) is not None and store.whole(record, benches, passes)
            }
            if manifest.finished_at is not None and len(done) == len(plan):
                return RunResult(store, (), len(done))
            if resuming and len(done) < len(plan):
                resumed = {"resumed_at": (*manifest.resumed_at, utc_now()), "finished_at": None}
                store.write_manifest(manifest.model_copy(update=resumed))
            each = loads.cost * passes
            self._progress.run(each * (len(plan) - len(done)))
            failed: list[TrialRecord] = []

            async def whole() -> None:
                planned = plan
                await trials(planned)
                while more := self._longer(store):
                    why, added = more
                    self._progress.more(each * len(added), why)
                    planned += added
                    await trials(planned, after=len(planned) - len(added))

            async def trials(plan: Sequence[PlannedTrial], after: int = 0) -> None:
                for number, planned in enumerate(plan, 1):
                    if planned.slug in done or number <= after:
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

            run_until_signalled(whole)
            store.write_manifest(store.manifest().model_copy(update={"finished_at": utc_now()}))
        return RunResult(store, tuple(failed), len(done))

    def _loads(self) -> Loads:
        in_prompt = voice_in_prompt(self._scenario.server.kind)
        return Loads(self._scenario.loads, self._tokenizer, voice_in_prompt=in_prompt)

    def _longer(self, store: RunStore) -> tuple[str, tuple[PlannedTrial, ...]] | None:
        """Appends the rounds that the run still needs to its plan; what it says of them, and their trials."""
        manifest = store.manifest()
        pairs = pair_up(self._scenario, manifest.plan, store.trials(), store.cells())
        rounds = planned_rounds(manifest)
        more = more_rounds(self._scenario, rounds, manifest.extensions, pairs)
        if more is None:
            return None
        plan = make_plan(self._scenario, rounds + more.count)
        added = tuple(range(rounds + 1, rounds + more.count + 1))
        extension = Extension(rounds=added, reason=more.reason, why=more.why, at=utc_now())
        grown = {"plan": plan, "extensions": (*manifest.extensions, extension)}
        store.write_manifest(manifest.model_copy(update=grown))
        what = f"round {added[0]}" if more.count == 1 else f"rounds {added[0]} to {added[-1]}"
        return f"{what} added: {more.why}", plan[len(manifest.plan) :]


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


def differences(manifest: Manifest, scenario: Scenario, tokenizer_sha256: str) -> list[str]:
    """What has changed since a run was started, one line each; empty when it may be resumed.

    Raises:
        RecordError: the manifest's scenario is not one.
    """
    changes = []
    recorded = scenario_of(manifest)
    if manifest.scenario_sha256 != scenario_sha256(recorded):
        changes.append("manifest.json: its scenario was edited")
    rounds = planned_rounds(manifest)
    if manifest.plan != make_plan(recorded, rounds):
        changes.append("manifest.json: its plan is not the one of its scenario")
    if scenario_sha256(recorded) != scenario_sha256(scenario):
        changes += [f"scenario: {key}" for key in changed(recorded.resolved(), scenario.resolved())]
    elif manifest.plan != make_plan(scenario, rounds) and manifest.plan == make_plan(recorded, rounds):
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


def planned_rounds(manifest: Manifest) -> int:
    """Rounds of a run's plan: those of its scenario and those that were appended."""
    return scenario_of(manifest).rounds + sum(len(extension.rounds) for extension in manifest.extensions)


def arm_differences(
    arm: str, trials: Sequence[TrialRecord], now: Mapping[str, str], sources: Sequence[SourceTree] = ()
) -> list[str]:
    """What the server of an arm runs on now that its finished trials did not run on, one line each.

    Parameters:
        trials: finished ones, of any arm.
        now: versions of the distributions that the server would run on.
        sources: the trees it would run from; of one that is not among them, what lies at its place now counts.
    """
    changes = []
    trees = {tree.name: tree for tree in sources}
    for trial in trials:
        if trial.arm != arm:
            continue
        for name in sorted(trial.versions.keys() | now.keys()):
            before, after = trial.versions.get(name, "not installed"), now.get(name, "not installed")
            if before != after:
                changes.append(f"arm {arm}: version of {name} was {before}, is {after}")
        for tree in trial.sources:
            if tree.name == OURS:
                continue  # the manifest's, which is compared once and not for each arm
            found = trees.get(tree.name) or source_tree(Path(tree.path), tree.name)
            if (tree.commit, tree.dirty) != (found.commit, found.dirty):
                changes.append(f"arm {arm}: commit of {tree.name} was {_commit(tree)}, is {_commit(found)}")
    return list(dict.fromkeys(changes))


def command_line() -> tuple[str, ...]:
    """This process' own command, for the record."""
    return ("bench", *sys.argv[1:])


def _commit(tree: SourceTree) -> str:
    return f"{tree.commit or 'outside version control'}{' with local changes' if tree.dirty else ''}"
