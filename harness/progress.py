"""What a person sees while a run goes on; nothing when nobody is looking at a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from harness.records import CellRecord, PlannedTrial

if TYPE_CHECKING:
    from rich.console import Console


class Progress(Protocol):
    """Told by the runner what it does. `cost` is the load of something in tokens to compute: what time goes by."""

    def run(self, cost: float) -> None: ...

    def more(self, cost: float, why: str) -> None: ...

    def trial(self, trial: PlannedTrial, number: int, total: int) -> None: ...

    def phase(self, what: str) -> None: ...

    def bench(self, name: str, requests: int, cost: float) -> None: ...

    def request(self, done: int) -> None: ...

    def cell(self, cell: CellRecord) -> None: ...


class Silent:
    """Shows nothing."""

    def run(self, cost: float) -> None: ...

    def more(self, cost: float, why: str) -> None: ...

    def trial(self, trial: PlannedTrial, number: int, total: int) -> None: ...

    def phase(self, what: str) -> None: ...

    def bench(self, name: str, requests: int, cost: float) -> None: ...

    def request(self, done: int) -> None: ...

    def cell(self, cell: CellRecord) -> None: ...


class _Live:
    """Two bars on a terminal, and a line above them per finished cell."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._console = console
        self.bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
            transient=True,
        )
        self._whole = self.bars.add_task("starting", total=None, count="")
        self._now = self.bars.add_task("", total=None, visible=False, count="")
        self._trial, self._each, self._seen, self._requests = "", 0.0, 0, 0
        self._cost, self._spent = 1.0, 0.0

    def run(self, cost: float) -> None:
        self._cost = max(cost, 1.0)
        self.bars.update(self._whole, total=self._cost)

    def more(self, cost: float, why: str) -> None:
        self.run(self._cost + cost)
        self._line(why, "yellow")

    def trial(self, trial: PlannedTrial, number: int, total: int) -> None:
        self._trial = f"trial {number}/{total} {trial.arm}"
        self.bars.update(self._whole, description=self._trial)
        self._line(trial.slug, "bold")

    def phase(self, what: str) -> None:
        self.bars.update(self._whole, description=f"{self._trial}: {what}")
        self.bars.update(self._now, visible=False)

    def bench(self, name: str, requests: int, cost: float) -> None:
        self.phase(name)
        self._each, self._seen = cost / requests, 0
        self._requests = requests
        self.bars.reset(self._now, description=name, total=requests, visible=True, count=f"0/{requests} requests")

    def request(self, done: int) -> None:
        self.bars.update(self._now, completed=done, count=f"{done}/{self._requests} requests")
        self._spent += self._each * (done - self._seen)
        self.bars.update(self._whole, completed=self._spent, count=f"{self._spent / self._cost:.0%}")
        self._seen = done

    def cell(self, cell: CellRecord) -> None:
        hit = cell.cell.hit_rate
        rate = "" if hit is None or hit.rate is None else f"  hit {hit.rate:6.1%}"
        verdict = "" if not cell.cell.invalid else f"  invalid: {cell.cell.invalid[0]}"
        line = f"  {cell.cell.bench:<20} {cell.request_throughput:8.3f} req/s{rate}"
        self._line(line, "", verdict)

    def _line(self, text: str, style: str, bad: str = "") -> None:
        # Assembled, not marked up: a reason may hold brackets.
        from rich.text import Text

        self._console.print(Text.assemble((text, style), (bad, "red")), highlight=False)


@contextmanager
def progress(console: Console) -> Iterator[Progress]:
    """Bars with the time left on a terminal, silence elsewhere."""
    if not console.is_terminal:
        yield Silent()
        return
    live = _Live(console)
    with live.bars:
        yield live
