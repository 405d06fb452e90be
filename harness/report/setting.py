"""What the trials recorded of their weights, GPUs and limits, as rows of the table of provenance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.records import Gpu, Model, TrialRecord
from harness.report.text import NONE


def setting_rows(trials: Sequence[TrialRecord]) -> list[list[str]]:
    """Rows of the facts that were recorded; none of a run from before they were."""
    rows = [["weights", text] for text in dict.fromkeys(_weights(t.model) for t in trials if t.model is not None)]
    limits = [t.host.container for t in trials if t.host is not None and t.host.container is not None]
    for one in dict.fromkeys(limits):
        cpus = "all processors" if one.cpus is None else f"{one.cpus:g} processors"
        memory = "all memory" if one.memory_bytes is None else f"{one.memory_bytes / 1024**3:.1f} GiB"
        rows.append(["limits of the container", f"{cpus}, {memory}"])
    most = max((len(trial.gpus or ()) for trial in trials), default=0)
    for index in range(most):
        seen = [trial.gpus[index] for trial in trials if trial.gpus is not None and index < len(trial.gpus)]
        rows.append([f"GPU {index} before each server", "; ".join(dict.fromkeys(map(_fixed, seen))) + _ranges(seen)])
    return rows


def _weights(model: Model) -> str:
    if model.path is None:
        return f"{model.id}: not to be seen from here"
    size = "no weight files" if model.weights_bytes is None else f"{model.weights_bytes} bytes"
    return (
        f"`{model.path}`, revision {model.revision or 'unknown'}, {size}, config.json sha256 "
        f"`{_short(model.config_sha256)}`, index and sizes sha256 `{_short(model.weights_sha256)}`"
    )


def _short(digest: str | None) -> str:
    return NONE if digest is None else digest[:12]


def _fixed(gpu: Gpu) -> str:
    cap = "power cap unknown" if gpu.power_limit is None else f"power cap {gpu.power_limit:g} W"
    clock = "" if gpu.sm_clock_max is None else f", SM clock up to {gpu.sm_clock_max} MHz"
    return f"{gpu.name}, driver {gpu.driver or 'unknown'}, {cap}{clock}"


def _ranges(gpus: Sequence[Gpu]) -> str:
    texts = [
        _range("SM clock", (gpu.sm_clock for gpu in gpus), "MHz"),
        _range("temperature", (gpu.temperature for gpu in gpus), "°C"),
        _range("use", (gpu.utilisation for gpu in gpus), "%"),
        _range("processes", (None if gpu.processes is None else len(gpu.processes) for gpu in gpus), ""),
    ]
    return "".join(f"; {text}" for text in texts if text)


def _range(name: str, values: Iterable[int | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    span = str(min(known)) if min(known) == max(known) else f"{min(known)} .. {max(known)}"
    return f"{name} {span} {unit}".rstrip()
