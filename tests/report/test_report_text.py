# ruff: noqa: RUF001, RUF002 - the report prints a real minus sign and a real dash
import pytest

from harness.report.measures import Hit, Spread
from harness.report.text import (
    between,
    count,
    difference,
    hit_rate,
    listed,
    mean_and_interval,
    percent,
    significant,
    spread,
    table,
)
from harness.stats import Interval


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (-0.014, "−1.4%"),
        (0.0, "+0.0%"),
        (-0.0004, "−0.0%"),
        (3.558, "+355.8%"),
        (10.765, "+1076.5%"),
        (1.27e4 - 1, "×1.27e+04"),
    ],
)
def test_percent_has_a_sign_and_one_decimal(ratio, text):
    """Ratios read as in the published tables: `−1.4%`, `+0.0%`, `−0.0%`, `+355.8%`."""
    assert percent(ratio) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7.9161, "7.916"),
        (15.7, "15.70"),
        (18.256, "18.26"),
        (0.679, "0.6790"),
        (9.99996, "10.00"),
        (999.96, "1000"),
        (12345.6, "12346"),
        (0.00123456, "0.001235"),
        (0.0, "0"),
    ],
)
def test_significant_keeps_four_digits(value, text):
    """Throughputs have four significant digits, trailing zeros kept, and no exponent."""
    assert significant(value) == text


def test_range_is_low_to_high():
    """A range reads `−2.6% .. +0.0%`; an absent one is a dash."""
    assert between(Interval(-0.026, 0.0)) == "−2.6% .. +0.0%"
    assert between(None) == "—"


def test_a_mean_stands_before_its_interval():
    """`−1.2% (−3.0% .. +0.7%)`; one round has a mean and no interval; no round has neither."""
    assert mean_and_interval(-0.012, Interval(-0.03, 0.007)) == "−1.2% (−3.0% .. +0.7%)"
    assert mean_and_interval(-0.012, None) == "−1.2%"
    assert mean_and_interval(None, None) == "—"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.0, "equal"), (-1e-16, "equal"), (0.0004, "under ±0.1%"), (-0.0004, "under ±0.1%"), (-0.0123, "−1.2%")],
)
def test_a_difference_of_nothing_is_called_equal(ratio, text):
    """What should be equal and is, is `equal`; what differs never prints as zero."""
    assert difference(ratio) == text


@pytest.mark.parametrize(
    ("rates", "text"),
    [((0.926, 0.926), "92.6%"), ((0.9261, 0.9259), "92.6%"), ((0.003, 0.647), "0.3%–64.7%"), (None, "0 queries")],
)
def test_hit_rate_shows_rounds_that_differ(rates, text):
    """One rate when rounds agree in print, both ends when they do not, `0 queries` when nothing was looked up."""
    rate = None if rates is None else Spread(min(rates), max(rates), 2)
    assert hit_rate(Hit(queries=0, hits=0, cells=2, rate=rate, ideal=None)) == text


def test_hit_rate_without_counters_is_not_a_zero():
    """A server without counters is not a server without hits."""
    assert hit_rate(Hit(queries=0, hits=0, cells=0, rate=None, ideal=None)) == "not measured"


def test_spread_is_one_number_when_ends_agree():
    """`15.21–16.08`, or one number."""
    assert spread(Spread(15.2149, 16.08, 4)) == "15.21–16.08"
    assert spread(Spread(1.0, 1.001, 4)) == "1.00"
    assert spread(None) == "—"


def test_words_are_joined_as_people_do():
    """One, two and more items; one bench, two benches."""
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert [count(1, "bench", "benches"), count(2, "bench", "benches"), count(0, "round")] == [
        "1 bench",
        "2 benches",
        "0 rounds",
    ]


def test_a_cell_cannot_break_its_table():
    """A pipe or a line break in a server's message stays inside its cell."""
    assert table(["a", "b"], [["x|y", "line\nbreak"]]).splitlines()[-1] == "| x\\|y | line break |"
