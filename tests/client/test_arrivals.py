"""An open loop's plan has the rate it names and the shape it names, and a seed fixes it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from harness.client.arrivals import arrival_times


def test_constant_gaps_without_burstiness() -> None:
    """No burstiness: the k-th request leaves at k / rate."""
    np.testing.assert_allclose(arrival_times(4, 2.0, None, seed=0), [0.5, 1.0, 1.5, 2.0])


@pytest.mark.parametrize("shape", [0.25, 1.0, 8.0])
def test_gaps_follow_the_gamma_distribution_of_their_shape(shape: float) -> None:
    """Gaps are gamma-distributed with the given shape and mean 1 / rate (shape 1: a Poisson process)."""
    gaps = np.diff(arrival_times(4000, 10.0, shape, seed=3), prepend=0.0)
    fit = stats.kstest(gaps, stats.gamma(a=shape, scale=1 / (10.0 * shape)).cdf)
    assert fit.pvalue > 0.01


@pytest.mark.parametrize("shape", [0.05, 0.5, 1.0, 20.0, None])
def test_last_request_leaves_at_n_over_rate(shape: float | None) -> None:
    """The plan is scaled so that its length does not depend on the seed, and never goes back in time."""
    for seed in range(5):
        times = arrival_times(50, 7.0, shape, seed)
        assert times[-1] == pytest.approx(50 / 7.0)
        assert np.all(np.diff(times, prepend=0.0) >= 0)


def test_plan_is_scaled_from_the_seeded_draw() -> None:
    """The same draw through vLLM's own steps (gaps, running sum, scale to n / rate) gives the same plan."""
    gaps = np.random.default_rng(11).gamma(shape=0.7, scale=1 / (3.0 * 0.7), size=9)
    delays = list(gaps)
    for i in range(1, 9):
        delays[i] += delays[i - 1]
    np.testing.assert_allclose(
        arrival_times(9, 3.0, 0.7, seed=11), [delay * (9 / 3.0) / delays[-1] for delay in delays]
    )


def test_seed_fixes_the_plan() -> None:
    """Equal seeds are equal plans, other seeds are others."""
    first = arrival_times(20, 5.0, 1.0, seed=1)
    np.testing.assert_array_equal(first, arrival_times(20, 5.0, 1.0, seed=1))
    assert not np.array_equal(first, arrival_times(20, 5.0, 1.0, seed=2))


def test_draws_that_underflow_still_make_a_plan() -> None:
    """A shape so small that every gap rounds to zero is one burst at the end, not a division by zero."""
    np.testing.assert_array_equal(arrival_times(1, 1.0, 1e-9, seed=0), [1.0])


@pytest.mark.parametrize(("n", "rate", "shape"), [(0, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.0, 0.0), (1, float("nan"), 1.0)])
def test_senseless_plans_are_refused(n: int, rate: float, shape: float) -> None:
    """Nothing positive, no plan."""
    with pytest.raises(ValueError, match="must be positive"):
        arrival_times(n, rate, shape, seed=0)
