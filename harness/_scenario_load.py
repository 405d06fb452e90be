"""From a scenario file to a `Scenario`: read, validate, flatten its tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from harness._scenario_bench import COLUMNS, Bench, Block
from harness._scenario_errors import describe, first_error
from harness._scenario_model import Arm, Header, Scenario, ScenarioFile, Server
from harness._scenario_secrets import refuse_secrets
from harness._scenario_yaml import Document, Loc, Row, read_document, read_table
from harness.errors import ScenarioError


def load_scenario(path: Path | str) -> Scenario:
    """Read, validate and flatten a scenario file.

    Raises:
        ScenarioError: the one thing to correct first; no other error leaves this function.
    """
    document = read_document(Path(path))
    file = _validate(ScenarioFile, document.data, document, document.error)
    refuse_secrets(document)
    benches: list[Bench] = []
    first_line: dict[str, int] = {}
    for position, block in enumerate(file.workloads):
        for row, bench in _read_block(document, ("workloads", position), block):
            if bench.name in first_line:
                raise document.error(
                    ("workloads", position, "table"),
                    f"the name again (first on line {first_line[bench.name]})",
                    "a name per bench",
                    line=row.line,
                    part=f"row {bench.name!r}",
                )
            first_line[bench.name] = row.line
            benches.append(bench)
    header = {field.alias or name: getattr(file, name) for name, field in Header.model_fields.items()}
    header["server"] = _placed(file.server, document, ("server",))
    header["arms"] = {name: _placed(arm, document, ("arms", name)) for name, arm in file.arms.items()}
    return Scenario.model_validate({**header, "benches": tuple(benches)})


_Placed = TypeVar("_Placed", Server, Arm, Block)


def _placed(settings: _Placed, document: Document, loc: Loc) -> _Placed:
    """The settings with absolute paths, so that a run can be resumed from any folder."""
    update: dict[str, Any] = {}
    for key in ("python", "source", "model_path", "path"):
        value = getattr(settings, key, None)
        # A bare interpreter's name is looked up on PATH.
        if value is None or (key == "python" and "/" not in value):
            continue
        try:
            # Not resolved: a virtual environment's interpreter is known by the link it is called through.
            update[key] = str((document.path.parent / Path(value).expanduser()).absolute())
        except RuntimeError:
            raise document.error((*loc, key), describe(value), "the path of somebody known here") from None
    deploy = getattr(settings, "deploy", None)
    if deploy is not None and deploy.get("base_config") is not None:
        update["deploy"] = {**deploy, "base_config": _base(deploy["base_config"], document, (*loc, "deploy"))}
    return settings.model_copy(update=update)


def _base(name: object, document: Document, loc: Loc) -> str:
    """The profile an overlay builds on: absolute if it lies by the scenario, else left to whoever knows the server.

    A path with a slash in it starts at the file's folder, a bare name in the folder `deploy` there: scenarios are
    called like the profiles of their models.
    """
    if not isinstance(name, str) or not name:
        raise document.error((*loc, "base_config"), describe(name), "the path of a deploy profile")
    folder = document.path.parent.absolute()
    place = folder / name if "/" in name else folder / "deploy" / name
    return str(place) if place.is_file() else name


def _read_block(document: Document, loc: Loc, block: Block) -> Iterator[tuple[Row, Bench]]:
    """A block's rows as benches, in file order."""
    if block.request_rate == "inf":
        block = block.model_copy(update={"request_rate": None})
    settings = _placed(block, document, loc).settings()
    table = (*loc, "table")
    for row in read_table(document, table, COLUMNS[block.dataset], ("request_rate",)):
        cells = {column: cell if column == "name" else _number(cell) for column, cell in row.cells.items()}
        values = {**settings, **cells}
        if cells.get("name") == "warm":
            values["reported"] = False
        if "request_rate" in cells:
            if block.request_rate is not None:
                raise document.error(
                    (*loc, "request_rate"), "a request_rate beside the table's own column", "one of the two"
                )
            if cells["request_rate"] == "inf":
                values |= {"request_rate": None, "burstiness": None}

        def at(place: Loc, found: str, allowed: str, row: Row = row) -> ScenarioError:
            if place and place[0] not in row.cells:
                return document.error((*loc, *place), found, allowed)
            part = f"row {row.cells['name']!r}" + (f" column {place[0]!r}" if place else "")
            return document.error(table, found, allowed, line=row.line, part=part)

        yield row, _validate(Bench, values, document, at)


_Model = TypeVar("_Model", bound=BaseModel)


def _validate(model: type[_Model], data: dict[str, Any], document: Document, at: Any) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise first_error(error, model, data, at, lambda loc: document.line(loc) or 0) from None


def _number(cell: str) -> int | float | str:
    """A table's cell: as a number where it is one, else as it stands."""
    for kind in (int, float):
        # The conversions also take underscores, other alphabets' digits, `inf` and `nan`.
        if cell.isascii() and "_" not in cell and cell.lower().lstrip("+-") not in ("inf", "infinity", "nan"):
            try:
                return kind(cell)
            except ValueError:
                continue
    return cell
