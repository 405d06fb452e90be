from pathlib import Path
from typing import Any

import pytest
from fake_launch import MakeLaunch, fake_launch

from harness.servers.launch import Launch


@pytest.fixture
def make_launch(tmp_path: Path) -> MakeLaunch:
    """Builds launches of the fake server with the given options; `trial` names the trial's folder."""

    def make(*options: str, trial: str = "r01-1-off", **more: Any) -> Launch:
        return fake_launch(tmp_path / trial, *options, **more)

    return make
