"""What the stages of a scenario's arms get: the part of `bench check` about deploy overlays."""

from __future__ import annotations

from collections.abc import Sequence

from harness.check_notes import grouped
from harness.errors import UsageError
from harness.servers.arm import ResolvedArm
from harness.servers.deploy import ArmDeploy, Installation, arm_deploy, installation

SWITCH = "enable_prefix_caching"
"""The setting under test."""


def check_deploy(
    arms: Sequence[ResolvedArm], platform: str | None
) -> tuple[tuple[ArmDeploy, ...], tuple[str, ...], list[str]]:
    """Every arm's stages, warnings of settings that no stage gets, and notes.

    Parameters:
        platform: the device to resolve for; None: that of each arm's interpreter.

    Raises:
        UsageError: an overlay or profile that vLLM-Omni would refuse.
    """
    resolved: list[ArmDeploy] = []
    warnings: list[str] = []
    elsewhere: list[str] = []
    for arm in arms:
        found = installation(arm)
        deploy = arm_deploy(arm, platform, found)
        resolved.append(deploy)
        warnings += [f"arms.{arm.name}: {lost}" for lost in deploy.lost]
        elsewhere += _elsewhere(arm, deploy, found)
    notes = grouped("arms.", {deploy.arm: _unread(arm, deploy) for arm, deploy in zip(arms, resolved, strict=True)})
    assumed = sorted({deploy.platform for deploy in resolved if deploy.platform_assumed})
    if assumed:
        notes.append(
            f"stages resolved for {', '.join(assumed)}: no vLLM-Omni on this machine says for which device (--platform)"
        )
    return tuple(resolved), tuple(warnings), [*notes, *elsewhere]


def _unread(arm: ResolvedArm, deploy: ArmDeploy) -> str | None:
    if arm.deploy is None:
        return f"arms.{arm.name}: without a deploy overlay the server takes its model's profile, which is not read here"
    if deploy.missing is not None:
        return f"arms.{arm.name}: {deploy.missing.name} is not on this machine: stages resolved from the overlay alone"
    return None


def _elsewhere(arm: ResolvedArm, deploy: ArmDeploy, found: Installation) -> list[str]:
    """Where the switch under test would be lost on other devices that the profile knows."""
    notes = []
    for platform in deploy.platforms:
        if platform == deploy.platform:
            continue
        try:
            lost = arm_deploy(arm, platform, found).lost
        except UsageError as error:
            notes.append(f"on {platform}: {error}")
            continue
        notes += [
            f"on {platform}, arms.{arm.name}: {text}" for text in lost if SWITCH in text and text not in deploy.lost
        ]
    return notes
