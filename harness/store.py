"""The results directory: atomic records, one writer, and nothing that a crash can leave half true.

results/<run>/manifest.json, scenario.yaml, trials/<slug>/{trial.json, server.log, samples.csv, <bench>.json,
<bench>.requests.jsonl}, report.md, figures/
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from harness.atomic import write_atomic
from harness.errors import RecordError, UsageError
from harness.records import SCHEMA, CellRecord, Manifest, PlannedTrial, Record, RequestRecord, TrialRecord

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

    def begin_trial(self, trial: PlannedTrial) -> Path:
        """An empty folder for a trial; what an unfinished attempt left there is removed."""
        folder = self.trial_dir(trial)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder

    def write_trial(self, record: TrialRecord) -> None:
        """Ends a trial: written last, its presence says that everything before it is whole."""
        write_atomic(self.trial_dir(record) / "trial.json", _bytes(record))

    def write_cell(self, trial: PlannedTrial, cell: CellRecord, requests: tuple[RequestRecord, ...]) -> None:
        folder, bench = self.trial_dir(trial), cell.cell.bench
        lines = b"".join(request.model_dump_json().encode() + b"\n" for request in requests)
        write_atomic(folder / f"{bench}.requests.jsonl", lines)
        write_atomic(folder / f"{bench}.json", _bytes(cell))

    def finished(self, trial: PlannedTrial) -> TrialRecord | None:
        """The trial's record, if it ended well."""
        path = self.trial_dir(trial) / "trial.json"
        if not path.exists():
            return None
        record = _read(path, TrialRecord)
        return record if record.status == "finished" else None

    def whole(self, record: TrialRecord, benches: Sequence[str]) -> bool:
        """Whether a finished trial still has a cell of each bench, and one line of requests for each prompt."""
        if set(record.benches) != set(benches):
            return False
        try:
            return all(
                len(self.requests(record, bench))
                == _read(self.trial_dir(record) / f"{bench}.json", CellRecord).num_prompts
                for bench in benches
            )
        except RecordError:
            return False

    def trials(self) -> tuple[TrialRecord, ...]:
        """The trials that ended, well or not, in the order of the plan."""
        paths = (self.trial_dir(trial) / "trial.json" for trial in self.manifest().plan)
        return tuple(_read(path, TrialRecord) for path in paths if path.exists())

    def cells(self) -> tuple[CellRecord, ...]:
        """The cells of the trials that ended, in the order of the plan and of the benches."""
        return tuple(
            _read(self.trial_dir(trial) / f"{bench}.json", CellRecord)
            for trial in self.trials()
            for bench in trial.benches
        )

    def requests(self, trial: PlannedTrial | TrialRecord, bench: str) -> tuple[RequestRecord, ...]:
        path = self.trial_dir(trial) / f"{bench}.requests.jsonl"
        return tuple(_parse(line, path, RequestRecord) for line in _load(path).splitlines())

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
