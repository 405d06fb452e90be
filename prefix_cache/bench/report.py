"""The run as text, at most 120 columns wide."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from .results import (
    LATER,
    Ratio,
    Results,
    first_and_later,
    mean_thread,
    mean_wall,
    median_gather,
    median_wall,
    process,
    summarise,
)
from .targets import Check, checks

_LEGEND = """\
Engine-thread time: wall time of the calls begin, save (with the slot mapping) and consume (materialize, and letting go
of what it returned; or discard) on the thread that makes them, in microseconds. begin, save, consume, median and p90:
over all steps. mean: of a batch, so that what is done only every few steps (flushes of the decode buffer) is in it;
median of the repeats. thr CPU: CPU time of that thread in these calls; proc CPU: of all the process's threads, without
the driver's share; both mean per step, median of the repeats. Ratios: one per repeat, between batches that ran one
after the other; median (least..greatest). x more than 1: ours takes less."""


def render(results: Results) -> str:
    parts = [_header(results), _LEGEND]
    for title, table in (
        ("Steps and slot mappings, microseconds", _steps(results)),
        ("Peer / ours", _ratios(results)),
        ("Against a plain copy of the same bytes into warm memory (ours; medians)", _copies(results)),
        ("First save of a fresh cache, microseconds (medians of the repeats)", _firsts(results)),
        ("Resident memory, MB (rows written; growth of VmRSS)", _residents(results)),
        ("Targets", _targets(checks(results))),
    ):
        if table is not None:
            parts.append(f"{title}\n\n{table}")
    return "\n\n".join(parts) + "\n"


def _header(results: Results) -> str:
    sizes, about = results.sizes, results.about
    lines = [
        f"ours: {about.get('ours', '-')}; peer: {about.get('peer', 'none')}",
        f"{about['cpu']}; python {about['python']}; load {about['load before']} before, {about['load after']} after",
        f"three keys of width {sizes.width}, bfloat16; {sizes.num_blocks * sizes.block_size} slots in blocks of "
        f"{sizes.block_size}; one torch thread; {results.repeats} repeats, the sides' batches in turn",
    ]
    if results.forward_seconds:
        lines.append(f"{results.forward_seconds * 1e3:g} ms of sleep in place of a forward in every step")
    return "\n".join(lines)


def _steps(results: Results) -> str | None:
    rows = []
    for (case, mode), sides in results.samples.items():
        for side, samples in sides.items():
            s = summarise(samples)
            calls = (s.begin, s.save, s.consume, s.median, s.mean, s.p90, s.thread, s.process)
            rows.append((case, mode, side, *map(_us, calls)))
    head = ("case", "mode", "side", "begin", "save", "consume", "median", "mean", "p90", "thr CPU", "proc CPU")
    return _table(head, rows, left=3)


def _ratios(results: Results) -> str | None:
    rows = []
    for case, mode in results.samples:
        columns = (median_wall, mean_wall, mean_thread, process)
        figures = [results.against_peer(case, mode, figure) for figure in columns]
        if figures[0] is not None:
            rows.append((case, mode, *map(_ratio, figures)))
    return _table(("case", "mode", "wall median", "wall mean", "thr CPU", "proc CPU"), rows, left=2)


def _copies(results: Results) -> str | None:
    rows = []
    for (case, mode), sides in results.samples.items():
        if not results.cases[case].has_yardstick:
            continue
        s = summarise(sides["ours"])
        step = _ratio(results.of_copy(case, mode, median_wall))
        gather = None if s.gather is None else results.of_copy(case, mode, median_gather)
        rows.append((case, mode, _us(s.copy), _us(s.median), step, _us(s.gather), _ratio(gather)))
    return _table(("case", "mode", "copy", "step", "step / copy", "gather", "gather / copy"), rows, left=2)


def _firsts(results: Results) -> str | None:
    rows = []
    for (case, mode), sides in results.firsts.items():
        for side, saves in sides.items():
            for later in LATER:
                pairs = [first_and_later(save.wall, later) for save in saves]
                if not pairs[0][0]:
                    continue
                first = statistics.median(first[0] for first, _ in pairs) / 1e3
                others = statistics.median(statistics.median(others) for _, others in pairs) / 1e3
                wall = results.first_over_later(case, mode, side, later)
                cpu = results.first_over_later(case, mode, side, later, thread=True)
                rows.append((case, mode, side, later, _us(first), _us(others), _ratio(wall), _ratio(cpu)))
    head = ("case", "mode", "side", "later saves", "first", "later", "first / later", "the same, thr CPU")
    return _table(head, rows, left=4)


def _residents(results: Results) -> str | None:
    rows = []
    for mode, sides in results.residents.items():
        for side, resident in sides.items():
            for share, written in resident.written.items():
                grown = resident.grown[share]
                rows.append((share, mode, side, f"{written / 1e6:.1f}", f"{grown / 1e6:.1f}", f"{grown / written:.3f}"))
    return _table(("full", "mode", "side", "written", "grown", "grown / written"), rows, left=3)


def _targets(found: list[Check]) -> str | None:
    rows = []
    for check in found:
        measured = [_ratio(check.figures.get("median")), _ratio(check.figures.get("mean"))]
        rows.append((check.what, check.mode, check.goal, *measured, check.verdict))
    return _table(("target", "mode", "goal", "median", "mean", "verdict"), rows, left=3)


def _us(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    if ratio.low == ratio.high:
        return f"{ratio.median:.3f}"
    return f"{_short(ratio.median)} ({_short(ratio.low)}..{_short(ratio.high)})"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str | None:
    lines = [head, *rows]
    if len(lines) == 1:
        return None
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if column < left or head[column] == "verdict" else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(head), "  ".join("-" * width for width in widths), *map(line, rows)])
