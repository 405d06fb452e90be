"""What the cache promises, checked against one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .cases import MODES, Mode
from .results import LATER, Ratio, Results, mean_wall, median_gather, median_wall, process
from .samples import SHARES

Bound = Literal["at least", "at most", "within"]


@dataclass(frozen=True, slots=True)
class Check:
    """One promise.

    Parameters:
        what: in words.
        unit: what the ratio is of.
        limit: of the ratio; for "within", the share by which it may differ from 1.
        figures: the measured ratio, as `median` and `mean` where both are there; each must keep the limit. Empty:
            not measured.
    """

    what: str
    mode: Mode
    bound: Bound
    limit: float
    unit: str
    figures: dict[str, Ratio]

    @property
    def goal(self) -> str:
        sign = {"at least": ">=", "at most": "<=", "within": "1 +-"}[self.bound]
        return f"{sign} {self.limit:g} {self.unit}"

    def keeps(self, ratio: Ratio) -> bool:
        if self.bound == "within":
            return abs(ratio.median - 1) <= self.limit
        return ratio.median >= self.limit if self.bound == "at least" else ratio.median <= self.limit

    @property
    def verdict(self) -> str:
        """`held`, `MISSED`, or which figure misses where the other holds; `not measured`."""
        if not self.figures:
            return "not measured"
        missed = [name for name, ratio in self.figures.items() if not self.keeps(ratio)]
        if not missed:
            return "held"
        return "MISSED" if len(missed) == len(self.figures) else f"MISSED by {', '.join(missed)}"


def checks(results: Results) -> list[Check]:
    """Every promise in every mode, those that this run did not measure included."""
    return [check for mode in MODES for check in (*_against_peer(results, mode), *_alone(results, mode))]


def _against_peer(results: Results, mode: Mode) -> list[Check]:
    thread = (
        ("decode-64-discard", 100),
        ("decode-64-materialize", 20),
        ("slots-decode-16", 40),
        ("slots-decode-64", 40),
        ("prefill-8192", 5),
        ("hit-4096-at-once", 2),
    )
    found = []
    for case, limit in thread:
        median, mean = (results.against_peer(case, mode, figure) for figure in (median_wall, mean_wall))
        found.append(_check(f"{case}, thread", mode, "at least", limit, "x peer", median=median, mean=mean))
    for case in ("decode-64-discard", "decode-64-materialize"):
        mean = results.against_peer(case, mode, process)
        found.append(_check(f"{case}, process CPU", mode, "at least", 15, "x peer", mean=mean))
    return found


def _alone(results: Results, mode: Mode) -> list[Check]:
    median, mean = (results.of_copy("prefill-8192", mode, figure) for figure in (median_wall, mean_wall))
    found = [_check("prefill-8192, in copies", mode, "at most", 4, "copies", median=median, mean=mean)]
    for case in ("hit-4096-prefetched", "hit-4096-at-once"):
        gather = results.of_copy(case, mode, median_gather)
        found.append(_check(f"{case}, gather", mode, "at most", 1.5, "copies", median=gather))
    for case in ("first-decode-64", "first-prefill-512"):
        for later in LATER:
            if later == "decoding" and case != "first-decode-64":
                continue
            ratio = results.first_over_later(case, mode, "ours", later)
            found.append(_check(f"{case}, {later}", mode, "at most", 2, "x later", median=ratio))
    resident = results.residents.get(mode, {}).get("ours")
    for share in (f"{share:.0%}" for share in SHARES):
        once = None
        if resident is not None:
            ratio_once = resident.grown[share] / resident.written[share]
            once = Ratio(ratio_once, ratio_once, ratio_once)
        found.append(_check(f"resident, {share} full", mode, "within", 0.05, "of rows", median=once))
    return found


def _check(what: str, mode: Mode, bound: Bound, limit: float, unit: str, **figures: Ratio | None) -> Check:
    measured = {name: ratio for name, ratio in figures.items() if ratio is not None}
    return Check(what, mode, bound, limit, unit, measured)
