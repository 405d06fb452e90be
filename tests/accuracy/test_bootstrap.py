import numpy as np
import pytest
from scipy import stats

from harness.accuracy.bootstrap import MIN_ITEMS, mean_interval, resampled_means


def normal(generator, items):
    return generator.normal(0.3, 1.0, items)


def sparse(generator, items):
    """Like differences of WER: most items are the same in both arms, some are worse, some better. Mean 0.02."""
    touched = generator.random(items) < 0.4
    return np.where(touched, generator.normal(0.05, 0.2, items), 0.0)


@pytest.mark.parametrize(("draw", "mean"), [(normal, 0.3), (sparse, 0.02)])
def test_the_interval_covers_the_true_mean_as_often_as_it_says(draw, mean):
    """The oracle is the mean of the distribution the items are drawn from; 600 sets make the share good to 0.9 %."""
    generator = np.random.default_rng(20_25)
    estimates = [mean_interval(draw(generator, 60), seed=seed, resamples=800) for seed in range(600)]
    covered = sum(one.low <= mean <= one.high for one in estimates) / len(estimates)
    assert 0.91 <= covered <= 0.98
    below = sum(one.high < mean for one in estimates) / len(estimates)
    above = sum(one.low > mean for one in estimates) / len(estimates)
    assert max(below, above) <= 0.06


def test_the_interval_is_that_of_scipy():
    values = np.random.default_rng(1).exponential(1.0, 50)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=40_000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    found = mean_interval(values, seed=3, resamples=40_000)
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(expected.low, abs=0.01)
    assert found.high == pytest.approx(expected.high, abs=0.01)


def test_a_wider_level_gives_a_wider_interval():
    values = np.random.default_rng(1).normal(size=30)
    narrow, wide = (mean_interval(values, seed=0, level=level) for level in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_the_same_seed_gives_the_same_interval_and_another_does_not():
    values = np.random.default_rng(1).normal(size=30)
    assert mean_interval(values, seed=7) == mean_interval(values, seed=7)
    assert mean_interval(values, seed=7) != mean_interval(values, seed=8)


def test_equal_values_leave_no_width():
    estimate = mean_interval(np.full(20, 0.25), seed=0)
    assert (estimate.mean, estimate.low, estimate.high, estimate.items) == (0.25, 0.25, 0.25, 20)


def test_a_handful_of_items_has_a_mean_and_no_interval():
    few = mean_interval(np.arange(MIN_ITEMS - 1.0), seed=0)
    assert (few.mean, few.low, few.high) == (4.0, None, None)
    assert mean_interval(np.arange(MIN_ITEMS * 1.0), seed=0).low is not None


def test_resamples_are_as_many_as_asked_whatever_the_chunks():
    means = resampled_means(np.random.default_rng(1).random(30_000), np.random.default_rng(2), 301)
    assert means.shape == (301,)
    assert len(np.unique(means)) == 301


@pytest.mark.parametrize("values", [[], [0.0, np.nan], [np.inf], [[1.0, 2.0]]])
def test_what_has_no_mean_is_refused(values):
    with pytest.raises(ValueError, match=r"not an array of shape|not finite"):
        mean_interval(np.array(values), seed=0)
