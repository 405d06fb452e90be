"""What every scenario object is made of: the frozen base, bounded numbers, the refusal of a value."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

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


class Frozen(BaseModel):
    """Base of every scenario object: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def refusal(found: str, allowed: str, *where: str | int) -> PydanticCustomError:
    """What a validator raises: `where` is the place below the object at fault."""
    return PydanticCustomError(
        "refused", "found {found}; allowed: {allowed}", {"found": found, "allowed": allowed, "where": where}
    )
