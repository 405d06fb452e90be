from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import psutil
import pytest

from prefix_cache.bench import cases
from prefix_cache.bench.__main__ import main
from prefix_cache.bench.cases import Case, Sizes, decode, hit, prefill, slots
from prefix_cache.bench.pipe import PeerUnusable, Worker, WorkerFailed
from prefix_cache.bench.report import render
from prefix_cache.bench.run import Plan, UnequalRows, run

TINY = Sizes(width=8, block_size=4, num_blocks=64, step_tokens=64, decode_blocks=4, hit_own=4, resident_blocks=64)


@pytest.fixture
def peer(tmp_path: Path) -> str:
    """An interpreter in which a naive manager stands where vLLM-Omni's would."""
    script = tmp_path / "python"
    naive = Path(__file__).parent / "naive_peer"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{naive}" exec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


def plan(peer: str | None, *cases: Case) -> Plan:
    return Plan(TINY, cases, ("threaded",), repeats=3, peer=peer)


def test_side_by_side(peer: str) -> None:
    """Every kind of case runs on both sides, and the text has every table in 120 columns."""
    chosen = (
        decode(3, "discard", 4),
        decode(3, "materialize", 4),
        prefill(16, 1),
        hit(16, 4, prefetched=True, steps=1),
        slots(3, 1, 2),
        Case("first-decode-64", "first", 2, 1, steps=1),
    )
    said: list[str] = []
    results = run(plan(peer, *chosen), said.append)
    assert said == [f"threaded: {case.name}" for case in chosen]
    for case in chosen[:-1]:
        sides = results.samples[case.name, "threaded"]
        assert {side: len(samples) for side, samples in sides.items()} == {"ours": 3, "peer": 3}
    assert results.about["peer"].startswith("vllm-omni 0.0.0")
    text = render(results)
    assert max(map(len, text.splitlines())) <= 120
    for title in ("Peer / ours", "Against a plain copy", "First save", "Targets"):
        assert f"\n{title}" in text
    assert text.count("not measured") == 2 * 19 - 3
    json.dumps(results.to_json())


def test_unequal_work_is_refused(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that returns one other value is not compared with."""
    monkeypatch.setenv("NAIVE_PEER_FAULT", "rows")
    with pytest.raises(UnequalRows, match=r"decode-3-discard, threaded: the two caches returned different rows"):
        run(plan(peer, decode(3, "discard", 4)), lambda _: None)
    assert psutil.Process().children(recursive=True) == []


def test_a_side_that_dies(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The death of a measured process is one message with its exit status, and leaves no process behind."""
    monkeypatch.setenv("NAIVE_PEER_FAULT", "die")
    with Worker("peer", peer, TINY, "inline", 0.0) as worker, pytest.raises(WorkerFailed, match="exit 7 in start"):
        worker.ask("start", case=prefill(16, 1).to_json())
    assert psutil.Process().children(recursive=True) == []


def test_a_failing_command_keeps_the_process(peer: str) -> None:
    """A command that raises is reported with its traceback, and the next one is served."""
    with Worker("peer", peer, TINY, "inline", 0.0) as worker:
        with pytest.raises(WorkerFailed, match="no command 'dance'"):
            worker.ask("dance")
        worker.ask("start", case=slots(3, 1, 2).to_json())
        assert len(worker.ask("batch")["slots"]) == 2
    assert psutil.Process().children(recursive=True) == []


def test_no_answer_in_time(peer: str) -> None:
    """A process that does not answer is ended, and the message says how long it was given."""
    with (
        pytest.raises(PeerUnusable, match=r"no answer to start up within 0.01 s"),
        Worker("peer", peer, TINY, "inline", 0.0, timeout=0.01),
    ):
        pass
    assert psutil.Process().children(recursive=True) == []


def test_an_interpreter_without_a_manager(capsys: pytest.CaptureFixture[str]) -> None:
    """An interpreter that is missing, or has no vLLM-Omni, is exit 2 and one line that says what to give."""
    for python, why in (("/nonexistent/python", "No such file"), (sys.executable, "vllm_omni|vllm-omni")):
        assert main(["--peer", python, "--only", "slots-decode-16", "--mode", "inline"]) == 2
        message = capsys.readouterr().err.strip().splitlines()[-1]
        assert message.startswith(f"prefix_cache.bench: --peer {python}: ")
        assert "OmniPrefixCacheManager` works" in message
        assert any(part in message for part in why.split("|"))


def test_bad_options(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that no case has and a count that cannot be are exit 2 with one message."""
    for options, message in (
        (["--only", "nothing-*"], "no case has such a name"),
        (["--repeats", "0"], "--repeats: found 0; allowed: at least 1"),
        (["--forward-ms", "-1"], "--forward-ms: found -1; allowed: 0 or more"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(options)
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    """The cases can be listed by name."""
    assert main(["--list", "--only", "decode-64*"]) == 0
    assert capsys.readouterr().out.split() == ["decode-64-discard", "decode-64-materialize"]


def test_nothing_but_the_bench_in_the_peer() -> None:
    """What runs in the peer's interpreter imports its siblings relatively, and of others numpy, torch and vLLM-Omni."""
    allowed = {*sys.stdlib_module_names, "numpy", "torch", "vllm_omni"}
    for path in Path(cases.__file__).parent.glob("*.py"):
        if path.name == "ours.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            roots = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                roots = [node.module or ""]
            assert {root.partition(".")[0] for root in roots} <= allowed, path.name
