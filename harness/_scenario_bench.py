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
    Prompts,
    Rate,
    Share,
    SomeTokens,
    Tokens,
    refusal,
)

Modality = Literal["text", "audio"]
Dataset = Literal["random", "prefix_repetition"]
Endpoint = Literal["chat", "completions"]
Client = Literal["bench", "vllm-bench"]

RESERVED_BODY = frozenset({"model", "messages", "prompt", "stream", "n"})
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

    @model_validator(mode="after")
    def _check(self) -> Self:
        for error in self._refusals():
            raise error
        return self

    def _refusals(self) -> Iterator[PydanticCustomError]:
        if self.name in _RESERVED_NAMES:
            yield refusal(f"{self.name!r}, the name of another record", "any other name", "name")
        for dataset, columns in SHAPE.items():
            for column in columns:
                value = getattr(self, column)
                if dataset == self.dataset and value is None:
                    yield refusal("nothing", f"a value: dataset {dataset} needs it", column)
                if dataset != self.dataset and value is not None:
                    yield refusal(describe(value), f"nothing: it belongs to dataset {dataset}", column)
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
        if self.endpoint == "completions" and self.modalities != ("text",):
            yield refusal("audio from endpoint completions", "[text], or endpoint chat", "modalities")
        if self.burstiness is not None and self.request_rate is None:
            yield refusal("a burstiness without a request_rate", "both, or neither", "burstiness")

    def _shortest(self) -> int:
        """Tokens of the shortest prompt that dataset random may draw."""
        return (self.shared_prefix or 0) + math.floor((self.random_len or 0) * (1 - (self.range_ratio or 0.0)))


SHAPE: dict[Dataset, tuple[str, ...]] = {
    "random": ("shared_prefix", "random_len", "range_ratio"),
    "prefix_repetition": ("prefix_len", "suffix_len", "num_prefixes"),
}
COLUMNS: dict[Dataset, tuple[str, ...]] = {
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
    table: str

    @model_validator(mode="after")
    def _check_extra_body(self) -> Self:
        for key in self.extra_body:
            if key in RESERVED_BODY:
                raise refusal(f"{key!r}", f"any key but {', '.join(sorted(RESERVED_BODY))}", "extra_body", key)
        variables = self.extra_body.get("chat_template_kwargs")
        if variables is not None and not isinstance(variables, dict):
            raise refusal(describe(variables), "a mapping", "extra_body", "chat_template_kwargs")
        return self
