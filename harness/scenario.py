"""A scenario: one YAML file that defines a run, as frozen, validated objects (docs/design.md, section 4).

`load_scenario` turns a file into a `Scenario` or raises one `ScenarioError`; nothing here starts anything.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from harness._scenario_errors import describe, first_error
from harness._scenario_secrets import refuse_secrets
from harness._scenario_yaml import Document, Loc, Row, read_document, read_table
from harness.errors import ScenarioError, UsageError

Modality = Literal["text", "audio"]
Dataset = Literal["random", "prefix_repetition"]
Order = Literal["abba", "alternate", "random", "latin"]
ServerKind = Literal["tiny-omni", "vllm", "vllm-omni", "external"]
Endpoint = Literal["chat", "completions"]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=80)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
# Bounds no measurement comes near: what lies beyond is a slip, and would exhaust this machine's memory.
Prompts = Annotated[int, Field(ge=1, le=1_000_000)]
Tokens = Annotated[int, Field(ge=0, le=10_000_000)]
SomeTokens = Annotated[int, Field(ge=1, le=10_000_000)]
Concurrency = Annotated[int, Field(ge=1, le=100_000)]
Rounds = Annotated[int, Field(ge=1, le=10_000)]
Rate = Annotated[float, Field(ge=1e-6)]
Burstiness = Annotated[float, Field(ge=1e-3)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Seconds = Annotated[float, Field(gt=0.0)]
Scalar = str | int | float | bool

RESERVED_BODY = frozenset({"model", "messages", "prompt", "stream", "n"})
"""Keys that `extra_body` may not change: the client could no longer tell what it measures."""


class Frozen(BaseModel):
    """Base of every scenario object: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _refusal(found: str, allowed: str, *where: str | int) -> PydanticCustomError:
    """What a validator raises: `where` is the place below the object at fault."""
    return PydanticCustomError(
        "refused", "found {found}; allowed: {allowed}", {"found": found, "allowed": allowed, "where": where}
    )


class Server(Frozen):
    """How the server under test is started, for every arm.

    `args` become `--key value` (true: the bare flag, false: `--no-key`), `deploy` is a vLLM-Omni deploy overlay.
    `${NAME}` in a value of `args` or `env` is a variable of bench's own environment, looked up at the start and
    recorded nowhere. A relative `source`, and a relative `python` with a slash in it, start at the file's folder.
    """

    kind: ServerKind
    args: dict[str, Scalar] = {}
    env: dict[str, str] = {}
    python: str | None = None
    source: str | None = None
    deploy: dict[str, Any] | None = None
    ready_timeout: Seconds = 120.0
    stop_timeout: Seconds = 15.0
    request_timeout: Seconds = 600.0
    """Bound on one request, so that a stalled stream ends as a failed request."""


class Arm(Frozen):
    """One server configuration: what it changes of `Server`. Exactly one arm of a scenario is the baseline."""

    baseline: bool = False
    args: dict[str, Scalar] = {}
    env: dict[str, str] = {}
    python: str | None = None
    source: str | None = None
    deploy: dict[str, Any] | None = None
    prefix_cache: Literal["bundled", "builtin"] | None = None


class Bench(Frozen):
    """One named load on a running server: one row of a scenario table, with its block's settings folded in."""

    name: Name
    dataset: Dataset
    modalities: tuple[Modality, ...] = ("text",)
    endpoint: Endpoint = "chat"
    concurrency: Concurrency
    prompts: Prompts
    seed: Count
    output: SomeTokens
    request_rate: Rate | None = None
    """Open-loop arrivals per second; None is the closed loop with `concurrency` in flight."""
    burstiness: Burstiness | None = None
    """Shape of the gamma-distributed gaps (1: Poisson); None with a request_rate: constant gaps."""
    ignore_eos: bool = True
    extra_body: dict[str, Any] = {}
    reported: bool = True
    """False for `warm`: run and recorded, left out of the tables."""
    # dataset: random
    shared_prefix: Tokens | None = None
    random_len: Tokens | None = None
    range_ratio: Share | None = None
    # dataset: prefix_repetition
    prefix_len: SomeTokens | None = None
    suffix_len: SomeTokens | None = None
    num_prefixes: Prompts | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for error in self._refusals():
            raise error
        return self

    def _refusals(self) -> Iterator[PydanticCustomError]:
        if self.name in _RESERVED_NAMES:
            yield _refusal(f"{self.name!r}, the name of another record", "any other name", "name")
        for dataset, columns in _SHAPE.items():
            for column in columns:
                value = getattr(self, column)
                if dataset == self.dataset and value is None:
                    yield _refusal("nothing", f"a value: dataset {dataset} needs it", column)
                if dataset != self.dataset and value is not None:
                    yield _refusal(describe(value), f"nothing: it belongs to dataset {dataset}", column)
        if self.dataset == "random" and self._shortest() < 1:
            yield _refusal("a prompt of 0 tokens", "shared_prefix + random_len * (1 - range_ratio) of 1 or more")
        if self.num_prefixes is not None and self.prompts % self.num_prefixes:
            yield _refusal(
                f"{self.prompts} (a whole number)", f"a multiple of num_prefixes, {self.num_prefixes}", "prompts"
            )
        if self.seed > _MAX_SEED:
            yield _refusal(describe(self.seed), f"0 to {_MAX_SEED}", "seed")
        if not self.modalities or len(set(self.modalities)) != len(self.modalities):
            yield _refusal(f"[{', '.join(self.modalities)}]", "each modality once, at least one", "modalities")
        if self.endpoint == "completions" and self.modalities != ("text",):
            yield _refusal("audio from endpoint completions", "[text], or endpoint chat", "modalities")
        if self.burstiness is not None and self.request_rate is None:
            yield _refusal("a burstiness without a request_rate", "both, or neither", "burstiness")

    def _shortest(self) -> int:
        """Tokens of the shortest prompt that dataset random may draw."""
        return (self.shared_prefix or 0) + math.floor((self.random_len or 0) * (1 - (self.range_ratio or 0.0)))


_SHAPE: dict[Dataset, tuple[str, ...]] = {
    "random": ("shared_prefix", "random_len", "range_ratio"),
    "prefix_repetition": ("prefix_len", "suffix_len", "num_prefixes"),
}
_COLUMNS: dict[Dataset, tuple[str, ...]] = {
    "random": (
        "name", "shared_prefix", "random_len", "output", "range_ratio", "concurrency", "prompts", "seed"
    ),
    "prefix_repetition": (
        "name", "prefix_len", "suffix_len", "num_prefixes", "output", "concurrency", "prompts", "seed"
    ),
}  # fmt: skip
# What a trial's folder holds beside its cells.
_RESERVED_NAMES = ("trial", "server")
# numpy's legacy generator, which dataset prefix_repetition draws from, takes 32 bits.
_MAX_SEED = 2**32 - 1


class Validity(Frozen):
    """When a cell counts (section 5). Bands are absolute shares: 0.02 is two points of hit rate."""

    hit_rate_band: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    allow_failures: Count = 0
    audio_tolerance: Annotated[float, Field(ge=0.0)] = 0.05
    practical_threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.03
    """Half-width of the band in which a throughput ratio is called `same`."""


class Header(Frozen):
    """What a scenario file holds beside its workloads."""

    # `schema` in the file: the attribute is renamed because pydantic owns that name.
    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    description: str = ""
    model: str
    tokenizer: str | None = None
    """A `tokenizer.json` or a folder that holds one; None: the server kind's own, else `model` as a folder."""
    server: Server
    arms: dict[Name, Arm]
    rounds: Rounds
    order: Order = "abba"
    seed: Count = 0
    """Seeds the `random` order."""
    validity: Validity = Validity()

    @field_validator("schema_version", mode="before")
    @classmethod
    def _check_schema(cls, value: object) -> object:
        # A literal takes what equals it: true and 1.0 too.
        if type(value) is not int:
            raise _refusal(describe(value), "1")
        return value

    @model_validator(mode="after")
    def _check_arms(self) -> Self:
        baselines = [name for name, arm in self.arms.items() if arm.baseline]
        if len(baselines) != 1:
            found = f"{len(baselines)} baselines ({', '.join(baselines)})" if baselines else "no baseline"
            raise _refusal(found, "exactly one arm with `baseline: true`", "arms")
        count = len(self.arms)
        if (self.order == "abba" and count > 2) or (self.order == "latin" and count < 2):
            orders = "order latin, alternate or random" if count > 2 else "order abba, alternate or random"
            # The default order, where the file names none, is the arms' fault.
            where = "order" if "order" in self.model_fields_set else "arms"
            raise _refusal(f"order {self.order} with {count} {'arm' if count == 1 else 'arms'}", orders, where)
        return self

    @property
    def baseline(self) -> str:
        """Name of the baseline arm."""
        return next(name for name, arm in self.arms.items() if arm.baseline)


class Scenario(Header):
    """Everything that defines a run. `benches` are in file order; the first round's order follows `arms`."""

    benches: tuple[Bench, ...]

    @model_validator(mode="after")
    def _check_benches(self) -> Self:
        if not self.benches:
            raise _refusal("no bench", "at least one", "benches")
        names = [bench.name for bench in self.benches]
        for position, name in enumerate(names):
            if name in names[:position]:
                raise _refusal(f"the name {name!r} again", "a name per bench", "benches", position, "name")
        return self

    def resolved(self) -> dict[str, Any]:
        """The scenario with every default written out, as JSON data; `Scenario.model_validate_json` reads it."""
        return self.model_dump(mode="json", by_alias=True)


class Block(Frozen):
    """One block of `workloads` in a file: settings that its table's rows share."""

    dataset: Dataset
    modalities: list[Modality] = ["text"]
    endpoint: Endpoint = "chat"
    ignore_eos: bool = True
    extra_body: dict[str, Any] = {}
    request_rate: Rate | Literal["inf"] | None = None
    burstiness: Burstiness | None = None
    reported: bool = True
    table: str

    @model_validator(mode="after")
    def _check_extra_body(self) -> Self:
        for key in self.extra_body:
            if key in RESERVED_BODY:
                raise _refusal(f"{key!r}", f"any key but {', '.join(sorted(RESERVED_BODY))}", "extra_body", key)
        variables = self.extra_body.get("chat_template_kwargs")
        if variables is not None and not isinstance(variables, dict):
            raise _refusal(describe(variables), "a mapping", "extra_body", "chat_template_kwargs")
        return self


class ScenarioFile(Header):
    """A scenario file, tables still as text."""

    workloads: Annotated[list[Block], Field(min_length=1)]


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


_Placed = TypeVar("_Placed", Server, Arm)


def _placed(settings: _Placed, document: Document, loc: Loc) -> _Placed:
    """The settings with absolute paths, so that a run can be resumed from any folder."""
    update: dict[str, str] = {}
    for key, value in (("python", settings.python), ("source", settings.source)):
        # A bare interpreter's name is looked up on PATH.
        if value is None or (key == "python" and "/" not in value):
            continue
        try:
            # Not resolved: a virtual environment's interpreter is known by the link it is called through.
            update[key] = str((document.path.parent / Path(value).expanduser()).absolute())
        except RuntimeError:
            raise document.error((*loc, key), describe(value), "the path of somebody known here") from None
    return settings.model_copy(update=update)


def scenario_sha256(scenario: Scenario) -> str:
    """Hex digest of the resolved scenario as canonical JSON: equal digests mean the same run is defined."""
    text = json.dumps(scenario.resolved(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def narrow(
    scenario: Scenario, only: Sequence[str] = (), rounds: int | None = None, arms: Sequence[str] = ()
) -> Scenario:
    """The part of a scenario that the command line asked for.

    Parameters:
        only: bench names or glob patterns; empty keeps all. `warm` always stays.
        rounds: in place of the file's.
        arms: arm names; empty keeps all.

    Raises:
        UsageError: a name or pattern that fits nothing, no round, or the baseline arm left out.
    """
    names = [bench.name for bench in scenario.benches]
    for pattern in only:
        if not fnmatch.filter(names, pattern):
            raise UsageError(f"--only: found {pattern!r}; allowed: {', '.join(names)} (or a pattern that fits one)")
    for arm in arms:
        if arm not in scenario.arms:
            raise UsageError(f"--arms: found {arm!r}; allowed: {', '.join(scenario.arms)}")
    if arms and scenario.baseline not in arms:
        raise UsageError(f"--arms: found no baseline; allowed: a choice with the baseline arm, {scenario.baseline}")
    if rounds is not None and rounds < 1:
        raise UsageError(f"--rounds: found {rounds}; allowed: 1 or more")
    kept = {name: arm for name, arm in scenario.arms.items() if not arms or name in arms}
    return scenario.model_copy(
        update={
            "benches": tuple(
                bench
                for bench in scenario.benches
                if not only or bench.name == "warm" or any(fnmatch.fnmatchcase(bench.name, pattern) for pattern in only)
            ),
            "rounds": rounds or scenario.rounds,
            "arms": kept,
            # A Latin square of one arm is one arm after the other.
            "order": "alternate" if len(kept) == 1 and scenario.order == "latin" else scenario.order,
        }
    )


def _read_block(document: Document, loc: Loc, block: Block) -> Iterator[tuple[Row, Bench]]:
    """A block's rows as benches, in file order."""
    if block.request_rate == "inf":
        block = block.model_copy(update={"request_rate": None})
    settings = {name: getattr(block, name) for name in Block.model_fields if name != "table"}
    settings["modalities"] = tuple(block.modalities)
    table = (*loc, "table")
    for row in read_table(document, table, _COLUMNS[block.dataset], ("request_rate",)):
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
