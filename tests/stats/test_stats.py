import math
from dataclasses import replace

import numpy as np
import pytest
from cell_factory import make_pairs
from hypothesis import given
from hypothesis import strategies as st

from harness.stats import (
    MEDIAN_E2EL,
    MEDIAN_TTFP,
    REQUEST_THROUGHPUT,
    Interval,
    Verdict,
    compare,
    geometric_interval,
    judge,
    same_band,
)

# Two-sided 95% Student quantiles by degrees of freedom, as printed in any table of them.
T975 = {1: 12.7062, 2: 4.30265, 3: 3.18245, 5: 2.57058}

# Within a factor of four: a two-round interval of wilder ratios ends below one float above -100%.
rates = st.floats(min_value=5.0, max_value=20.0)
rounds = st.lists(st.tuples(rates, rates), min_size=2, max_size=8)


def ratios(values):
    return compare(make_pairs([b for b, _ in values], [o for _, o in values]), threshold=0.03)


@pytest.mark.parametrize(
    ("off", "on", "published"),
    [
        (1.309, 1.544, 0.180),  # Daily-Omni, request throughput
        (1088 / 273.7, 1088 / 171.6, 0.60),  # Seed-TTS EN, utterances over wall time
        (18.5, 29.4, 0.59),  # the same, audio seconds a second
    ],
)
def test_ratio_of_a_single_run_is_the_published_one(off, on, published):
    """The ratio of one round is what reviewers printed, in whole percents, beside the same two throughputs."""
    result = compare(make_pairs([off], [on]), threshold=0.03)
    assert result.ratio == pytest.approx(published, abs=0.0075)


def test_ratio_is_of_means_and_range_is_of_rounds():
    """The ratio divides the means over rounds; the range is the smallest and largest per-round ratio."""
    result = compare(make_pairs([10.0, 20.0], [15.0, 22.0]), threshold=0.03)
    assert result.base_mean == 15.0
    assert result.other_mean == 18.5
    assert result.ratio == pytest.approx(18.5 / 15.0 - 1)
    assert result.spread == Interval(pytest.approx(0.1), pytest.approx(0.5))


@pytest.mark.parametrize("quotients", [[1.1, 1.2], [1.1, 1.2, 1.15], [0.97, 1.0, 1.02, 0.99], [8, 9, 8.5, 9.4, 8.8, 9]])
def test_interval_is_students_t_on_logarithms(quotients):
    """The interval agrees with the textbook formula and a printed t table."""
    n = len(quotients)
    logs = [math.log(q) for q in quotients]
    mean = sum(logs) / n
    deviation = math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1))
    half = T975[n - 1] * deviation / math.sqrt(n)
    result = compare(make_pairs([10.0] * n, [10.0 * q for q in quotients]), threshold=0.03)
    assert result.geometric == pytest.approx(math.exp(mean) - 1)
    assert result.interval is not None
    assert result.interval.low == pytest.approx(math.exp(mean - half) - 1, rel=1e-4)
    assert result.interval.high == pytest.approx(math.exp(mean + half) - 1, rel=1e-4)


@pytest.mark.parametrize("n", [3, 4, 6])
def test_interval_covers_the_truth(n):
    """With 2% noise on both arms, 95% intervals of n rounds cover the true ratio in 93% to 97% of 4000 runs."""
    noise = np.random.default_rng(20260101 + n)
    truth = 1.4
    base = 10.0 * (1 + 0.02 * noise.standard_normal((4000, n)))
    other = 10.0 * truth * (1 + 0.02 * noise.standard_normal((4000, n)))
    low, centre, high = geometric_interval(other / base)
    assert 0.93 < np.mean((low <= truth) & (truth <= high)) < 0.97
    assert np.mean(centre) == pytest.approx(truth, rel=0.01)


def test_interval_needs_two_rounds():
    """One round has a ratio, a range of one point, no interval, and no verdict but inconclusive."""
    result = compare(make_pairs([10.0], [20.0]), threshold=0.03)
    assert result.ratio == 1.0
    assert result.interval is None
    assert result.verdict is Verdict.INCONCLUSIVE
    with pytest.raises(ValueError, match="at least 2 rounds"):
        geometric_interval(np.array([1.0]))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.031, 0.5, Verdict.FASTER),
        (0.029, 0.5, Verdict.INCONCLUSIVE),
        (-0.029, 0.03, Verdict.SAME),
        (-0.0292, 0.0, Verdict.INCONCLUSIVE),
        (-0.9, -0.0292, Verdict.SLOWER),
        (-0.9, 0.9, Verdict.INCONCLUSIVE),
    ],
)
def test_verdict_compares_the_interval_with_the_band(low, high, verdict):
    """Wholly above, wholly below, inside, or none of these; 0.03 below in logarithms is -0.02913."""
    assert judge(Interval(low, high), same_band(0.03), higher_is_better=True) is verdict


def test_lower_latency_is_faster():
    """For a latency the same ratio has the opposite verdict."""
    base, other = [100.0, 101.0, 99.0], [50.0, 51.0, 49.0]
    latency = compare(make_pairs(base, other, "median_e2el_ms"), MEDIAN_E2EL, threshold=0.03)
    throughput = compare(make_pairs(base, other), threshold=0.03)
    assert latency.ratio == throughput.ratio
    assert (latency.verdict, throughput.verdict) == (Verdict.FASTER, Verdict.SLOWER)


@pytest.mark.parametrize(("value", "says"), [(None, "is absent"), (0.0, "is 0"), (math.nan, "is nan")])
def test_absent_value_drops_the_pair_and_says_so(value, says):
    """A metric that is absent or cannot be divided by drops its pair with a reason; it is never 0."""
    pairs = make_pairs([100.0, 100.0, 100.0], [50.0, 50.0, value], "median_audio_ttfp_ms")
    result = compare(pairs, MEDIAN_TTFP, threshold=0.03)
    assert [one.round for one in result.rounds] == [1, 2]
    assert result.ratio == -0.5
    ((dropped,),) = ([*result.dropped],)
    assert dropped.round == 3
    assert dropped.reasons == (f"round 3, cache_on, P1024: median_audio_ttfp_ms {says}" + (
        "" if value is None else ", of which no ratio can be taken"),)  # fmt: skip
    assert "1 of 3 pairs dropped" in result.warnings


def test_invalid_pair_leaves_the_ratio_whole():
    """A pair with a reason against it takes both its cells out of the means."""
    pairs = make_pairs([10.0, 10.0, 1.0], [11.0, 11.0, 50.0])
    pairs[2] = replace(pairs[2], reasons=("r03-2-cache_on: 1 requests failed; allowed: 0",))
    result = compare(pairs, threshold=0.03)
    assert (result.base_mean, result.other_mean) == (10.0, 11.0)
    assert result.dropped[0].reasons == pairs[2].reasons


def test_nothing_valid_has_no_numbers():
    """Without a valid round there is a verdict, `invalid`, and not one number."""
    pairs = [replace(pair, reasons=("x",)) for pair in make_pairs([10.0, 10.0], [11.0, 11.0])]
    result = compare(pairs, threshold=0.03)
    assert result.verdict is Verdict.INVALID
    assert (result.ratio, result.spread, result.geometric, result.interval, result.base_mean) == (None,) * 5
    assert "no valid round" in result.warnings


def test_pending_pair_is_neither_counted_nor_dropped():
    """A pair whose trial has not run yet is not a dropped one."""
    pairs = make_pairs([10.0, 10.0], [11.0, 11.0])
    pairs[1] = replace(pairs[1], other=None, pending=True)
    result = compare(pairs, threshold=0.03)
    assert len(result.rounds) == 1
    assert result.dropped == ()


@pytest.mark.parametrize(("n", "advisory"), [(1, True), (2, True), (3, False)])
def test_few_rounds_are_advisory(n, advisory):
    """Fewer than three valid rounds make a verdict advisory, with a warning."""
    result = compare(make_pairs([10.0] * n, [11.0] * n), threshold=0.03)
    assert result.advisory is advisory
    assert any("advisory" in text or "needs 2" in text for text in result.warnings) is advisory


def test_one_sided_order_is_warned_about():
    """When one arm ran first in every round, drift is in the ratio and a warning says so."""
    pairs = make_pairs([10.0, 10.0, 10.0], [11.0, 11.0, 11.0])
    assert compare(pairs, threshold=0.03).warnings == ()
    odd = [pairs[0], replace(pairs[2], round=2)]
    assert "cache_off ran before cache_on in every valid round: drift is not cancelled" in (
        compare(odd, threshold=0.03).warnings
    )


def test_pairs_of_two_benches_are_refused():
    """Comparing pairs of several benches at once is a mistake of the caller."""
    pairs = make_pairs([10.0, 10.0], [11.0, 11.0])
    with pytest.raises(ValueError, match="one bench and arm"):
        compare([pairs[0], replace(pairs[1], bench="P4096")], threshold=0.03)


@given(rounds, st.floats(min_value=0.01, max_value=100.0))
def test_scale_does_not_matter(values, scale):
    """A machine that is uniformly faster gives the same ratios, interval and verdict."""
    one, two = ratios(values), ratios([(b * scale, o * scale) for b, o in values])
    assert two.ratio == pytest.approx(one.ratio)
    assert two.interval.low == pytest.approx(one.interval.low)
    assert two.interval.high == pytest.approx(one.interval.high)


@given(rounds)
def test_swapping_arms_mirrors_the_result(values):
    """In logarithms, A against B is the mirror of B against A, verdict included."""
    one, two = ratios(values), ratios([(o, b) for b, o in values])
    assert math.log1p(two.geometric) == pytest.approx(-math.log1p(one.geometric), abs=1e-9)
    assert math.log1p(two.interval.low) == pytest.approx(-math.log1p(one.interval.high), abs=1e-6)
    mirror = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    edges = [abs(math.log1p(x)) for x in (one.interval.low, one.interval.high)]
    # An interval that ends on the band's very edge may fall either way with the last bit of a float.
    if all(abs(edge - math.log(1.03)) > 1e-9 for edge in edges):
        assert two.verdict is mirror.get(one.verdict, one.verdict)


@given(rounds)
def test_range_contains_both_centres(values):
    """The ratio of means and the geometric mean lie within the per-round range, and the latter in its interval."""
    one = ratios(values)
    slack = 1e-9 * (1 + abs(one.spread.high))
    assert one.spread.low - slack <= one.ratio <= one.spread.high + slack
    assert one.spread.low - slack <= one.geometric <= one.spread.high + slack
    assert one.interval.low - slack <= one.geometric <= one.interval.high + slack


def test_metric_names_its_record_key():
    """The default metric is the request throughput of `vllm bench serve`."""
    assert REQUEST_THROUGHPUT.key == "request_throughput"
    assert compare(make_pairs([10.0], [11.0]), threshold=0.03).metric is REQUEST_THROUGHPUT
