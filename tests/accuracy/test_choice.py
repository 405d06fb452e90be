from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.accuracy.choice import Flip, flips, score, summarise
from harness.accuracy.letter import Extraction, How, extract

REPLIES = [
    (letter, reply.replace("\\n", "\n"))
    for line in Path(__file__).with_name("replies.tsv").read_text(encoding="utf-8").split("\n")
    if line and not line.startswith("#")
    for letter, reply in [line.split("\t")]
]


@pytest.mark.parametrize(("letter", "reply"), REPLIES)
def test_the_letter_of_a_reply_is_the_one_written_by_hand(letter, reply):
    assert extract(reply).letter == (None if letter == "-" else letter)


def test_the_list_of_replies_is_long_and_has_every_answer():
    assert len(REPLIES) >= 40
    assert {letter for letter, _ in REPLIES} == {"A", "B", "C", "D", "-"}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("(b)", Extraction("B", How.ALONE)),
        ("The answer is C.", Extraction("C", How.STATED)),
        ("D. a bell", Extraction("D", How.LEADING)),
        ("Look at picture C", Extraction("C", How.ONLY)),
        ("A or B", Extraction(None, How.SEVERAL)),
        ("A cat", Extraction(None, How.NONE)),
        (None, Extraction(None, How.FAILED)),
    ],
)
def test_an_extraction_says_how_it_was_made(reply, expected):
    assert extract(reply) == expected


@pytest.mark.parametrize("reply", ["E", "(e)", "The answer is E."])
def test_a_letter_is_an_answer_only_where_it_is_an_option(reply):
    assert extract(reply, "ABCDE").letter == "E"
    assert extract(reply, "ABCD").letter is None


@given(st.text())
def test_any_text_means_an_option_or_nothing(text):
    extraction = extract(text)
    assert extraction.letter in {"A", "B", "C", "D", None}
    assert (extraction.letter is None) == (extraction.how in {How.NONE, How.SEVERAL})


@given(st.text("efghijklmnopqrstuvwxyz ,.!?", max_size=60), st.sampled_from("ABCD"))
def test_a_stated_answer_outweighs_any_letterless_prose_before_it(prose, letter):
    assert extract(f"{prose}\nThe answer is {letter}.").letter == letter


ARM = {
    "right": score("right", "B", "B"),
    "wrong": score("wrong", "B", "C"),
    "prose": score("prose", "A", "A cat"),
    "failed": score("failed", "A", None),
}


def test_replies_without_a_letter_and_failures_are_wrong_and_listed():
    summary = summarise(list(ARM.values()))
    assert (summary.items, summary.correct, summary.accuracy) == (4, 1, 0.25)
    assert summary.unparsed == ("prose",)
    assert summary.failed == ("failed",)


def test_flips_are_the_questions_with_another_letter():
    other = {
        "right": score("right", "B", "The answer is D"),
        "wrong": score("wrong", "B", "(b)"),
        "prose": score("prose", "A", "Some cat"),
        "failed": score("failed", "A", "C"),
    }
    found = flips(ARM, other)
    assert found == (Flip("right", "B", "B", "D"), Flip("wrong", "B", "C", "B"), Flip("failed", "A", None, "C"))
    assert [(flip.lost, flip.won) for flip in found] == [(True, False), (False, True), (False, False)]


def test_flips_of_different_questions_are_refused():
    with pytest.raises(ValueError, match="asked of one side alone: failed, wrong"):
        flips(ARM, {"right": ARM["right"], "prose": ARM["prose"]})


@pytest.mark.parametrize("gold", ["", "E", "b", "AB"])
def test_a_gold_that_is_no_option_is_refused(gold):
    with pytest.raises(ValueError, match=rf"q1: gold: found '{gold}'; allowed: one of A, B, C, D"):
        score("q1", gold, "A")


def test_no_question_has_no_accuracy():
    with pytest.raises(ValueError, match="at least one"):
        summarise([])
