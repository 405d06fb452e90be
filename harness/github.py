"""The summary page of a GitHub Actions job, where there is one."""

from __future__ import annotations

import os
from pathlib import Path


def append_summary(text: str) -> None:
    """Appends Markdown to the summary of the step this process runs in; nothing elsewhere."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
