"""What a step was begun with, against what is saved: the short way of steady decoding proves what the long way does."""

from __future__ import annotations

import numpy as np
import pytest

from prefix_cache.errors import StepError
from prefix_cache.schedule import Schedule

SLOTS = 1024


def steady() -> Schedule:
    """Two requests that have decoded together twice, so that the third step is held against what is proven."""
    schedule = Schedule(SLOTS)
    for _ in range(3):
        schedule.begin({"a": 1, "b": 1}, (), (), ())
        schedule.end(["a", "b"], np.array([1, 1]), np.array([3, 20]))
    schedule.begin({"a": 1, "b": 1}, (), (), ())
    assert schedule.pure
    return schedule


@pytest.mark.parametrize(
    ("ids", "counts", "slots", "why"),
    [
        (["a", "c"], [1, 1], [4, 21], "not those that were scheduled"),
        (["a", "b"], [1, 2], [4, 21, 22], "not those that were scheduled"),
        (["a", "a"], [1, 1], [4, 21], "stands twice"),
        (["a"], [1], [4], "1 slots for 1 tokens, of 2 scheduled"),
        (["a", "b"], [1, 1], [4], "1 slots for 2 tokens"),
        (["a", "b"], [1, 1], [4, 21, 22], "3 slots for 2 tokens"),
        (["a", "b"], [1, 1], [4, SLOTS], "slots outside"),
        (["a", "b"], [1, 1], [-1, 21], "slots outside"),
    ],
)
def test_a_steady_step_that_does_not_add_up_is_refused_as_any_other(ids, counts, slots, why) -> None:
    """Nothing that the step before proved is believed of a step that differs from it."""
    with pytest.raises(StepError, match=why):
        steady().end(ids, np.array(counts), np.array(slots))


def test_requests_may_change_their_places() -> None:
    """The same requests in another order are proven again, and saved."""
    assert steady().end(["b", "a"], np.array([1, 1]), np.array([21, 4])) == [1, 1]


def test_what_was_proven_of_a_batch_is_forgotten_with_it() -> None:
    """A batch of the same names after another one is another batch."""
    schedule = steady()
    schedule.end(["a", "b"], np.array([1, 1]), np.array([4, 21]))
    schedule.begin({"a": 1}, (), {"b"}, ())
    schedule.end(["a"], np.array([1]), np.array([5]))
    schedule.begin({"a": 1}, (), (), ())
    with pytest.raises(StepError, match="not those that were scheduled"):
        schedule.end(["a", "b"], np.array([1, 1]), np.array([5, 22]))


@pytest.mark.parametrize("count", [1, 128, 129])
@pytest.mark.parametrize("wrong", [-1, SLOTS])
def test_one_wrong_slot_is_found_among_few_and_many(count: int, wrong: int) -> None:
    """Few slots are compared one by one, many at once; both find it, wherever it stands."""
    for place in (0, count - 1):
        slots = np.arange(count)
        schedule = Schedule(SLOTS)
        schedule.begin({"a": count}, (), (), ())
        slots[place] = wrong
        with pytest.raises(StepError, match="slots outside"):
            schedule.end(["a"], np.array([count]), slots)
