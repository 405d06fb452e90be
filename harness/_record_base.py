"""The base of every record."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of every record: immutable and closed, so a typo in a key is an error and not a lost number."""

    model_config = ConfigDict(extra="forbid", frozen=True)
