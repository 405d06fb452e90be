from __future__ import annotations

import time

import pytest

from harness.tiny_omni.pace import Pace


class Clock:
    """A thread that computes when told to and sleeps when asked to, each sleep `late` longer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late: float) -> None:
        self.computed, self.slept, self.sleeps = 0.0, 0.0, 0
        self.late = late
        monkeypatch.setattr(time, "thread_time", lambda: self.computed)
        monkeypatch.setattr(time, "perf_counter", lambda: self.computed + self.slept)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept += seconds + self.late
        self.sleeps += 1


@pytest.mark.parametrize("share", [0.5, 0.05, 0.002])
def test_a_slow_step_adds_its_share(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Over many steps of any length the time slept is the share of the time computed, however late the sleeps are."""
    clock = Clock(monkeypatch, late=0.0001)
    pace = Pace(0.0, share)
    for step in range(5001):
        pace.begin()
        clock.computed += (0.0008, 0.003, 0.02)[step % 3]
        pace.end()
    assert clock.slept == pytest.approx(share * clock.computed, abs=0.001 + share * 0.02)
    assert clock.sleeps > 10


@pytest.mark.parametrize("share", [0.0, 0.05, 0.002])
def test_no_late_sleep_shortens_a_step(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Whatever the host did before, a step lasts as long as the device would need, and its share longer."""
    clock = Clock(monkeypatch, late=0.0)
    pace = Pace(0.010, share)
    for step in range(200):
        clock.late = 0.030 if step % 50 == 10 else 0.0001
        before = clock.computed + clock.slept
        pace.begin()
        clock.computed += 0.001
        pace.end()
        lasted = clock.computed + clock.slept - before
        assert lasted == pytest.approx(0.010 * (1 + share) + clock.late, rel=1e-6), step


@pytest.mark.parametrize("share", [0.0, 0.05, 0.002])
def test_steps_last_as_long_as_a_device_would_need(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Steps of any length below the least one end with it, and the share counts on top of it."""
    clock = Clock(monkeypatch, late=0.0)
    pace = Pace(0.025, share)
    for step in range(1000):
        clock.computed += 0.001  # before the forward: not the device's
        pace.begin()
        clock.computed += (0.0008, 0.003, 0.02)[step % 3]
        pace.end()
    assert clock.computed + clock.slept == pytest.approx(1000 * 0.026 * (1 + share), rel=1e-4)


def test_a_step_longer_than_the_least_one_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """What computes longer than the simulated device does not sleep at all."""
    clock = Clock(monkeypatch, late=0.0)
    pace = Pace(0.025, 0.0)
    pace.begin()
    clock.computed += 0.026
    pace.end()
    assert clock.sleeps == 0


def test_an_idle_engine_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that passes between steps without computing adds nothing to the next one."""
    clock = Clock(monkeypatch, late=0.0)
    pace = Pace(0.0, 0.5)
    for _ in range(3):
        clock.slept += 100.0
        pace.begin()
        pace.end()
    assert clock.sleeps == 0
