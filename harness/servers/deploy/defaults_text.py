"""The table of `bench defaults` as text."""

from __future__ import annotations

from harness.servers.deploy.defaults import Defaults, ProfileDefault, StageDefault


def render_defaults(defaults: Defaults) -> str:
    """One row a profile, one column a device, and in each cell the stages in order."""
    by = "by this project's resolver alone" if defaults.version is None else f"by vLLM-Omni {defaults.version} itself"
    lines = [f"Prefix caching per stage in {defaults.folder}, {by}:", ""]
    cells = {(entry.profile, entry.platform): _cell(entry) for entry in defaults.profiles}
    names = list(dict.fromkeys(entry.profile for entry in defaults.profiles))
    rows = [
        ("profile", *defaults.platforms),
        *((name, *(cells[name, on] for on in defaults.platforms)) for name in names),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines += ["", "Stages in order. auto: nothing states it, and vLLM turns it on for a language model that can cache."]
    if defaults.version is None:
        lines.append("Of generation and diffusion stages, which a profile does not tell apart, auto is off.")
    else:
        lines.append("-: nothing turns it on in a generation or diffusion stage.")
    lines += [
        f"refused: {entry.profile} on {entry.platform}: {entry.refused}" for entry in defaults.profiles if entry.refused
    ]
    if defaults.version is not None:
        lines.append(
            f"This project's resolver was held against it in {defaults.compared} (profile, device, stage) triples: "
            f"{len(defaults.disagreements)} disagreements."
        )
    lines += [
        f"DISAGREEMENT: {found.profile} on {found.platform}, stage {found.stage_id} {found.setting}: "
        f"ours {found.ours!r}, vLLM-Omni's {found.theirs!r}"
        for found in defaults.disagreements
    ]
    return "\n".join(lines)


def _cell(entry: ProfileDefault) -> str:
    return "refused" if entry.refused else " ".join(_state(stage) for stage in entry.stages)


def _state(stage: StageDefault) -> str:
    if stage.execution in ("llm_generation", "diffusion") and not stage.caching:
        return "-" if stage.caching is None or stage.execution == "diffusion" else "off"
    return "auto" if stage.caching is None else "on" if stage.caching else "off"
