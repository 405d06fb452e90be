"""How late the client's own event loop ran: a starved client measures itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lag:
    """The worst delay of an event loop.

    Parameters:
        late_ms: milliseconds past the instant it was to run.
        waiting_ms: milliseconds of them in which its thread could have run and no CPU was given to it; None where the
            kernel does not tell. The rest the loop spent on work of its own, or on a page of memory not there.
    """

    late_ms: float
    waiting_ms: float | None = None

    def __str__(self) -> str:
        waiting = "" if self.waiting_ms is None else f", {self.waiting_ms:.0f} ms of it waiting for a CPU"
        return f"late by up to {self.late_ms:.0f} ms{waiting}"
