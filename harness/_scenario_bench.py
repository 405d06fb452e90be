"""The bench: one named load, and the block of a scenario file that its row stands in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from harness._scenario_errors import describe
from harness._scenario_types import (
    Burstiness,
    Concurrency,
    Count,
    Frozen,
    Name,
    Positive,
    Prompts,
    Rate,
    Share,
    SomeTokens,
    Tokens,
    refusal,
)

Modality = Literal["text", "audio"]
Dataset = Literal["random", "prefix_repetition", "seed_tts", "conversation", "daily_omni"]
Endpoint = Literal["chat", "completions", "speech"]
Task = Literal["clone", "speak", "transcribe"]
Locale = Literal["en", "zh"]
Client = Literal["bench", "vllm-bench"]

RESERVED_BODY = frozenset({"model", "messages", "prompt", "input", "stream", "n"})
"""Keys that `extra_body` may not change: the client could no longer tell what it measures."""


class Bench(Frozen):
    """One named load on a running server: one row of a scenario table, with its block's settings folded in."""

    name: Name
    dataset: Dataset
    modalities: tuple[Modality, ...] = ("text",)
    endpoint: Endpoint = "chat"
    client: Client = "bench"
    """The load generator: this project's own, or `vllm bench serve` of the server's interpreter."""
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
    # dataset: seed_tts, conversation, daily_omni
    path: str | None = None
    """Folder of the set, which holds `{locale}/meta.lst`; of the others the file of their items."""
    # dataset: daily_omni
    media: str | None = None
    """Where the set's videos are: the address before `VIDEO_ID/VIDEO_ID_video.mp4`."""
    # dataset: seed_tts
    locale: Locale | None = None
    first: Positive | None = None
    """Line of `meta.lst` that the first prompt is made of; the others follow."""
    task: Task | None = None
    """Say a text in a recorded voice, say it in the server's own voice, or write down what a recording says."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for error in self._refusals():
            raise error
        return self

    def _refusals(self) -> Iterator[PydanticCustomError]:
        if self.name in _RESERVED_NAMES:
            yield refusal(f"{self.name!r}, the name of another record", "any other name", "name")
        for column in dict.fromkeys(column for columns in (*SHAPE.values(), *_OPTIONAL.values()) for column in columns):
            value, needed = getattr(self, column), column in SHAPE[self.dataset]
            if needed and value is None:
                yield refusal("nothing", f"a value: dataset {self.dataset} needs it", column)
            if not needed and column not in _OPTIONAL.get(self.dataset, ()) and value is not None:
                owners = [name for name in SHAPE if column in (*SHAPE[name], *_OPTIONAL.get(name, ()))]
                yield refusal(describe(value), f"nothing: it belongs to dataset {' or '.join(owners)}", column)
        if self.dataset == "random" and self._shortest() < 1:
            yield refusal("a prompt of 0 tokens", "shared_prefix + random_len * (1 - range_ratio) of 1 or more")
        if self.num_prefixes is not None and self.prompts % self.num_prefixes:
            yield refusal(
                f"{self.prompts} (a whole number)", f"a multiple of num_prefixes, {self.num_prefixes}", "prompts"
            )
        if self.seed > _MAX_SEED:
            yield refusal(describe(self.seed), f"0 to {_MAX_SEED}", "seed")
        if not self.modalities or len(set(self.modalities)) != len(self.modalities):
            yield refusal(f"[{', '.join(self.modalities)}]", "each modality once, at least one", "modalities")
        only = _ONLY.get(self.endpoint)
        if only is not None and self.modalities != (only,):
            other = "audio" if only == "text" else "text"
            yield refusal(f"{other} from endpoint {self.endpoint}", f"[{only}], or endpoint chat", "modalities")
        yield from self._speech_refusals()
        if self.burstiness is not None and self.request_rate is None:
            yield refusal("a burstiness without a request_rate", "both, or neither", "burstiness")

    def _speech_refusals(self) -> Iterator[PydanticCustomError]:
        speaks = self.task in ("clone", "speak")
        if speaks and "audio" not in self.modalities:
            yield refusal(f"[{', '.join(self.modalities)}]", f"audio among them: task {self.task} speaks", "modalities")
        if self.task is not None and self.endpoint not in (("chat", "speech") if speaks else ("chat",)):
            yield refusal(f"{self.endpoint!r}", "chat or speech" if speaks else "chat", "endpoint")
        if self.ignore_eos and (speaks or self.endpoint == "speech"):
            yield refusal("true", "false: speech ends where its text does", "ignore_eos")

    def _shortest(self) -> int:
        """Tokens of the shortest prompt that dataset random may draw."""
        return (self.shared_prefix or 0) + math.floor((self.random_len or 0) * (1 - (self.range_ratio or 0.0)))


SHAPE: dict[Dataset, tuple[str, ...]] = {
    "random": ("shared_prefix", "random_len", "range_ratio"),
    "prefix_repetition": ("prefix_len", "suffix_len", "num_prefixes"),
    "seed_tts": ("path", "locale", "first", "task"),
    "conversation": ("path",),
    "daily_omni": ("path",),
}
_OPTIONAL: dict[Dataset, tuple[str, ...]] = {"daily_omni": ("media",)}
COLUMNS: dict[Dataset, tuple[str, ...]] = {
    "random": (
        "name", "shared_prefix", "random_len", "output", "range_ratio", "concurrency", "prompts", "seed"
    ),
    "prefix_repetition": (
        "name", "prefix_len", "suffix_len", "num_prefixes", "output", "concurrency", "prompts", "seed"
    ),
    "seed_tts": ("name", "concurrency", "prompts", "output"),
    "conversation": ("name", "concurrency", "prompts", "output"),
    "daily_omni": ("name", "concurrency", "prompts", "output"),
}  # fmt: skip
# Items of a file are taken as they come: the seed only times an open loop's arrivals, or draws resamples of scores.
DEFAULTS: dict[Dataset, dict[str, Any]] = {
    "seed_tts": {"locale": "en", "first": 1, "task": "clone", "seed": 0},
    "conversation": {"seed": 0},
    "daily_omni": {"seed": 0},
}
_ONLY: dict[Endpoint, Modality] = {"completions": "text", "speech": "audio"}
# What a trial's folder holds beside its cells.
_RESERVED_NAMES = ("trial", "server")
# numpy's legacy generator, which dataset prefix_repetition draws from, takes 32 bits.
_MAX_SEED = 2**32 - 1


class Block(Frozen):
    """One block of `workloads` in a file: settings that its table's rows share."""

    dataset: Dataset
    modalities: list[Modality] = ["text"]
    endpoint: Endpoint = "chat"
    client: Client = "bench"
    ignore_eos: bool = True
    extra_body: dict[str, Any] = {}
    request_rate: Rate | Literal["inf"] | None = None
    burstiness: Burstiness | None = None
    reported: bool = True
    path: str | None = None
    locale: Locale | None = None
    first: Positive | None = None
    task: Task | None = None
    media: str | None = None
    table: str

    def settings(self) -> dict[str, Any]:
        """What its rows share, with the defaults of its dataset."""
        given = {name: getattr(self, name) for name in Block.model_fields if name != "table"}
        chosen = {name: value for name, value in given.items() if value is not None}
        return {**given, **DEFAULTS.get(self.dataset, {}), **chosen, "modalities": tuple(self.modalities)}

    @model_validator(mode="after")
    def _check_extra_body(self) -> Self:
        for key in self.extra_body:
            if key in RESERVED_BODY:
                raise refusal(f"{key!r}", f"any key but {', '.join(sorted(RESERVED_BODY))}", "extra_body", key)
        variables = self.extra_body.get("chat_template_kwargs")
        if variables is not None and not isinstance(variables, dict):
            raise refusal(describe(variables), "a mapping", "extra_body", "chat_template_kwargs")
        return self
