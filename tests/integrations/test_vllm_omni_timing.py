"""The stopwatch, its files and its table."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from prefix_cache.integrations.timing import Recorder, Shape, StepCost, main, medians, read_steps, table

DECODE = Shape(tokens=16, requests=16, new=0, hits=0)


def record(folder: Path, shapes: list[Shape], *, consume: str = "materialize", nap: float = 0.0) -> None:
    recorder = Recorder(folder, stage=0)
    for step, shape in enumerate(shapes):
        with recorder.begin(shape):
            pass
        with recorder.save() as call:
            call.step = step
        with recorder.consume(consume, step):
            time.sleep(nap)
    recorder.close()


def test_a_steps_three_calls_come_back_as_one_cost(tmp_path: Path) -> None:
    """Sleeping takes time on the clock and none of the processor."""
    record(tmp_path, [DECODE, DECODE], nap=0.02)
    costs = read_steps(tmp_path)
    assert [cost.shape for cost in costs] == [DECODE, DECODE]
    for cost in costs:
        assert cost.wall_us["consume"] >= 20_000
        assert cost.cpu_us["consume"] < 10_000


def test_calls_are_written_while_nothing_is_called(tmp_path: Path) -> None:
    """A worker that is killed has written what it did before it was idle."""
    recorder = Recorder(tmp_path, stage=3)
    with recorder.begin(DECODE):
        pass
    assert not recorder.path.exists()
    deadline = time.monotonic() + 20
    while not recorder.path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    [line] = recorder.path.read_text().splitlines()
    recorder.close()
    assert json.loads(line)["op"] == "begin"
    assert recorder.path.name.startswith("stage3-")
    assert len(recorder.path.read_text().splitlines()) == 1


def test_a_step_without_a_save_or_not_yet_consumed_is_no_cost(tmp_path: Path) -> None:
    """Only whole steps are compared."""
    recorder = Recorder(tmp_path, stage=0)
    with recorder.begin(DECODE):
        pass
    with recorder.begin(DECODE):
        pass
    with recorder.save() as call:
        call.step = 7
    recorder.close()
    assert read_steps(tmp_path) == []


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        (DECODE, "decode 16"),
        (Shape(tokens=1, requests=1, new=0, hits=0), "decode 1"),
        (Shape(tokens=64, requests=1, new=1, hits=0), "prefill"),
        (Shape(tokens=64, requests=2, new=0, hits=0), "prefill"),
        (Shape(tokens=64, requests=1, new=1, hits=1), "hit"),
    ],
)
def test_steps_are_told_apart_by_what_they_compute(shape: Shape, kind: str) -> None:
    """A chunk of a prompt is a prefill, whenever it comes."""
    assert StepCost(shape, {}, {}).kind == kind


def costs(shape: Shape, *values: float) -> list[StepCost]:
    return [
        StepCost(shape, {"begin": value, "save": 2 * value, "consume": 3 * value}, {"begin": 1.0}) for value in values
    ]


def test_medians_are_of_whole_steps_too() -> None:
    """Of 1, 2 and 9 the middle one, for each call and for their sum; kinds in a fixed order."""
    steps = [
        StepCost(step.shape, step.wall_us, {"begin": 1.0, "save": 1.0, "consume": 1.0})
        for step in (*costs(Shape(1, 1, 0, 0), 5), *costs(DECODE, 1, 9, 2), *costs(Shape(8, 1, 1, 0), 4))
    ]
    found = medians(steps)
    assert list(found) == ["prefill", "decode 1", "decode 16"]
    assert found["decode 16"].steps == 3
    assert found["decode 16"].wall_us == {"begin": 2, "save": 4, "consume": 6, "step": 12}
    assert found["decode 16"].cpu_us["step"] == 3


def test_two_folders_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first over the second, for kinds that both have."""
    record(tmp_path / "slow", [DECODE] * 3, nap=0.02)
    record(tmp_path / "fast", [DECODE] * 3, consume="discard")
    assert main([str(tmp_path / "slow"), str(tmp_path / "fast")]) == 0
    lines = capsys.readouterr().out.splitlines()
    [ratio] = [line for line in lines if "ratio" in line]
    assert float(ratio.split()[3].removesuffix("x")) > 5
    assert sum("decode 16" in line for line in lines) == 3


def test_one_folder_has_no_ratio(tmp_path: Path) -> None:
    """There is nothing to divide by."""
    record(tmp_path, [DECODE])
    assert "ratio" not in table({"one": medians(read_steps(tmp_path))})


def test_a_folder_without_timings_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the variable that would have filled it."""
    assert main([str(tmp_path)]) == 2
    assert f"PREFIX_CACHE_TIMING={tmp_path}" in capsys.readouterr().err
