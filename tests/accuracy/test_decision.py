import math

import pytest

from harness.accuracy.decision import (
    Decision,
    Scores,
    Verdict,
    gravest,
    judge_count,
    judge_difference,
    judge_level,
)

ITEMS = [f"u{number:02d}" for number in range(40)]


def scores(name, *rounds):
    return Scores(name, tuple(dict(zip(ITEMS, values, strict=False)) for values in rounds))


def spread(mean, half, count=40):
    """Values that alternate `half` above and below `mean`."""
    return [mean + (half if number % 2 else -half) for number in range(count)]


BASE = scores("cache_off", spread(0.02, 0.02))


def difference(arm, base=BASE, margin=0.01, higher_is_better=False):
    check = "max_sim_decrease" if higher_is_better else "max_wer_increase"
    return judge_difference(check, base, arm, margin=margin, higher_is_better=higher_is_better, seed=1)


def test_an_arm_that_scores_the_same_passes_with_an_interval_without_width():
    decision = difference(scores("cache_on", spread(0.02, 0.02)))
    assert (decision.verdict, decision.value, decision.low, decision.high) == (Verdict.PASS, 0.0, 0.0, 0.0)
    assert (decision.arm, decision.baseline, decision.items, decision.reasons) == ("cache_on", "cache_off", 40, ())


@pytest.mark.parametrize(
    ("worse_by", "half", "verdict"),
    [
        (0.0, 0.005, Verdict.PASS),
        (0.009, 0.001, Verdict.PASS),
        (0.0, 0.2, Verdict.INCONCLUSIVE),
        (0.02, 0.1, Verdict.INCONCLUSIVE),
        (0.05, 0.02, Verdict.FAIL),
        (-0.05, 0.02, Verdict.PASS),
    ],
)
def test_a_difference_is_judged_by_its_whole_interval(worse_by, half, verdict):
    """The half-width of a mean of 40 values that lie `half` off is near 1.96 * half / sqrt(40)."""
    values = [
        before + worse_by + (half if number % 4 < 2 else -half) for number, before in enumerate(BASE.rounds[0].values())
    ]
    decision = difference(scores("cache_on", values))
    assert decision.verdict is verdict
    assert decision.value == pytest.approx(worse_by, abs=1e-12)
    assert decision.high - decision.low == pytest.approx(2 * 1.96 * half / math.sqrt(40), rel=0.1)
    assert bool(decision.reasons) == (verdict is not Verdict.PASS)


def test_pairing_takes_out_what_the_items_themselves_differ_by():
    hard_and_easy = spread(0.5, 0.5)
    decision = difference(scores("cache_on", [x + 0.001 for x in hard_and_easy]), scores("cache_off", hard_and_easy))
    assert decision.verdict is Verdict.PASS
    assert decision.high - decision.low < 1e-9


def test_items_are_paired_by_id_and_not_by_their_order():
    backwards = Scores("cache_on", (dict(reversed(BASE.rounds[0].items())),))
    assert difference(backwards).value == 0.0


def test_worse_is_lower_where_higher_is_better():
    lower = scores("cache_on", spread(0.7, 0.01))
    decision = difference(lower, scores("cache_off", spread(0.9, 0.01)), margin=0.05, higher_is_better=True)
    assert decision.verdict is Verdict.FAIL
    assert decision.value == pytest.approx(0.2)
    assert decision.reasons == ("worse by 0.2000 at least, 0.05 is accepted",)


def test_rounds_are_averaged_item_by_item():
    """Up by 0.1 in one round and down by 0.1 in the next is no difference, and has no width."""
    arm = scores("cache_on", [x + 0.1 for x in spread(0.02, 0.02)], [x - 0.1 for x in spread(0.02, 0.02)])
    decision = difference(arm)
    assert decision.verdict is Verdict.PASS
    assert decision.value == pytest.approx(0.0, abs=1e-12)
    assert decision.high == pytest.approx(0.0, abs=1e-12)


def test_too_few_items_are_inconclusive_even_without_a_difference():
    decision = difference(scores("cache_on", [0.0] * 9), scores("cache_off", [0.0] * 9))
    assert (decision.verdict, decision.low) == (Verdict.INCONCLUSIVE, None)
    assert decision.reasons == ("9 items: an interval needs 10",)


@pytest.mark.parametrize("short", ["cache_off", "cache_on"])
def test_an_item_missing_from_one_arm_makes_the_question_invalid_and_is_named(short):
    whole, less = spread(0.0, 0.0), spread(0.0, 0.0)[:-1]
    sides = {name: scores(name, less if name == short else whole) for name in ("cache_off", "cache_on")}
    decision = difference(sides["cache_on"], sides["cache_off"])
    assert (decision.verdict, decision.value, decision.items) == (Verdict.INVALID, None, 0)
    assert decision.reasons == (f"{short}, scored round 1 of 1: item u39 missing",)


def test_an_item_missing_from_one_round_makes_the_question_invalid():
    decision = difference(scores("cache_on", spread(0.0, 0.0), spread(0.0, 0.0)[:-7]))
    assert decision.verdict is Verdict.INVALID
    assert decision.reasons == ("cache_on, scored round 2 of 2: 7 items (u33, u34, u35, u36, u37 and 2 more) missing",)


def test_a_score_that_is_not_finite_makes_the_question_invalid():
    decision = difference(scores("cache_on", [math.nan, *spread(0.0, 0.0)[1:]]))
    assert (decision.verdict, decision.reasons) == (
        Verdict.INVALID,
        ("cache_on, scored round 1 of 1: item u00 without a finite score",),
    )


@pytest.mark.parametrize("arm", [Scores("cache_on", ()), Scores("cache_on", ({},))])
def test_nothing_scored_is_invalid(arm):
    decision = judge_level("max_wer", arm, limit=0.05, higher_is_better=False, seed=1)
    assert decision.verdict is Verdict.INVALID
    assert "no item was scored" in decision.reasons


@pytest.mark.parametrize(
    ("check", "mean", "limit", "higher_is_better", "verdict"),
    [
        ("max_wer", 0.04, 0.05, False, Verdict.PASS),
        ("max_wer", 0.05, 0.05, False, Verdict.PASS),
        ("max_wer", 0.06, 0.05, False, Verdict.FAIL),
        ("min_sim", 0.85, 0.8, True, Verdict.PASS),
        ("min_sim", 0.75, 0.8, True, Verdict.FAIL),
    ],
)
def test_a_level_is_judged_by_the_mean_of_the_items_asked(check, mean, limit, higher_is_better, verdict):
    arm = scores("cache_on", [mean] * 40)
    decision = judge_level(check, arm, limit=limit, higher_is_better=higher_is_better, seed=1)
    assert (decision.verdict, decision.baseline) == (verdict, None)
    assert decision.value == pytest.approx(mean)


def marks(count):
    return [1.0] * count + [0.0] * (40 - count)


def count(differing, control, limit=2):
    arm = scores("cache_on", *(marks(number) for number in differing))
    own = None if control is None else scores("cache_off", marks(control))
    return judge_count("max_differing", "cache_off", arm, own, limit=limit, seed=1)


@pytest.mark.parametrize(
    ("differing", "control", "verdict"),
    [
        ([0], None, Verdict.PASS),
        ([2], 0, Verdict.PASS),
        ([3], None, Verdict.INCONCLUSIVE),
        ([3], 3, Verdict.INCONCLUSIVE),
        ([8], 7, Verdict.INCONCLUSIVE),
        ([20], 0, Verdict.FAIL),
        ([30], 10, Verdict.FAIL),
        ([3, 1], 0, Verdict.PASS),
    ],
)
def test_a_count_is_judged_beside_the_baseline_against_itself(differing, control, verdict):
    decision = count(differing, control)
    assert decision.verdict is verdict
    assert decision.value == sum(differing) / len(differing)
    assert decision.control == control


def test_a_count_over_its_limit_says_what_it_was_compared_with():
    assert count([20], 0).reasons == ("20 items differ, 2 are accepted; cache_off differs from itself on 0, fewer",)
    assert count([20], None).reasons == (
        "20 items differ, 2 are accepted, and cache_off was not measured twice as a control",
    )


def verdict_of(verdict):
    return Decision("max_wer", "cache_on", None, 0.05, 0.0, 0.0, 0.0, None, 40, verdict, ())


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([Verdict.PASS, Verdict.PASS], Verdict.PASS),
        ([Verdict.PASS, Verdict.INCONCLUSIVE], Verdict.INCONCLUSIVE),
        ([Verdict.FAIL, Verdict.INCONCLUSIVE], Verdict.FAIL),
        ([Verdict.FAIL, Verdict.INVALID, Verdict.PASS], Verdict.INVALID),
    ],
)
def test_the_gravest_verdict_stands_for_all(verdicts, expected):
    assert gravest(map(verdict_of, verdicts)) is expected


def test_no_decision_passes_nothing():
    with pytest.raises(ValueError, match="no decision"):
        gravest([])


@pytest.mark.parametrize(("value", "items"), [(0.05, 12), (0.1, 12), (0.7, 7), (0.3, 3)])
def test_a_limit_is_included_whatever_floats_add_up_to(value, items):
    """Twelve times 0.05 has a mean a bit above 0.05."""
    arm = Scores("cache_on", ({f"i{number}": value for number in range(items)},))
    for higher in (False, True):
        found = judge_level("max_wer", arm, limit=value, higher_is_better=higher, seed=1)
        assert found.verdict is Verdict.PASS


def test_a_margin_is_included_whatever_floats_add_up_to():
    """0.9 to 0.88 is two hundredths, and a bit more in floats."""
    base, arm = (Scores("", ({f"i{number}": value for number in range(12)},)) for value in (0.9, 0.88))
    found = judge_difference("max_sim_decrease", base, arm, margin=0.02, higher_is_better=True, seed=1)
    assert found.verdict is Verdict.PASS
