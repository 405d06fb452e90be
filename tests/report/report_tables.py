"""Reads a rendered report and the files of its run, without the code that wrote the report."""

from __future__ import annotations

import json

import pandas as pd
from synthetic_run import SyntheticRun

from harness.report import build_report, render_markdown
from harness.store import RunStore


def rendered(path, **changes):
    return render_markdown(build_report(RunStore.open(SyntheticRun(path, **changes).write())), ())


def section(report, title):
    return report.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(report, title):
    lines = [line for line in section(report, title).splitlines() if line.startswith("| ")]
    head, _, *body = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
    return [dict(zip(head, row, strict=True)) for row in body]


def cells_by_pandas(root):
    """Every cell of a run, straight from its files: no code of the project."""
    found = [
        {**data, **data["cell"]}
        for file in sorted(root.glob("trials/*/*.json"))
        if file.name != "trial.json"
        for data in [json.loads(file.read_text())]
    ]
    return pd.DataFrame(found)
