"""The results directory: atomic records, one writer, and nothing that a crash can leave half true.

results/<run>/manifest.json, scenario.yaml, trials/<slug>/{trial.json, server.log, samples.csv, <bench>.json,
<bench>.requests.jsonl, <check>.audio/}, accuracy/, report.md, figures/
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from harness.atomic import write_atomic
from harness.errors import RecordError, UsageError
from harness.records import (
    SCHEMA,
    CellRecord,
    Manifest,
    NoiseRecord,
    PlannedTrial,
    Record,
    RequestRecord,
    TrialRecord,
)

R = TypeVar("R", bound=Record)


class RunStore:
    """One run's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, manifest: Manifest, scenario: bytes) -> RunStore:
        """Starts a run in a directory that must not exist yet.

        Raises:
            UsageError: it does.
        """
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise UsageError(f"{path}: found an existing directory; allowed: a new one, or --resume {path}") from None
        except OSError as error:
            raise UsageError(f"{path}: cannot be created: {error.strerror}") from None
        store = cls(path)
        write_atomic(path / "scenario.yaml", scenario)
        store.write_manifest(manifest)
        return store

    @classmethod
    def open(cls, path: Path) -> RunStore:
        """An existing run.

        Raises:
            RecordError: `path` is not one, or was written by another schema.
        """
        store = cls(path)
        if not (path / "manifest.json").is_file():
            raise RecordError(f"{path}: found no manifest.json; allowed: a run directory, results/<run>")
        store.manifest()
        return store

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the run for one writer.

        Raises:
            UsageError: another process is writing it.
        """
        with (self.path / ".lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"{self.path}: another `bench run` is writing this run") from None
            yield

    def manifest(self) -> Manifest:
        return _read(self.path / "manifest.json", Manifest)

    def scenario_file_sha256(self) -> str:
        """SHA-256 of the run's own copy of its scenario file, in hexadecimal: what `sha256sum` prints.

        Raises:
            RecordError: the copy is gone.
        """
        return hashlib.sha256(_load(self.path / "scenario.yaml")).hexdigest()

    def write_manifest(self, manifest: Manifest) -> None:
        write_atomic(self.path / "manifest.json", _bytes(manifest))

    def trial_dir(self, trial: PlannedTrial | TrialRecord) -> Path:
        return self.path / "trials" / trial.slug

    @property
    def begun(self) -> bool:
        """Whether a trial was ever started: before that there is nothing to resume."""
        return any((self.path / "trials").glob("*"))

    def begin_trial(self, trial: PlannedTrial) -> Path:
        """An empty folder for a trial; what an unfinished attempt left there is removed."""
        for summary in (self.path / "accuracy").glob("*/summary.json"):
            # Of answers that are about to be others.
            summary.unlink()
        folder = self.trial_dir(trial)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder

    def write_trial(self, record: TrialRecord) -> None:
        """Ends a trial: written last, its presence says that everything before it is whole."""
        write_atomic(self.trial_dir(record) / "trial.json", _bytes(record))

    def pass_dir(self, trial: PlannedTrial | TrialRecord, number: int) -> Path:
        """Where the cells of a pass over the benches lie; those of the first, which counts, in the trial's folder."""
        return self.trial_dir(trial) if number == 1 else self.trial_dir(trial) / f"pass{number}"

    def begin_pass(self, trial: PlannedTrial, number: int) -> Path:
        """The folder of a pass, made if it is not there."""
        folder = self.pass_dir(trial, number)
        folder.mkdir(exist_ok=True)
        return folder

    def write_cell(self, trial: PlannedTrial, cell: CellRecord, requests: tuple[RequestRecord, ...]) -> None:
        folder, bench = self.begin_pass(trial, cell.cell.pass_number), cell.cell.bench
        lines = b"".join(request.model_dump_json().encode() + b"\n" for request in requests)
        write_atomic(folder / f"{bench}.requests.jsonl", lines)
        write_atomic(folder / f"{bench}.json", _bytes(cell))

    def write_audio(self, trial: PlannedTrial, check: str, index: int, wav: bytes) -> None:
        """Keeps the speech of one answer; before the cell, whose presence says that all of it is there."""
        write_atomic(self.audio_path(trial, check, index), wav)

    def audio_path(self, trial: PlannedTrial | TrialRecord, check: str, index: int) -> Path:
        """Where the speech of one answer lies, if it had any."""
        return self.trial_dir(trial) / f"{check}.audio" / f"{index:05d}.wav"

    def accuracy_path(self, name: str) -> Path:
        """A file of accuracy: `<check>.items.jsonl`, `<check>/<slug>.jsonl`, `<check>/summary.json`."""
        return self.path / "accuracy" / name

    def write_lines(self, name: str, records: Iterable[Record]) -> None:
        """Writes records below accuracy/, a line each."""
        write_atomic(self.accuracy_path(name), b"".join(one.model_dump_json().encode() + b"\n" for one in records))

    def read_lines(self, name: str, kind: type[R]) -> tuple[R, ...]:
        path = self.accuracy_path(name)
        return tuple(_parse(line, path, kind) for line in _load(path).splitlines())

    def write_summary(self, name: str, record: Record) -> None:
        write_atomic(self.accuracy_path(f"{name}/summary.json"), _bytes(record))

    def read_summary(self, name: str, kind: type[R]) -> R | None:
        """What a check's scores come to; None where it was not scored."""
        path = self.accuracy_path(f"{name}/summary.json")
        return _read(path, kind) if path.exists() else None

    def keep(self, name: str, source: Path) -> None:
        """Copies a file into the run, under this path below it."""
        write_atomic(self.path / name, _load(source))

    def cell(self, trial: TrialRecord, bench: str) -> CellRecord:
        return _read(self.trial_dir(trial) / f"{bench}.json", CellRecord)

    def finished(self, trial: PlannedTrial) -> TrialRecord | None:
        """The trial's record, if it ended well."""
        path = self.trial_dir(trial) / "trial.json"
        if not path.exists():
            return None
        record = _read(path, TrialRecord)
        return record if record.status == "finished" else None

    def whole(self, record: TrialRecord, benches: Sequence[str], passes: int = 1) -> bool:
        """Whether a finished trial still has a cell of each bench, and one line of requests for each prompt."""
        if set(record.benches) != set(benches):
            return False
        try:
            return all(
                len(self.requests(record, bench, number))
                == _read(self.pass_dir(record, number) / f"{bench}.json", CellRecord).num_prompts
                for bench in benches
                for number in range(1, passes + 1)
            )
        except RecordError:
            return False

    def trials(self) -> tuple[TrialRecord, ...]:
        """The trials that ended, well or not, in the order of the plan."""
        paths = (self.trial_dir(trial) / "trial.json" for trial in self.manifest().plan)
        return tuple(_read(path, TrialRecord) for path in paths if path.exists())

    def cells(self) -> tuple[CellRecord, ...]:
        """The cells of the trials that ended, in the order of the plan and of the benches; of the first pass alone."""
        return tuple(
            _read(self.trial_dir(trial) / f"{bench}.json", CellRecord)
            for trial in self.trials()
            for bench in trial.benches
        )

    def requests(
        self, trial: PlannedTrial | TrialRecord, bench: str, pass_number: int = 1
    ) -> tuple[RequestRecord, ...]:
        path = self.pass_dir(trial, pass_number) / f"{bench}.requests.jsonl"
        return tuple(_parse(line, path, RequestRecord) for line in _load(path).splitlines())

    def write_noise(self, noise: NoiseRecord | None) -> None:
        """Keeps the noise floors that hold for this run, where its host has any."""
        if noise is not None:
            write_atomic(self.path / "noise.json", _bytes(noise))

    def noise(self) -> NoiseRecord | None:
        """The noise floors that hold for this run; None where its host had none when it started."""
        path = self.path / "noise.json"
        return _read(path, NoiseRecord) if path.exists() else None

    def write_report(self, name: str, content: str | bytes) -> Path:
        """Writes a file of the report, `report.md` or `figures/ratio.png`."""
        path = self.path / name
        write_atomic(path, content.encode() if isinstance(content, str) else content)
        return path


def _bytes(record: Record) -> bytes:
    return record.model_dump_json(indent=1).encode() + b"\n"


def _load(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}{_mend(path)}") from None


def _read(path: Path, kind: type[R]) -> R:
    data = _load(path)
    _check_schema(data, path)
    return _parse(data, path, kind)


def _check_schema(data: bytes, path: Path) -> None:
    # Before the keys: another version may well have others.
    try:
        values = json.loads(data)
        found = values.get("schema_version", values.get("cell", {}).get("schema_version", SCHEMA))
    except (ValueError, AttributeError):
        return
    if found != SCHEMA:
        raise RecordError(f"{path}: schema_version: found {json.dumps(found)}; allowed: {SCHEMA}")


def _parse(data: bytes, path: Path, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise RecordError(
            f"{path}: not a {kind.__name__} of this version: {where}: {first['msg']}{_mend(path)}"
        ) from None


def _mend(path: Path) -> str:
    trial = path.parent
    if trial.parent.name != "trials":
        return ""
    return f"; to measure this trial again: delete {trial}, then bench run --resume {trial.parent.parent}"
