import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.parity import Agreement, Difference, first_difference, over_rounds, parity
from harness.records import RequestRecord


def answer(index, text="", status="ok", **values):
    return RequestRecord(index=index, status=status, sent=0.0, queued=0.0, text=text, **values)


@pytest.mark.parametrize(
    ("base", "other", "position"),
    [("same", "same", None), ("abc", "abd", 2), ("ab", "abc", 2), ("", "x", 0), ("", "", None), ("xa", "ya", 0)],
)
def test_first_difference_is_where_texts_part(base, other, position):
    """The first differing character, or the shorter length when one text begins the other."""
    assert first_difference(base, other) == position


@given(st.text(), st.text(), st.text())
def test_first_difference_splits_a_common_prefix(prefix, left, right):
    """Up to the position the texts are equal, and it is symmetric."""
    one, two = prefix + left, prefix + right
    position = first_difference(one, two)
    assert position == first_difference(two, one)
    if position is None:
        assert one == two
    else:
        assert one[:position] == two[:position]
        assert one[position : position + 1] != two[position : position + 1]


def test_texts_pair_by_index_whatever_the_order():
    """Requests finish in any order; answers are compared prompt by prompt."""
    base = [answer(0, "a"), answer(1, "b"), answer(2, "the cat")]
    other = [answer(2, "the dog"), answer(1, "b"), answer(0, "a")]
    found = parity(base, other)
    assert found.texts == Agreement(equal=2, differ=1, absent=0)
    assert found.differences == (Difference(index=2, position=4),)


def test_two_empty_texts_do_not_agree():
    """Nothing and nothing is not an equal answer; nothing and something differ from the first character."""
    found = parity([answer(0), answer(1)], [answer(0), answer(1, "x")])
    assert found.texts == Agreement(equal=0, differ=1, absent=1)
    assert found.median_position == 0


def test_failed_and_unpaired_requests_are_missing():
    """A prompt answered on one side only is counted as missing and compared with nothing."""
    base = [answer(0, "a"), answer(1, "b", status="failed"), answer(2, "c")]
    other = [answer(0, "a"), answer(1, "b"), answer(3, "d")]
    found = parity(base, other)
    assert (found.compared, found.missing) == (1, 3)


def test_audio_is_compared_by_digest_length_and_words():
    """Equal digests are equal speech; the length ratio sums over requests with audio on both sides."""
    base = [
        answer(0, audio_sha256="a", audio_seconds=2.0, audio_transcript="hello"),
        answer(1, audio_sha256="b", audio_seconds=2.0, audio_transcript="world"),
        answer(2, audio_seconds=100.0),
    ]
    other = [
        answer(0, audio_sha256="a", audio_seconds=2.0, audio_transcript="hello"),
        answer(1, audio_sha256="c", audio_seconds=3.0, audio_transcript="word"),
        answer(2),
    ]
    found = parity(base, other)
    assert found.digests == Agreement(equal=1, differ=1, absent=1)
    assert found.transcripts == Agreement(equal=1, differ=1, absent=1)
    assert found.audio_ratio == pytest.approx(0.25)
    assert parity([answer(0, "a")], [answer(0, "a")]).audio_ratio is None


def test_rounds_add_up():
    """Over rounds every count is a sum, and the median position is over all differences."""
    first = parity([answer(0, "ab"), answer(1, "x")], [answer(0, "ac"), answer(1, "x")])
    second = parity([answer(0, "abcdef")], [answer(0, "abcdeX")])
    both = over_rounds([first, second])
    assert both.compared == 3
    assert both.texts == Agreement(equal=1, differ=2, absent=0)
    assert [one.position for one in both.differences] == [1, 5]
    assert both.median_position == 1
