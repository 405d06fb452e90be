"""The second opinion: a rank estimate and an exact test beside the t interval."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.second_opinion import detectable_effect, hodges_lehmann, second_opinion, sign_flip_p

VALUES = st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=8)


@given(VALUES)
def test_hodges_lehmann_is_the_median_of_pairwise_means(values: list[float]) -> None:
    """It equals a loop over all pairs, each value paired with itself too."""
    means = [(values[i] + values[j]) / 2 for i in range(len(values)) for j in range(i, len(values))]
    assert hodges_lehmann(np.array(values)) == pytest.approx(statistics.median(means), abs=1e-12)


@given(st.lists(st.integers(-8, 8), min_size=1, max_size=8))
def test_the_sign_flip_p_counts_assignments_of_signs(numbers: list[int]) -> None:
    """It equals the share found by writing out every assignment; whole numbers make ties exact."""
    flips = list(itertools.product((1, -1), repeat=len(numbers)))
    extreme = [abs(sum(s * v for s, v in zip(signs, numbers, strict=True))) >= abs(sum(numbers)) for signs in flips]
    assert sign_flip_p(np.array(numbers, dtype=float)) == pytest.approx(sum(extreme) / len(flips))


def test_six_pairs_on_one_side_are_significant_and_five_are_not() -> None:
    """The exact p of n equal signs is 2 / 2**n."""
    assert sign_flip_p(np.full(6, 0.01)) == pytest.approx(2 / 64)
    assert second_opinion(np.exp(np.full(5, 0.01))) is None


def test_many_pairs_are_judged_by_seeded_draws() -> None:
    """Over 16 values the p of a clear effect is tiny but never 0, and always the same."""
    values = np.random.default_rng(3).normal(1.0, 0.1, 30)
    assert 0.0 < sign_flip_p(values) < 1e-3
    assert sign_flip_p(values) == sign_flip_p(values)


def test_an_outlier_moves_the_mean_and_not_the_rank_estimate() -> None:
    """One round at half speed among seven equal ones leaves the estimate at theirs."""
    opinion = second_opinion(np.array([1.05] * 7 + [0.5]))
    assert opinion is not None
    assert opinion.hodges_lehmann == pytest.approx(0.05)


def test_the_detectable_effect_is_found_four_times_in_five() -> None:
    """Simulated rounds with a true change of that size are called at about the stated power."""
    generator, rounds, noise = np.random.default_rng(5), 6, 0.02
    scale = np.exp(generator.normal(0.0, noise, (4000, rounds)))
    # The effect for a known spread: the formula's own, with the spread it would estimate on average.
    exact = np.exp(np.array([-1.0, 1.0] * 3) * noise * math.sqrt(5 / 6))
    effect = detectable_effect(exact, 0.95)
    logs = np.log(scale) + math.log1p(effect)
    t = logs.mean(axis=1) / (logs.std(axis=1, ddof=1) / math.sqrt(rounds))
    assert 0.72 < float(np.mean(t > 2.5706)) < 0.88
