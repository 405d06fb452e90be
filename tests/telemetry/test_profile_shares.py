"""The share of a profile inside the cache, on files in py-spy's form."""

import json

import pytest

from harness.errors import RecordError
from harness.records import FunctionShare
from harness.telemetry.profile_shares import Shares, profile_shares

FRAMES = [
    {"name": "run", "file": "/usr/lib/python3.11/threading.py", "line": 9},
    {"name": "Engine.step", "file": "/code/harness/tiny_omni/engine.py", "line": 50},
    {"name": "PrefixCache.save_step", "file": "/code/prefix_cache/cache.py", "line": 120},
    {"name": "slots_of", "file": "/code/prefix_cache/slots.py", "line": 30},
    {"name": "where", "file": "/venv/torch/functional.py", "line": 7},
    {"name": "Worker.execute", "file": "/code/prefix_cache/integrations/vllm/worker.py", "line": 3},
    {"name": "Controller.save", "file": "/venv/vllm_omni/core/prefix_cache/controller.py", "line": 8},
    {"name": "main", "file": "/home/prefix_cache/work/src/engine/loop/main.py", "line": 1},
    {"name": "[native]", "file": None, "line": 0},
    {"name": "Condition.wait", "file": "/usr/lib/python3.11/threading.py", "line": 327},
    {"name": "EpollSelector.select", "file": "/usr/lib/python3.11/selectors.py", "line": 468},
]


def speedscope(**threads):
    profiles = [
        {"type": "sampled", "name": f'Thread 0x7F "{name}"', "samples": stacks, "weights": [0.01] * len(stacks)}
        for name, stacks in threads.items()
    ]
    return json.dumps({"shared": {"frames": FRAMES}, "profiles": profiles}).encode()


def test_a_sample_belongs_to_the_innermost_function_of_the_cache():
    """Counted by hand: what torch does for the cache is the cache's, nested functions count once, the rest is not."""
    engine = [[0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 4], [0, 1], [7], [0, 8]]
    found = profile_shares(speedscope(engine=engine, log=[[0, 3]]))
    assert (found.samples, found.waiting) == (8, 0)
    assert found.cache == (
        FunctionShare(function="slots_of", file="prefix_cache/slots.py", thread="engine", samples=2),
        FunctionShare(function="PrefixCache.save_step", file="prefix_cache/cache.py", thread="engine", samples=1),
        FunctionShare(function="slots_of", file="prefix_cache/slots.py", thread="log", samples=1),
    )


@pytest.mark.parametrize(
    ("frame", "file"),
    [(5, "prefix_cache/integrations/vllm/worker.py"), (6, "prefix_cache/controller.py")],
    ids=["an integration of ours", "the one inside vLLM-Omni"],
)
def test_packages_of_that_name_are_the_cache(frame, file):
    """Integrations lie deeper, and vLLM-Omni's own cache is compared by the same rule."""
    found = profile_shares(speedscope(engine=[[0, 1, frame]]))
    assert [one.file for one in found.cache] == [file]


def test_a_checkout_of_that_name_is_not_the_cache():
    """A folder far above the file says nothing of its package."""
    assert profile_shares(speedscope(engine=[[7]])) == Shares(1, 0, ())


def test_a_thread_that_waits_for_work_is_left_out():
    """The cache's own worker between two operations, an event loop between two events: no samples at all."""
    found = profile_shares(speedscope(log=[[0, 2, 9], [0, 2]], loop=[[1, 10], [1]]))
    assert (found.samples, found.waiting) == (2, 2)
    assert [(one.thread, one.samples) for one in found.cache] == [("log", 1)]


def test_the_engine_waiting_inside_the_cache_is_the_caches_cost():
    """An engine thread that waits for a place in the log is held up by the cache."""
    found = profile_shares(speedscope(engine=[[0, 1, 2, 9], [0, 1, 9]]))
    assert (found.samples, found.waiting) == (1, 1)
    assert [(one.function, one.thread, one.samples) for one in found.cache] == [("PrefixCache.save_step", "engine", 1)]


def test_a_profile_without_samples_is_empty():
    """Nothing ran: no share is made up."""
    assert profile_shares(speedscope()) == Shares(0, 0, ())


@pytest.mark.parametrize(
    "text", ["", "[]", '{"shared": {}}', '{"shared": {"frames": []}, "profiles": [{"name": "x"}]}']
)
def test_another_file_is_an_error(text):
    """One message and no share."""
    with pytest.raises(RecordError, match="no speedscope profile"):
        profile_shares(text)
