"""Intervals over items. The items of an accuracy set are a sample of what could have been asked; this is what that
sampling is worth. It says nothing of runs: several rounds of one item are averaged before they come here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
"""Two-sided confidence level."""

RESAMPLES = 10_000

MIN_ITEMS = 10
"""Items below which nothing is resampled: a handful cannot stand for what was not asked."""

_CHUNK = 4_000_000
"""Draws held at once, which bounds the memory to some 32 MiB."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over items and its interval; `low` and `high` are None under `MIN_ITEMS` items."""

    mean: float
    low: float | None
    high: float | None
    items: int


def mean_interval(
    values: npt.NDArray[np.float64], *, seed: int, resamples: int = RESAMPLES, level: float = LEVEL
) -> Estimate:
    """Mean and percentile bootstrap interval (Efron 1979), quantiles by linear interpolation.

    For a difference of two arms pass the differences item by item: the pairing is what makes the interval narrow.
    It covers a little less than its level where few items are many times worse than the rest, and has no
    width where all values are equal.

    Parameters:
        values: float64, shape (items,), one or more, all finite.
        seed: of the resampling; the same values in the same order and the same seed give the same interval.

    Raises:
        ValueError: no value, or one that is not finite.
    """
    if values.ndim != 1 or not len(values):
        raise ValueError(f"a mean over items needs one row of values, not an array of shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"values at {np.flatnonzero(~np.isfinite(values)).tolist()} are not finite")
    mean = float(values.mean())
    if len(values) < MIN_ITEMS:
        return Estimate(mean, None, None, len(values))
    means = resampled_means(values, np.random.default_rng(seed), resamples)
    low, high = np.quantile(means, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Estimate(mean, float(low), float(high), len(values))


def resampled_means(
    values: npt.NDArray[np.float64], generator: np.random.Generator, resamples: int
) -> npt.NDArray[np.float64]:
    """Means of `resamples` samples of as many items, drawn with replacement: float64 (resamples,)."""
    items = len(values)
    rows = max(1, _CHUNK // items)
    parts = [
        values[generator.integers(items, size=(min(rows, resamples - done), items))].mean(axis=1)
        for done in range(0, resamples, rows)
    ]
    return np.concatenate(parts)
