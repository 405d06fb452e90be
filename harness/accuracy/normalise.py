"""Texts made comparable before their words are counted. A WER means nothing without the name of its normaliser.

`whisper-english` is the `EnglishTextNormalizer` of openai-whisper (Radford et al. 2022, appendix C): contractions
and numbers are expanded, British spelling becomes American, hesitations and bracketed remarks go. Use it for what
people said and models wrote in different ways.

`seed-tts` is what the Seed-TTS paper's scripts do (BytedanceSpeech/seed-tts-eval, `run_wer.py`), and vLLM-Omni with
them: marks are deleted, not replaced by a space, the ASCII apostrophe stays; English becomes lower case, Chinese is
split into characters. No number is expanded ("twenty one" against "21" scores 2 edits on 2 words), a hyphenated
word becomes one, and the typographic apostrophe (U+2019) counts as a mark and goes.
"""

from __future__ import annotations

import string
import unicodedata
import warnings
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, get_args

from harness.accuracy.packages import load_package
from harness.errors import UsageError

Normaliser: TypeAlias = Callable[[str], str]
"""Text in, words separated by single spaces out."""

NormaliserName = Literal["whisper-english", "seed-tts"]

CHINESE_MARKS = (
    "＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､　、〃〈〉《》「」『』【】〔〕〖〗〘〙〚〛〜〝〞"  # noqa: RUF001 - these very characters
    "〟〰〾〿–—‘’‛“”„‟…‧﹏﹑﹔·．！？｡。"  # noqa: RUF001 - these very characters
)
"""`zhon.hanzi.punctuation` of zhon 2.1.1, the list the scripts use: 82 characters."""

_DELETED = str.maketrans("", "", (CHINESE_MARKS + string.punctuation).replace("'", ""))


def seed_tts_english(text: str) -> str:
    return " ".join(text.translate(_DELETED).lower().split())


def seed_tts_chinese(text: str) -> str:
    """One word a character. Latin letters keep their case and are characters too, as in the scripts."""
    return " ".join("".join(text.translate(_DELETED).split()))


_SEED_TTS: Mapping[str, Normaliser] = {"en": seed_tts_english, "zh": seed_tts_chinese}


def language_of(text: str) -> Literal["en", "zh"]:
    """`zh` for a text with a Han character, else `en`. Ask it about the reference, never about what was heard."""
    return "zh" if any(_is_han(character) for character in text) else "en"


def strange_letters(text: str) -> str:
    """The letters of a text when it is in a script that no normaliser here has rules for, neither Latin nor Han.

    Empty for a text of which most letters are of these. Kana and Hangul count at once: beside them Han is not Chinese.
    """
    letters = [character for character in text if character.isalpha()]
    strange = [one for one in letters if not _is_han(one) and not unicodedata.name(one, "").startswith("LATIN")]
    east = [one for one in strange if unicodedata.name(one, "").startswith(("HIRAGANA", "KATAKANA", "HANGUL"))]
    return "".join(east or (strange if 2 * len(strange) > len(letters) else []))


def normaliser(name: str, language: str = "en") -> Normaliser:
    """The normaliser of that name.

    Parameters:
        name: `whisper-english` or `seed-tts`.
        language: `en` or `zh`; `zh` exists for `seed-tts` alone.

    Raises:
        UsageError: an unknown name, or a language the normaliser has no rules for.
        MissingDependency: `whisper-english` without openai-whisper.
    """
    if name not in get_args(NormaliserName):
        raise UsageError(f"normaliser: found {name!r}; allowed: {', '.join(get_args(NormaliserName))}")
    if language not in languages_of(name):
        raise UsageError(f"normaliser {name}: found language {language!r}; allowed: {', '.join(languages_of(name))}")
    return _SEED_TTS[language] if name == "seed-tts" else _whisper_english()


def languages_of(name: str) -> tuple[str, ...]:
    """The languages a normaliser has rules for."""
    return tuple(_SEED_TTS) if name == "seed-tts" else ("en",)


def _whisper_english() -> Normaliser:
    normalizers = load_package("whisper.normalizers", "normaliser whisper-english")
    with warnings.catch_warnings():
        # Its table of spellings is read from a file that is never closed.
        warnings.simplefilter("ignore", ResourceWarning)
        clean = normalizers.EnglishTextNormalizer()

    def whisper_english(text: str) -> str:
        return " ".join(clean(text).split())

    return whisper_english


def _is_han(character: str) -> bool:
    return "\u3400" <= character <= "\u9fff" or "\uf900" <= character <= "\ufaff" or character >= "\U00020000"
