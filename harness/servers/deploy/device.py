"""A device, by the name that `--platform` takes."""

from __future__ import annotations

from harness.errors import UsageError
from harness.servers.deploy.fields import DEVICES


def check_device(name: str) -> None:
    """Raises UsageError for a device that no platform block can be for."""
    if name not in DEVICES:
        raise UsageError(f"--platform: found {name!r}; allowed: {', '.join(DEVICES)}")
