"""Deploy profiles and overlays of vLLM-Omni: what each stage of a server really gets.

`arm_deploy` resolves an arm's overlay and command line, `write_overlay` writes the file the server is started with,
`expects_caching` and `block_size` are what a server kind asks of it.
"""

from __future__ import annotations

from harness.servers.deploy.arm_deploy import ArmDeploy, arm_deploy, block_size, expects_caching, write_overlay
from harness.servers.deploy.device import check_device
from harness.servers.deploy.installation import Installation, installation
from harness.servers.deploy.resolve import ResolvedStage

__all__ = [
    "ArmDeploy",
    "Installation",
    "ResolvedStage",
    "arm_deploy",
    "block_size",
    "check_device",
    "expects_caching",
    "installation",
    "write_overlay",
]
