"""Arrivals: when each request of an open loop is sent."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def arrival_times(n: int, rate: float, burstiness: float | None, seed: int) -> npt.NDArray[np.float64]:
    """Planned sends of `n` requests, in seconds from the start of the bench, ascending.

    The gaps are those of `vllm bench serve`: gamma-distributed with shape `burstiness` and mean `1 / rate` (shape 1
    is a Poisson process, more is more even), the first request waits for the first gap, and the whole plan is scaled
    so that the last request leaves at exactly `n / rate`, which makes seeds comparable. Unlike there, the draw is
    seeded.

    Parameters:
        n: number of requests.
        rate: requests per second.
        burstiness: shape of the gaps; None: constant gaps.
        seed: equal seeds are equal plans.

    Returns:
        shape (n,), float64.
    """
    if n < 1 or not rate > 0 or (burstiness is not None and not burstiness > 0):
        raise ValueError(f"n, rate and burstiness must be positive: got {n}, {rate}, {burstiness}")
    if burstiness is None:
        return np.arange(1, n + 1, dtype=np.float64) / rate
    gaps = np.random.default_rng(seed).gamma(shape=burstiness, scale=1.0 / (rate * burstiness), size=n)
    times = np.cumsum(gaps)
    # Very bursty draws can underflow to zero as a whole; such a plan is one burst at its end.
    return times * (n / rate / times[-1]) if times[-1] > 0 else np.full(n, n / rate)
