"""The scenario as objects: server, arms, validity, and the whole."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from harness._scenario_accuracy import AccuracyBlock, Check
from harness._scenario_bench import Bench, Block
from harness._scenario_errors import describe
from harness._scenario_types import Count, Frozen, Name, Rounds, Scalar, Seconds, refusal

Order = Literal["abba", "alternate", "random", "latin", "aa"]
ServerKind = Literal["tiny-omni", "vllm", "vllm-omni", "external"]


class Server(Frozen):
    """How the server under test is started, for every arm.

    `args` become `--key value` (true: the bare flag, false: `--no-key`), `deploy` is a vLLM-Omni deploy overlay.
    `${NAME}` in a value of `args` or `env` is a variable of bench's own environment, looked up at the start and
    recorded nowhere. A relative `source` or `model_path`, and a relative `python` with a slash in it, start at the
    file's folder.
    """

    kind: ServerKind
    model_path: str | None = None
    """Folder of the model, where the server does not find it by the name `model`; served under that name."""
    url: str | None = None
    """Kind external: where the server answers, such as http://127.0.0.1:8000."""
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
    url: str | None = None
    args: dict[str, Scalar] = {}
    env: dict[str, str] = {}
    python: str | None = None
    source: str | None = None
    deploy: dict[str, Any] | None = None
    prefix_cache: Literal["bundled", "builtin"] | None = None


class Validity(Frozen):
    """When a cell counts (section 5). Bands are absolute shares: 0.02 is two points of hit rate."""

    hit_rate_band: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    allow_failures: Count = 0
    audio_tolerance: Annotated[float, Field(ge=0.0)] = 0.05
    practical_threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.03
    """Half-width of the band in which a throughput ratio is called `same`."""
    replace_rounds: Annotated[int, Field(ge=0, le=100)] = 2
    """Rounds that may be added in place of those in which a pair did not count."""


class Until(Frozen):
    """When to stop adding rounds: when the interval of every bench's request throughput is narrow enough.

    `half_width` is that of the geometric mean relative to it, as a share: 0.01 is one percent to either side.
    """

    half_width: Annotated[float, Field(gt=0.0, lt=1.0)]
    max_rounds: Rounds


class Profiling(Frozen):
    """A bench during which stage 0 is profiled: in a pass of its own, never a measured one, in an arm's first round."""

    bench: Name
    seconds: Annotated[float, Field(ge=1.0, le=600.0)] = 20.0


class Header(Frozen):
    """What a scenario file holds beside its workloads and accuracy checks."""

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
    """`aa`: the baseline against itself, in place of all other arms."""
    until: Until | None = None
    passes: Annotated[int, Field(ge=1, le=100)] = 1
    """How often each server runs all benches; the first pass is the one that is reported."""
    seed: Count = 0
    """Seeds the `random` order."""
    validity: Validity = Validity()
    profile: Profiling | None = None

    @field_validator("schema_version", mode="before")
    @classmethod
    def _check_schema(cls, value: object) -> object:
        # A literal takes what equals it: true and 1.0 too.
        if type(value) is not int:
            raise refusal(describe(value), "1")
        return value

    @model_validator(mode="after")
    def _check_arms(self) -> Self:
        baselines = [name for name, arm in self.arms.items() if arm.baseline]
        if len(baselines) != 1:
            found = f"{len(baselines)} baselines ({', '.join(baselines)})" if baselines else "no baseline"
            raise refusal(found, "exactly one arm with `baseline: true`", "arms")
        count = len(self.arms)
        if self.until is not None and self.until.max_rounds < self.rounds:
            found = f"max_rounds {self.until.max_rounds}, under the {self.rounds} rounds planned"
            raise refusal(found, "as many or more", "until")
        if (self.order == "abba" and count > 2) or (self.order == "latin" and count < 2):
            orders = "order latin, alternate or random" if count > 2 else "order abba, alternate or random"
            # The default order, where the file names none, is the arms' fault.
            where = "order" if "order" in self.model_fields_set else "arms"
            raise refusal(f"order {self.order} with {count} {'arm' if count == 1 else 'arms'}", orders, where)
        return self

    @property
    def baseline(self) -> str:
        """Name of the baseline arm."""
        return next(name for name, arm in self.arms.items() if arm.baseline)

    def against_itself(self) -> Self:
        """The baseline and, as the arm `<baseline>.again`, the same once more: what differs between them is noise."""
        arm = self.arms[self.baseline]
        again = arm.model_copy(update={"baseline": False})
        return self.model_copy(update={"order": "aa", "arms": {self.baseline: arm, f"{self.baseline}.again": again}})


class Scenario(Header):
    """Everything that defines a run. `benches` are in file order; the first round's order follows `arms`."""

    benches: tuple[Bench, ...]
    checks: tuple[Check, ...] = ()
    """Accuracy checks: they run after the benches, in file order."""

    @model_validator(mode="after")
    def _check_benches(self) -> Self:
        if not self.loads:
            raise refusal("no bench", "at least one", "benches")
        names = [bench.name for bench in self.loads]
        for position, name in enumerate(names):
            if name in names[:position]:
                raise refusal(f"the name {name!r} again", "a name per bench", "benches", position, "name")
        return self

    @property
    def loads(self) -> tuple[Bench, ...]:
        """Everything a trial sends: the benches, then the accuracy checks."""
        return (*self.benches, *self.checks)

    def resolved(self) -> dict[str, Any]:
        """The scenario with every default written out, as JSON data; `Scenario.model_validate_json` reads it."""
        return self.model_dump(mode="json", by_alias=True)


class ScenarioFile(Header):
    """A scenario file, tables still as text."""

    workloads: Annotated[list[Block], Field(min_length=1)]
    accuracy: list[AccuracyBlock] = []
