"""`python -m prefix_cache.bench`: see docs/cache_benchmark.md."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from .cases import MODES, Sizes, catalogue, select
from .pipe import PeerUnusable, WorkerFailed
from .report import render
from .run import Plan, UnequalRows, run
from .targets import checks


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m prefix_cache.bench",
        description="Engine-thread time, process CPU time and memory of the cache, per operation.",
    )
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter with vLLM-Omni: its manager runs the same cases")
    parser.add_argument("--json", metavar="FILE", help="write all measurements; - writes them instead of the tables")
    parser.add_argument("--quick", action="store_true", help="about a quarter of the steps, 2 repeats")
    parser.add_argument("--only", metavar="GLOB", action="append", default=[], help="cases by name; may be repeated")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: both")
    parser.add_argument("--repeats", type=int, metavar="N", help="batches per case and side (default 7)")
    parser.add_argument(
        "--forward-ms", type=float, default=0.0, metavar="MS", help="sleep between begin and save (default 0)"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    return parser


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    sizes = Sizes()
    cases = select(catalogue(sizes), options.only, quick=options.quick, block_size=sizes.block_size)
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    if not cases:
        parser.error(f"--only {' '.join(options.only)}: no case has such a name; --list prints them")
    repeats = options.repeats if options.repeats is not None else 2 if options.quick else 7
    if repeats < 1:
        parser.error(f"--repeats: found {repeats}; allowed: at least 1")
    if options.forward_ms < 0:
        parser.error(f"--forward-ms: found {options.forward_ms:g}; allowed: 0 or more")
    modes = tuple(mode for mode in MODES if options.mode is None or mode in options.mode)
    plan = Plan(sizes, cases, modes, repeats, options.peer, options.forward_ms / 1e3)
    try:
        results = run(plan, lambda line: print(line, file=sys.stderr, flush=True))
    except PeerUnusable as error:
        print(f"prefix_cache.bench: {error}", file=sys.stderr)
        return 2
    except (WorkerFailed, UnequalRows) as error:
        print(f"prefix_cache.bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json is not None:
        verdicts = [{"target": c.what, "mode": c.mode, "verdict": c.verdict} for c in checks(results)]
        text = json.dumps({**results.to_json(), "targets": verdicts})
        if options.json == "-":
            print(text)
            return 0
        Path(options.json).write_text(text + "\n")
    print(render(results), end="")
    return 0


if __name__ == "__main__":
    # A terminated run unwinds, and ends its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
