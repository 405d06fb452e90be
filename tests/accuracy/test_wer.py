import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levenshtein import distance

from harness.accuracy.normalise import normaliser
from harness.accuracy.wer import item_wer, summarise

SEED_TTS = normaliser("seed-tts")
CHINESE = normaliser("seed-tts", "zh")
WORDS = st.lists(st.sampled_from(["a", "b", "c", "don't"]), max_size=12).map(" ".join)

# Edits and words counted by hand from the normalised texts; the rates follow from the definition, edits over words.
# (normaliser, language, reference, hypothesis, substitutions, deletions, insertions, words)
PAIRS = [
    ("seed-tts", "en", "twenty one", "21", 1, 1, 0, 2),
    ("seed-tts", "en", "21", "twenty one", 1, 0, 1, 1),
    ("seed-tts", "en", "a well-known fact", "a well known fact", 1, 0, 1, 3),
    ("seed-tts", "en", "a well-known fact", "a wellknown fact", 0, 0, 0, 3),
    ("seed-tts", "en", "Don't go.", "don't go", 0, 0, 0, 2),
    ("seed-tts", "en", "Don\u2019t go.", "don't go", 1, 0, 0, 2),
    ("seed-tts", "en", "do not go", "don't go", 1, 1, 0, 3),
    ("seed-tts", "en", "one two three", "", 0, 3, 0, 3),
    ("seed-tts", "en", "yes", "yes yes yes yes", 0, 0, 3, 1),
    ("seed-tts", "zh", "你好，世界。", "你好世界", 0, 0, 0, 4),  # noqa: RUF001 - a full-width comma
    ("seed-tts", "zh", "今天天气好", "今天天汽好", 1, 0, 0, 5),
    ("seed-tts", "zh", "二十一", "21", 2, 1, 0, 3),
    ("whisper-english", "en", "twenty-one", "21", 0, 0, 0, 1),
    ("whisper-english", "en", "Don't go.", "do not go", 0, 0, 0, 3),
    ("whisper-english", "en", "the colour, um, grey", "The color gray", 0, 0, 0, 3),
    ("whisper-english", "en", "a well-known fact", "a wellknown fact", 1, 1, 0, 4),
    ("whisper-english", "en", "Dr. Jones paid $5", "doctor jones paid five dollars", 0, 0, 0, 4),
    ("whisper-english", "en", "three cats", "four cats sat", 1, 0, 1, 2),
]


@pytest.mark.parametrize(("name", "language", "reference", "hypothesis", "subs", "dels", "inss", "words"), PAIRS)
def test_edits_of_tricky_pairs_equal_those_counted_by_hand(
    name, language, reference, hypothesis, subs, dels, inss, words
):
    item = item_wer(reference, hypothesis, normaliser(name, language))
    assert (item.edits, item.words) == (subs + dels + inss, words)
    assert (item.substitutions, item.deletions, item.insertions) == (subs, dels, inss)
    assert item.wer == (subs + dels + inss) / words


@given(WORDS, WORDS)
def test_edits_are_the_edit_distance_in_words(reference, hypothesis):
    item = item_wer(reference, hypothesis, SEED_TTS)
    assert item.edits == distance(reference.split(), hypothesis.split())
    assert item.words == len(reference.split())
    assert item.hits + item.substitutions + item.insertions == len(hypothesis.split())


@given(st.text("你好世界今天", max_size=8), st.text("你好世界今天", max_size=8))
def test_chinese_edits_are_the_edit_distance_in_characters(reference, hypothesis):
    assert item_wer(reference, hypothesis, CHINESE).edits == distance(reference, hypothesis)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "wer", "failed"),
    [
        ("", "", 0.0, False),
        ("...", "two words", 2.0, False),
        ("two words", "", 1.0, False),
        ("two words", "!", 1.0, False),
        ("two words", None, 1.0, True),
        ("", None, 1.0, True),
        ("yes", "yes it is what it is", 5.0, False),
    ],
)
def test_empty_texts_and_failures_score_as_documented(reference, hypothesis, wer, failed):
    item = item_wer(reference, hypothesis, SEED_TTS)
    assert (item.wer, item.failed) == (wer, failed)


def test_a_summary_tells_the_utterances_mean_from_the_corpus_rate():
    """Worked out by hand: rates 0, 1/2, 1 (silent), 1 (failed), 3 over 4 + 2 + 3 + 2 + 1 words and 9 edits."""
    items = [
        item_wer("one two three four", "one two three four", SEED_TTS),
        item_wer("one two", "one too", SEED_TTS),
        item_wer("one two three", "", SEED_TTS),
        item_wer("one two", None, SEED_TTS),
        item_wer("yes", "yes yes yes yes", SEED_TTS),
    ]
    summary = summarise(items)
    assert (summary.items, summary.failed, summary.silent) == (5, 1, 1)
    assert (summary.edits, summary.words) == (9, 12)
    assert summary.mean == pytest.approx(5.5 / 5)
    assert summary.median == 1.0
    assert summary.corpus == pytest.approx(0.75)
    assert summary.share_high == pytest.approx(3 / 5)


def test_a_rate_of_exactly_one_half_is_not_high():
    assert summarise([item_wer("one two", "one too", SEED_TTS)]).share_high == 0.0


def test_a_corpus_without_words_has_no_rate():
    assert math.isnan(summarise([item_wer("", "what", SEED_TTS)]).corpus)


def test_no_utterance_has_no_summary():
    with pytest.raises(ValueError, match="at least one"):
        summarise([])
