"""A gate's checks as JUnit XML, which CI systems read: a test case per check."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

from harness.atomic import write_atomic
from harness.errors import UsageError
from harness.gate import Check, GateResult, Outcome
from harness.gate_text import allowed
from harness.records import Manifest
from harness.report.text import between, percent

_ELEMENTS = {Outcome.REGRESSED: "failure", Outcome.INVALID: "error", Outcome.INCONCLUSIVE: "skipped"}


def junit_xml(result: GateResult, manifest: Manifest) -> bytes:
    """One suite: regressed checks are failures, invalid ones errors, inconclusive ones skipped.

    Its time is that of the run; a check has none of its own.
    """
    counts = dict.fromkeys(("failures", "errors", "skipped"), 0)
    for check in result.checks:
        name = _ELEMENTS.get(check.outcome)
        if name is not None:
            counts["skipped" if name == "skipped" else f"{name}s"] += 1
    shared = {"tests": str(len(result.checks)), **{key: str(value) for key, value in counts.items()}}
    root = ElementTree.Element("testsuites", {"name": "bench gate", **shared})
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        {
            "name": manifest.run,
            **shared,
            "timestamp": manifest.created_at.split(".")[0].removesuffix("Z"),
            "hostname": manifest.host.hostname,
            **_time(manifest),
        },
    )
    for check in result.checks:
        suite.append(_case(check, manifest.run))
    ElementTree.indent(root)
    data: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def write_junit(path: Path, result: GateResult, manifest: Manifest) -> None:
    """Writes the file, whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        write_atomic(path, junit_xml(result, manifest))
    except OSError as error:
        raise UsageError(f"--junit: found {path}, which cannot be written: {error.strerror}") from None


def _case(check: Check, run: str) -> ElementTree.Element:
    case = ElementTree.Element("testcase", {"classname": f"{run}.{check.bench or 'run'}", "name": check.name})
    text = f"{check.metric}: {_change(check)}; allowed: {allowed(check.bounds)}"
    if check.why:
        text = f"{check.why}; {text}" if check.rounds else check.why
    name = _ELEMENTS.get(check.outcome)
    if name is None:
        ElementTree.SubElement(case, "system-out").text = text
        return case
    attributes = {"message": text} if name == "skipped" else {"message": text, "type": check.outcome.value}
    ElementTree.SubElement(case, name, attributes).text = text
    return case


def _change(check: Check) -> str:
    if check.change is None:
        return "no change could be computed"
    return f"{percent(check.change)} ({between(check.interval)}, {check.rounds} rounds)"


def _time(manifest: Manifest) -> dict[str, str]:
    if manifest.finished_at is None:
        return {}
    start, end = (datetime.fromisoformat(at) for at in (manifest.created_at, manifest.finished_at))
    return {"time": f"{(end - start).total_seconds():.3f}"}
