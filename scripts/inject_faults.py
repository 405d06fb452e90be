"""Break the cache one line at a time and see the tests notice: writes docs/cache_faults.md.

    python scripts/inject_faults.py                  # every fault, exit 1 when one survives
    python scripts/inject_faults.py stale zeros      # those whose name contains a word; writes nothing

Each fault is put into a copy of `prefix_cache` in a directory of its own, and the tests named with it run against that
copy. It is caught when every one of them fails. Before that, all of them must pass on an unchanged copy. A fault
whose old text is not in the source exactly once is an error: it has to move with the code.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cache_faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "cache_faults.md"
RUN_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of tests ended: the node ids that failed, or why nothing can be said."""

    failed: tuple[str, ...]
    trouble: str | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only faults whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=2, help="faults tried at a time (default: %(default)s)")
    parser.add_argument("--source", type=Path, default=ROOT, help="checkout to break a copy of (default: this one)")
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if not arguments.words or any(word in fault.name for word in arguments.words)]
    if not chosen:
        parser.error("no fault has such a name")
    lost = [message for fault in chosen if (message := misplaced(fault, arguments.source))]
    if lost:
        print("\n".join(lost), file=sys.stderr)
        return 1
    if trouble := bypassed(arguments.source):
        print(trouble, file=sys.stderr)
        return 1
    unchanged = attempt(None, tuple(sorted({test for fault in chosen for test in fault.tests})), arguments.source)
    if unchanged.trouble or unchanged.failed:
        print(f"without any fault: {unchanged.trouble or ', '.join(unchanged.failed)}", file=sys.stderr)
        return 1
    survivors = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = pool.map(lambda fault: attempt(fault, fault.tests, arguments.source), chosen)
        for fault, outcome in zip(chosen, outcomes, strict=True):
            unmoved = survived(fault, outcome)
            survivors += bool(unmoved)
            print(
                f"{'SURVIVED' if unmoved else 'caught':9} {fault.name}{': ' + unmoved if unmoved else ''}", flush=True
            )
    print(f"{len(chosen) - survivors} of {len(chosen)} faults caught")
    if not arguments.words and not survivors:
        TABLE.write_text(table(chosen), encoding="utf-8")
    return 1 if survivors else 0


def misplaced(fault: Fault, source: Path) -> str | None:
    """Why the fault cannot be injected, or None."""
    found = (source / "prefix_cache" / fault.file).read_text(encoding="utf-8").count(fault.old)
    return None if found == 1 else f"{fault.name}: its old text stands {found} times in prefix_cache/{fault.file}"


def attempt(fault: Fault | None, tests: tuple[str, ...], source: Path) -> Outcome:
    """Runs `tests` against a copy of the cache with the fault in it."""
    with tempfile.TemporaryDirectory(prefix="cache-fault-") as name:
        copy = copied(source, Path(name))
        if fault is not None:
            path = copy / "prefix_cache" / fault.file
            path.write_text(path.read_text(encoding="utf-8").replace(fault.old, fault.new), encoding="utf-8")
        return run(copy, tests)


def bypassed(source: Path) -> str | None:
    """Why tests beside a copy would not test the copy, or None."""
    with tempfile.TemporaryDirectory(prefix="cache-fault-") as name:
        copy = copied(source, Path(name))
        where = [sys.executable, "-c", "import prefix_cache; print(prefix_cache.__file__)"]
        imported = subprocess.run(where, cwd=copy, env=surroundings(copy), capture_output=True, text=True, check=False)
        if imported.stdout.startswith(str(copy)):
            return None
        return f"the copy in {copy} is not what is imported: {imported.stdout}{imported.stderr}"


def copied(source: Path, copy: Path) -> Path:
    for part in ("prefix_cache", "tests/cache"):
        shutil.copytree(source / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(source / part, copy / part)
    return copy


def surroundings(copy: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return inherited | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}


def run(copy: Path, tests: tuple[str, ...]) -> Outcome:
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["--hypothesis-profile=faults", "--timeout=60", *(f"tests/cache/{test}" for test in tests)]
    try:
        ended = subprocess.run(
            command,
            cwd=copy,
            env=surroundings(copy),
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome((), f"the tests did not end within {RUN_TIMEOUT_S} s")
    if ended.returncode not in (0, 1):
        return Outcome((), f"pytest ended with {ended.returncode}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return Outcome(tuple(re.findall(r"^(?:FAILED|ERROR) tests/cache/(.+?)(?: - .*)?$", ended.stdout, re.MULTILINE)))


def survived(fault: Fault, outcome: Outcome) -> str | None:
    """Which tests did not notice, or None when all did."""
    if outcome.trouble:
        return outcome.trouble
    unmoved = [
        test for test in fault.tests if not any(id == test or id.startswith(f"{test}[") for id in outcome.failed)
    ]
    return f"not noticed by {', '.join(unmoved)}" if unmoved else None


def table(faults: list[Fault]) -> str:
    lines = [
        "# Faults the tests of the cache notice",
        "",
        "Written by `python scripts/inject_faults.py`: each fault was put into a copy of `prefix_cache/` by itself,",
        "and every test named beside it failed. All of them pass without a fault.",
        "",
        "| fault | where | what would go wrong | tests that fail (`tests/cache/`) |",
        "|---|---|---|---|",
    ]
    for fault in faults:
        tests = "<br>".join(f"`{test.removesuffix('::runTest')}`" for test in fault.tests)
        lines.append(f"| {fault.name} | `{fault.file}` | {fault.why} | {tests} |")
    return "\n".join([*lines, "", f"{len(faults)} of {len(faults)} faults caught.", ""])


if __name__ == "__main__":
    sys.exit(main())
