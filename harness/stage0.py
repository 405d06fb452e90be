"""What an arm sets of stage 0, of its resolved configuration or of the record of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def stage0_setting(args: Mapping[str, Any], deploy: Mapping[str, Any] | None, name: str) -> Any:
    """A stage-0 engine setting by its argument name (`block-size`); a command-line argument beats the overlay.

    None when neither says anything.
    """
    if name in args:
        return args[name]
    stages = () if deploy is None else deploy.get("stages", ())
    return next((stage.get(name.replace("-", "_")) for stage in stages if stage["stage_id"] == 0), None)
