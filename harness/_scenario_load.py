"""From a scenario file to a `Scenario`: read, validate, flatten its tables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from harness._scenario_accuracy import AccuracyBlock, Check, Sim, Wer
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
    if "rows" in document.data and "arms" not in document.data:
        # Scope files lie beside the scenarios.
        raise document.error(("rows",), "the rows of a table for `bench scope`", "a scenario, which has arms")
    file = _validate(ScenarioFile, document.data, document, document.error)
    refuse_secrets(document)
    benches: list[Bench] = []
    checks: list[Check] = []
    first_line: dict[str, int] = {}
    blocks = [*_located("workloads", file.workloads), *_located("accuracy", file.accuracy)]
    for loc, block in blocks:
        for row, bench in _read_block(document, loc, block):
            if bench.name in first_line:
                raise document.error(
                    (*loc, "table"),
                    f"the name again (first on line {first_line[bench.name]})",
                    "a name per bench",
                    line=row.line,
                    part=f"row {bench.name!r}",
                )
            first_line[bench.name] = row.line
            if isinstance(bench, Check):
                checks.append(bench)
            else:
                benches.append(bench)
    if file.profile is not None and file.profile.bench not in (names := [bench.name for bench in benches]):
        raise document.error(("profile", "bench"), describe(file.profile.bench), f"a bench: {', '.join(names)}")
    header = {field.alias or name: getattr(file, name) for name, field in Header.model_fields.items()}
    header["server"] = _placed(file.server, document, ("server",))
    header["arms"] = {name: _placed(arm, document, ("arms", name)) for name, arm in file.arms.items()}
    scenario = Scenario.model_validate({**header, "benches": tuple(benches), "checks": tuple(checks)})
    return scenario.against_itself() if scenario.order == "aa" else scenario


def _located(key: str, blocks: Sequence[Block]) -> list[tuple[Loc, Block]]:
    return [((key, position), block) for position, block in enumerate(blocks)]


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
    if isinstance(block, AccuracyBlock):
        settings |= {"wer": _model_placed(block.wer, document), "sim": _model_placed(block.sim, document)}
    model = Check if isinstance(block, AccuracyBlock) else Bench
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

        yield row, _validate(model, values, document, at)


_Scorer = TypeVar("_Scorer", Wer, Sim)


def _model_placed(scorer: _Scorer | None, document: Document) -> _Scorer | None:
    """The settings with an absolute path of a model, be it the default of a variable; a bare name stays one."""
    if scorer is None or scorer.model is None:
        return scorer
    default = re.fullmatch(r"(\$\{[A-Za-z_][A-Za-z0-9_]*:-)([^}]+)(\})", scorer.model)
    before, path, after = default.groups() if default else ("", scorer.model, "")
    if "/" not in path or path.startswith("${"):
        return scorer
    placed = os.path.normpath((document.path.parent / Path(path).expanduser()).absolute())
    return scorer.model_copy(update={"model": f"{before}{placed}{after}"})


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
