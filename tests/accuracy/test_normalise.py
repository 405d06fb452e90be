import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.accuracy.normalise import CHINESE_MARKS, language_of, normaliser, strange_letters
from harness.errors import MissingDependency, UsageError

# Source of the definition: run_wer.py of BytedanceSpeech/seed-tts-eval (delete zhon.hanzi.punctuation and
# string.punctuation but for the apostrophe, lower case); expected values worked out by hand from it.
SEED_TTS_ENGLISH = [
    ("Hello, World!", "hello world"),
    ("twenty-one", "twentyone"),
    ("21", "21"),
    ("It's 5%.", "it's 5"),
    ("don't", "don't"),
    ("don\u2019t", "dont"),
    ("'Tis the dogs' bone", "'tis the dogs' bone"),
    ("U.S. $3,000.50", "us 300050"),
    ("well\u2014known  fact", "wellknown fact"),
    ("a - b", "a b"),
    ("Na\u00efve Caf\u00e9", "na\u00efve caf\u00e9"),
    ("colour", "colour"),
    ("...", ""),
    ("", ""),
    ("  \n\t ", ""),
]

# The same script for zh: marks deleted, then one word a character; Latin letters keep their case.
SEED_TTS_CHINESE = [
    ("你好，世界！", "你 好 世 界"),  # noqa: RUF001 - full-width marks are the case
    ("我有21个AI。", "我 有 2 1 个 A I"),
    ("《书》·名", "书 名"),
    ("一 二\t三", "一 二 三"),
    ("“是”…", "是"),
    ("。", ""),
    ("", ""),
]

# Source of the definition: EnglishTextNormalizer of openai-whisper 20250625 (Radford et al. 2022, appendix C, lists
# the steps); expected values worked out by hand from the steps.
WHISPER_ENGLISH = [
    ("Hello, World!", "hello world"),
    ("twenty-one", "21"),
    ("twenty one", "21"),
    ("21", "21"),
    ("ten thousand and one", "10001"),
    ("one oh one", "101"),
    ("double seven", "77"),
    ("the first, the 2nd", "the 1st the 2nd"),
    ("3,000.50", "3000.50"),
    ("It's 5 percent.", "it is 5%"),
    ("$20 million", "$20000000"),
    ("don't", "do not"),
    ("won't", "will not"),
    ("Mr. Smith's cat", "mister smith is cat"),
    ("co-operate", "co operate"),
    ("colour", "color"),
    ("na\u00efve caf\u00e9", "naive cafe"),
    ("um, (laughs) hi [music]", "hi"),
    ("uh", ""),
    ("\u2014", ""),
    ("", ""),
    ("你好 world", "你好 world"),
]


@pytest.mark.parametrize(("text", "expected"), SEED_TTS_ENGLISH)
def test_seed_tts_english_deletes_marks_and_lowers_case(text, expected):
    assert normaliser("seed-tts")(text) == expected


@pytest.mark.parametrize(("text", "expected"), SEED_TTS_CHINESE)
def test_seed_tts_chinese_is_one_word_a_character(text, expected):
    assert normaliser("seed-tts", "zh")(text) == expected


@pytest.mark.parametrize(("text", "expected"), WHISPER_ENGLISH)
def test_whisper_english_expands_contractions_and_numbers(text, expected):
    assert normaliser("whisper-english")(text) == expected


@given(st.text())
def test_seed_tts_leaves_no_mark_but_the_apostrophe(text):
    """Checked character by character, without translation tables."""
    marks = set(CHINESE_MARKS) | set(string.punctuation) - {"'"}
    kept = "".join(character for character in text if character not in marks).lower()
    assert normaliser("seed-tts")(text).split(" ") == (kept.split() or [""])


def test_the_chinese_marks_are_the_82_of_zhon():
    assert len(set(CHINESE_MARKS)) == len(CHINESE_MARKS) == 82


@pytest.mark.parametrize(("text", "language"), [("Hello", "en"), ("我 like it", "zh"), ("", "en"), ("\u3042", "en")])
def test_the_language_is_chinese_where_a_han_character_stands(text, language):
    assert language_of(text) == language


@pytest.mark.parametrize(
    ("name", "language", "message"),
    [
        ("basic", "en", "normaliser: found 'basic'; allowed: whisper-english, seed-tts"),
        ("seed-tts", "de", "normaliser seed-tts: found language 'de'; allowed: en, zh"),
        ("whisper-english", "zh", "normaliser whisper-english: found language 'zh'; allowed: en"),
    ],
)
def test_what_has_no_rules_is_refused(name, language, message):
    with pytest.raises(UsageError) as refused:
        normaliser(name, language)
    assert str(refused.value) == message


def test_a_missing_package_is_one_message_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "whisper.normalizers", None)
    with pytest.raises(MissingDependency, match=r"normaliser whisper-english: .*; install it: pip .*prefix-bench"):
        normaliser("whisper-english")


@pytest.mark.parametrize(
    ("text", "strange"),
    [
        ("It's 3 o'clock, naïve café.", ""),
        ("你好 AI 世界", ""),
        ("the letter ж alone", ""),
        ("東京へ行く", "へく"),
        ("안녕하세요", "안녕하세요"),
        ("привет", "привет"),
        ("12 34", ""),
    ],
)
def test_scripts_without_rules_are_told(text, strange):
    """Kana and Hangul always, other scripts where they are most of the letters."""
    assert strange_letters(text) == strange
