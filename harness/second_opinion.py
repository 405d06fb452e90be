"""A second opinion on a handful of rounds, without the normal distribution (docs/design.md, section 7). Pure functions.

The t interval on the logarithms is the statistic of record. From `FIRM_PAIRS` pairs on, a rank estimate and an exact
test stand beside it: where they disagree with it, a round is an outlier, or the pairs are too few to say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FIRM_PAIRS = 6
"""Pairs below which no second opinion is given: of 5, even all on one side have an exact p of 0.0625."""
_EXACT_PAIRS = 16
_DRAWS = 1 << _EXACT_PAIRS


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """What ranks and signs say of the per-round quotients.

    Parameters:
        hodges_lehmann: the median of all pairwise means of the log quotients, as a ratio minus one.
        sign_flip_p: two-sided p of the hypothesis that each pair's sign is a coin toss.
    """

    hodges_lehmann: float
    sign_flip_p: float


def second_opinion(quotients: NDArray[np.float64]) -> SecondOpinion | None:
    """None under `FIRM_PAIRS` pairs.

    Parameters:
        quotients: float64 [n], other over base, one a round.
    """
    if len(quotients) < FIRM_PAIRS:
        return None
    logs = np.log(quotients)
    return SecondOpinion(math.expm1(hodges_lehmann(logs)), sign_flip_p(logs))


def hodges_lehmann(values: NDArray[np.float64]) -> float:
    """The median of the Walsh averages of float64 [n], each value with itself among them (Hodges and Lehmann, 1963)."""
    first, second = np.triu_indices(len(values))
    return float(np.median((values[first] + values[second]) / 2))


def sign_flip_p(values: NDArray[np.float64]) -> float:
    """Share of all assignments of signs whose mean is at least as far from 0 as that of float64 [n].

    Exact up to 16 values (R. A. Fisher, 1935); beyond, of 65,536 seeded draws with the observed one among them.
    """
    count = len(values)
    if count <= _EXACT_PAIRS:
        assigned = np.arange(1 << count)[:, None] >> np.arange(count) & 1
    else:
        assigned = np.random.default_rng(0).integers(0, 2, (_DRAWS, count))
        assigned[0] = 0
    sums = np.abs((1.0 - 2.0 * assigned) @ values)
    # Equal sums in another order of addition must count as equal.
    return float(np.mean(sums >= abs(values.sum()) * (1.0 - 1e-12) - 1e-15))


def detectable_effect(quotients: NDArray[np.float64], level: float, power: float = 0.8) -> float:
    """The smallest change that as many rounds as noisy as these would call with probability `power`, as a ratio.

    The usual approximation with two quantiles of Student's t (for example Bloom, 1995).

    Parameters:
        quotients: float64 [n], n >= 2.
        level: of the two-sided interval that does the calling.
    """
    # Not scipy.stats.t: the same quantile, without a second of imports.
    from scipy.special import stdtrit

    count = len(quotients)
    if count < 2:
        raise ValueError(f"a detectable effect needs at least 2 rounds, not {count}")
    scale = float(np.log(quotients).std(ddof=1)) / math.sqrt(count)
    return math.expm1(float(stdtrit(count - 1, 0.5 + level / 2) + stdtrit(count - 1, power)) * scale)
