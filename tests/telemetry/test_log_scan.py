from pathlib import Path

import pytest

from harness.errors import RecordError
from harness.telemetry.log_scan import scan_log

CLEAN = """\
(APIServer pid=71) INFO 11-29 16:46:00 [api_server.py:1772] vLLM API server version 0.32.0
(EngineCore pid=72) INFO 11-29 16:46:03 [core.py:93] Initializing a V1 LLM engine (v0.32.0) with config: model='m', \
enforce_eager=False, structured_outputs_config=StructuredOutputsConfig(backend='auto', disable_fallback=False), \
preemption_mode=None, cudagraph_capture_sizes=[1, 2, 4], calculate_kv_scales=False, nan_check=None
(EngineCore pid=72) INFO 11-29 16:46:09 [gpu_model_runner.py:4100] Capturing CUDA graphs (decode, FULL): 100%
(EngineCore pid=72) INFO 11-29 16:46:09 [gpu_model_runner.py:4120] Graph capturing finished in 3 secs, took 0.25 GiB
(APIServer pid=71) INFO 11-29 16:46:10 [__init__.py:44] Loading plugin prefix_cache
(APIServer pid=71) INFO 11-29 16:46:11 [loggers.py:127] Engine 000: Running: 4 reqs, Waiting: 0 reqs, Preemptions: 0
(APIServer pid=71) INFO:     127.0.0.1:4711 - "POST /v1/completions HTTP/1.1" 200 OK
(APIServer pid=71) INFO 11-29 16:46:12 [logger.py:39] Received request: finance nanometre banana, eager to fall
INFO 11-29 16:46:13 [patch.py:253] NVFP4 weight_scale NaN-clamp: skipped, upstream rejects any NaN weight_scale
\x1b[0;36m(Worker pid=6)\x1b[0;0m \x1b[32mINFO\x1b[0m 11-29 [patch.py:253] NaN-clamp: skipped, upstream refuses NaN
"""


def scan(tmp_path: Path, text: str) -> dict[str, tuple[int, int, str]]:
    log = tmp_path / "server.log"
    log.write_text(text)
    return {caveat.kind: (caveat.line, caveat.count, caveat.message) for caveat in scan_log(log)}


def test_clean_log(tmp_path: Path) -> None:
    """Configuration lines, progress and requests that merely hold the words are no trouble."""
    assert scan(tmp_path, CLEAN) == {}


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("graph-capture-oom", "WARNING Failed to capture CUDA graph (Whole-Euler, T=400): CUDA out of memory."),
        ("graph-capture-oom", "WARNING: torch.OutOfMemoryError while capturing cudagraph for batch 64"),
        ("out-of-memory", "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("out-of-memory", "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
        ("eager-fallback", "WARNING CUDA graph is not supported for whisper on ROCm yet, fallback to eager mode."),
        ("eager-fallback", "WARNING graph replay failed; falling back to eager"),
        ("eager-fallback", "WARNING using eager mode as a fall-back for this batch"),
        ("preemption", "WARNING Sequence group 12 is preempted by PreemptionMode.RECOMPUTE mode"),
        ("preemption", "INFO Engine 000: Running: 4 reqs, Waiting: 9 reqs, Preemptions: 17"),
        ("plugin-failed", "ERROR [__init__.py:72] Failed to load plugin prefix_cache"),
        ("plugin-failed", "WARNING Plugin failed: prefix_cache"),
        ("engine-died", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."),
        ("engine-died", "ERROR Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."),
        ("crash", "Fatal Python error: Segmentation fault"),
        ("nan", "WARNING [model_runner.py:9] NaNs in logits of request cmpl-12"),
        ("nan", "WARNING loss=nan"),
    ],
)  # fmt: skip
def test_each_kind_of_trouble(tmp_path: Path, kind: str, line: str) -> None:
    """Each kind is found among clean lines, with its line number and text."""
    first = CLEAN.count("\n") + 1
    assert scan(tmp_path, CLEAN + line + "\n" + CLEAN) == {kind: (first, 1, line)}


def test_repeated_trouble_is_counted(tmp_path: Path) -> None:
    """Repeated lines are one caveat with the first line and their number; kinds come in order of first lines."""
    text = "".join(f"WARNING request {i} is preempted\nWARNING falling back to eager\n" for i in range(250))
    assert scan(tmp_path, text) == {
        "preemption": (1, 250, "WARNING request 0 is preempted"),
        "eager-fallback": (2, 250, "WARNING falling back to eager"),
    }
    assert list(scan(tmp_path, text)) == ["preemption", "eager-fallback"]


def test_tracebacks_are_told_apart_by_their_exception(tmp_path: Path) -> None:
    """A traceback is shown by the line that ends it, and two types of exception are two caveats."""
    plain = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    raise ValueError(x)\nValueError: bad x\n'
    )
    prefix = "(EngineCore pid=9) ERROR 11-29 16:46:00 [core.py:800] "
    logged = (
        f"{prefix}Traceback (most recent call last):\n"
        f'{prefix}  File "b.py", line 2, in g\n'
        f"{prefix}    raise KeyError(k) # not an Error: here\n"
        f"{prefix}some.module.EngineGenerateError: lost 'k'\n"
    )
    first = CLEAN.count("\n") + 1
    assert scan(tmp_path, CLEAN + plain + logged + plain) == {
        "traceback ValueError": (first, 2, "ValueError: bad x"),
        "traceback some.module.EngineGenerateError": (first + 4, 1, "some.module.EngineGenerateError: lost 'k'"),
    }


def test_what_is_logged_during_the_stop_is_left_out(tmp_path: Path) -> None:
    """Only the lines that are whole within the given size count: engines complain when they are stopped."""
    before = "WARNING falling back to eager\n"
    log = tmp_path / "server.log"
    log.write_text(before + "ERROR EngineDeadError: stopped\n")
    assert [caveat.kind for caveat in scan_log(log, len(before))] == ["eager-fallback"]
    assert [caveat.kind for caveat in scan_log(log)] == ["eager-fallback", "engine-died"]


def test_traceback_that_breaks_off(tmp_path: Path) -> None:
    """A traceback cut short by the server's death is still reported."""
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    assert scan(tmp_path, text + text) == {"traceback": (1, 2, "Traceback (most recent call last)")}


def test_long_lines_and_broken_text(tmp_path: Path) -> None:
    """Messages are cut, and bytes that are no text do not stop the scan."""
    log = tmp_path / "server.log"
    log.write_bytes(b"\xff\xfe\nCUDA out of memory " + b"x" * 5000 + b"\n")
    (caveat,) = scan_log(log)
    assert (caveat.kind, caveat.line, len(caveat.message)) == ("out-of-memory", 2, 300)


def test_log_that_is_not_there(tmp_path: Path) -> None:
    """A missing log is an error and not a clean bill."""
    with pytest.raises(RecordError, match=r"server\.log: the server's log cannot be read"):
        scan_log(tmp_path / "server.log")
