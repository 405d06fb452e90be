from pathlib import Path
from typing import Any

import pytest

from harness.errors import ArmMismatch, MetricAbsent
from harness.telemetry.engine_log import stage_config, stage_configs, verify_stage


def line(stage: int, replica: int = 0, caching: bool = True, length: int = 8192) -> str:
    """A line as vLLM-Omni 0.30 writes it, colours and all, shortened where nothing is read."""
    return (
        f"\x1b[0;36m(StageEngineCoreProc_stage{stage}_replica{replica} pid=856)\x1b[0;0m \x1b[32mINFO\x1b[0m "
        "[core.py:123] Initializing a V1 LLM engine (v0.30.0) with config: model='/models/tiny', dtype=torch.bfloat16, "
        f"max_seq_len={length}, tensor_parallel_size=1, enforce_eager=True, "
        "structured_outputs_config=StructuredOutputsConfig(backend='auto', enable_in_reasoning=False), seed=0, "
        f"enable_prefix_caching={caching}, enable_chunked_prefill=True, "
        "compilation_config={'mode': <CompilationMode.NONE: 0>, 'enforce_eager=False': 1}\n"
    )


def log_of(folder: Path, *lines: str) -> Path:
    path = folder / "server.log"
    path.write_text("".join(lines))
    return path


def test_every_stage_shows_what_it_got(tmp_path: Path) -> None:
    """Each engine's line is its stage's configuration; words inside a mapping are not taken for settings."""
    log = log_of(tmp_path, "before\n", line(0), line(1, caching=False, length=512))
    assert stage_configs(log) == {
        0: {
            "enable_chunked_prefill": "True",
            "enable_prefix_caching": "True",
            "enforce_eager": "True",
            "max_seq_len": "8192",
            "tensor_parallel_size": "1",
        },
        1: {
            "enable_chunked_prefill": "True",
            "enable_prefix_caching": "False",
            "enforce_eager": "True",
            "max_seq_len": "512",
            "tensor_parallel_size": "1",
        },
    }


def test_replicas_that_differ_are_both_told(tmp_path: Path) -> None:
    log = log_of(tmp_path, line(0), line(0, replica=1, caching=False))
    assert stage_config(log)["enable_prefix_caching"] == "False|True"


def test_a_stage_that_shows_nothing_is_an_error(tmp_path: Path) -> None:
    """Absent is an error, and the message says how the line is lost."""
    with pytest.raises(MetricAbsent, match=r"stage 0 logs no configuration .*VLLM_LOGGING_LEVEL"):
        stage_config(log_of(tmp_path, line(1)))


@pytest.mark.parametrize(
    ("wanted", "differs"),
    [
        ({"enable_prefix_caching": True, "max_model_len": 8192, "enforce_eager": True}, None),
        (
            {"enable_prefix_caching": False},
            r"sets enable_prefix_caching=False for stage 0, .* enable_prefix_caching=True",
        ),
        ({"max_model_len": 4096}, r"sets max_model_len=4096 for stage 0, but its engine says max_seq_len=8192"),
        ({"max_model_len": -1, "dtype": "float32"}, None),
    ],
    ids=["as claimed", "caching", "length", "left to the engine"],
)
def test_a_stage_is_what_its_arm_claims(tmp_path: Path, wanted: dict[str, Any], differs: str | None) -> None:
    live = stage_config(log_of(tmp_path, line(0)))
    if differs is None:
        verify_stage("on", 0, wanted, live)
    else:
        with pytest.raises(ArmMismatch, match=differs):
            verify_stage("on", 0, wanted, live)
