"""Which option a reply to a multiple-choice question means.

The rule, on the reply without its reasoning block (`<think>`) and without emphasis:

1. the reply is one letter, with or without brackets and marks: "b", "(B)", "**B**.";
2. else the last letter the reply *states*: after answer, option, choose, pick, "it is", "so", 答案, 选 and their
   like, or before "is correct", "is the answer", 正确; a letter that is denied ("not B") is none;
3. else the letter that leads the reply, set off by a mark ("C. Because ..."), unless other letters lead other
   lines, which is the list of options read back;
4. else the only lone capital in it, or letter in brackets ("the man on the left (C)").

Two letters offered for one answer ("A or B", "A and C") are no answer, nor is a letter that is no option.

This is not Daily-Omni's rule, which vLLM-Omni follows: there the first lone letter of the upper-cased text wins, so
an article is an answer ("A cat" means A, "I think a dog is B" means A), "A or B" means A, and so does "not A but B".
A server that drifts from letters into prose must not be credited with every fourth answer. On a bare letter, a
letter with a mark, "The answer is C" and "选B" both rules agree. Nor is what follows the word "assistant" the reply
here: chat servers send the reply alone, and the word occurs in answers about voices.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum

LETTERS = "ABCD"


class How(StrEnum):
    """What made a reply mean its letter, or no letter."""

    ALONE = "alone"
    STATED = "stated"
    LEADING = "leading"
    ONLY = "only letter"
    SEVERAL = "several letters"
    NONE = "no letter"
    FAILED = "no reply"


@dataclass(frozen=True, slots=True)
class Extraction:
    """`letter` is upper case, or None with the reason in `how`."""

    letter: str | None
    how: How


def extract(reply: str | None, letters: str = LETTERS) -> Extraction:
    """Which option `reply` means. `letters` are the options, upper case; a reply of None never came."""
    if reply is None:
        return Extraction(None, How.FAILED)
    text = _plain(reply)
    if alone := re.fullmatch(rf"[\W_]*([{letters}{letters.lower()}])[\W_]*", text):
        return Extraction(alone[1].upper(), How.ALONE)
    for rule, how in ((_stated, How.STATED), (_leading, How.LEADING), (_only, How.ONLY)):
        found = rule(text, letters)
        if len(found) == 1:
            return Extraction(found.pop(), how)
        if found:
            return Extraction(None, How.SEVERAL)
    return Extraction(None, How.NONE)


_THOUGHT = re.compile(r"^.*</think>|<think>.*$", re.DOTALL | re.IGNORECASE)
"""A reasoning block; one that was cut off leaves nothing behind it."""
_ROLE = re.compile(r"^\s*assistant\s*[:\n]\s*", re.IGNORECASE)
_TAG = re.compile(r"</?[a-z]+>", re.IGNORECASE)
_DRESS = re.compile(
    r"""\\(?:boxed|text|mathbf|textbf)\b|[*_`~#$\\{}"\u201c\u201d]|(?<![A-Za-z0-9])'(?=[A-Za-z]')|(?<='[A-Za-z])'"""
)


def _plain(reply: str) -> str:
    """The reply itself: full-width forms made plain; reasoning, tags, emphasis and quotation marks gone."""
    text = _ROLE.sub("", _THOUGHT.sub("", unicodedata.normalize("NFKC", reply)))
    return _DRESS.sub("", _TAG.sub(" ", text).replace("\u2019", "'")).strip()


_NOUN = r"(?:answers?|options?|choices?|letter|response)"

_CUE = rf"""
    (?: \b{_NOUN} (?:\s+ (?:to|for|of|here|in|from)\b [^.:\n]{{0,60}}?)?
      | \b(?: choose | chose | pick(?:ed)? | select(?:ed)? | go(?:ing)?\ (?:with|for) | went\ with | say | guess )
      | \b(?: it | that )(?='s|\s)
      | \b(?: so | thus | hence | therefore | actually | correct | right | best )\b (?:\s+one\b)?
      | \bno(?=,)
      | (?: 答案 | 选项 | 选择? )
    )
    (?: 's
      | \s* (?: :|=|- | \b(?:is|was|are)\b | (?:would|should|must|will|has\ to)\ be\b | 应该? | 是 | 为 | 选 )
    )*
    [\s,:(\[]* (?: (?:most\ likely|probably|clearly|definitely)\s+ )? (?:the\s+)? (?:{_NOUN}[\s:]*)? [(\[]?
"""
"""What is said before an answer; the letter follows at once."""

_CONFIRMED = r"""
    [\s)\].,]* (?: (?:is|was|seems|looks)\s+ (?:the\s+)? (?:(?:most\s+likely|clearly)\s+)?
                   (?:correct|right|true|best|answer)
                 | (?:选项)? [是为]? (?:正确|对的) )
"""
"""What is said after an answer."""

_DENIED_BEFORE = r"""
    (?: (?: \b(?: not | never | cannot | rather\ than | instead\ of | except | eliminat\w+ | exclud\w+ | rul\w+\ out
              | neither | nor ) | n't
          | 不是 | 不选 | 排除 )
        (?: \s+ be\b )? \s* (?:the\s+)? (?: (?:answer|option|choice)\s+ | 选项 )?
        (?: [\s(]* [A-Z] [\s)]* (?: \b(?:or|nor|and)\b | 或 | 和 ) )?
      | (?: \bnot | n't ) \s+ (?: think | believe | say | agree ) \b [^.,;:?!\n]{0,30}
    ) [\s(:]* $
"""
_DENIED_AFTER = r"""
    [\s)\].,]* (?: (?:is|was|are|does|do|can|could)(?:n't|\s+not)\b
                 | (?:is|was|are|seems?)\s+ (?:clearly\s+)? (?:wrong|incorrect|false)
                 | (?:选项)? (?:不对|不正确|错|是错)
                 | (?: is\s+ (?:correct|right) \s* )? \? )
"""

_JOINT = r"[\s)\]]* (?: [,/&+、和或与及] | 还是 | 或者 | ,?\s*\b(?:or|and)\b ) \s* (?:option\s+)? [(\[]?"
"""What joins two letters that are offered together."""

_GOING_ON = "and|or|as|because|since|for|due|given|based|which|but|here|is|was|are|in my|would|seems|with"
"""Words that go on after an answer; before any other word in lower case an A is an article."""


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.VERBOSE | re.IGNORECASE)


_CUE_HERE = _compiled(_CUE + "$")
_CONFIRMED_HERE = _compiled(_CONFIRMED)
_DENIED_BEFORE_HERE = _compiled(_DENIED_BEFORE)
_DENIED_AFTER_HERE = _compiled(_DENIED_AFTER)
_JOINT_HERE = _compiled(_JOINT)
_JOINT_BEFORE = _compiled(_JOINT + "$")
_ARTICLE = re.compile(rf"\s+(?!(?:{_GOING_ON})\b)[a-z]")
_SET_OFF = re.compile(r"[)\]]?(?:\s*[.):,;\]]|\s+[-\u2013\u2014]\s|[ \t]*(?:\n|$))")
_CLOSED = re.compile(r"\s*(?:[).,:;\]]|$)")


def _lone(text: str, letters: str) -> list[re.Match[str]]:
    """Option letters that are no part of a word and no article, in their order."""
    either = letters + letters.lower()
    token = re.compile(rf"(?<![A-Za-z0-9'\-])[{either}](?![A-Za-z0-9]|'[A-Za-z]|-[A-Za-z])")
    return [one for one in token.finditer(text) if one[0] not in "Aa" or not _ARTICLE.match(text, one.end())]


def _stated(text: str, letters: str) -> set[str]:
    """The letters of the last statement: one, or several where it offers several."""
    last: re.Match[str] | None = None
    for one in _lone(text, letters):
        if _denied(text, one):
            continue
        capital = one[0].isupper()
        cued = _CUE_HERE.search(text, max(0, one.start() - 120), one.start())
        confirmed = capital and _CONFIRMED_HERE.match(text, one.end())
        if confirmed or (cued and (capital or _CLOSED.match(text, one.end()))):
            last = one
    return _with_rivals(text, last, letters) if last else set()


def _leading(text: str, letters: str) -> set[str]:
    """The letter at the start, set off by a mark; all leading letters where lines read the options back."""
    led = [one for line in text.splitlines() if (one := _lead(line.strip(), letters))]
    first = _lead(text, letters)
    return {one[0].upper() for one in led} | _with_rivals(text, first, letters) if first else set()


def _lead(line: str, letters: str) -> re.Match[str] | None:
    start = len(line) - len(line.lstrip("(["))
    lone = _lone(line[: start + 40], letters)
    return lone[0] if lone and lone[0].start() == start and _SET_OFF.match(line, lone[0].end()) else None


def _only(text: str, letters: str) -> set[str]:
    """All lone capitals and letters in brackets, but for those denied."""
    return {
        one[0].upper()
        for one in _lone(text, letters)
        if (
            one[0].isupper()
            or (text[one.start() - 1 : one.start()] in "([" and text[one.end() : one.end() + 1] in ")]")
        )
        and not _denied(text, one)
    }


def _with_rivals(text: str, match: re.Match[str], letters: str) -> set[str]:
    """The letter and those joined to it: "A or B", "A/B", "A, B and C", "A 和 B"."""
    lone = [one for one in _lone(text, letters) if one[0].isupper() or one.start() == match.start()]
    at = next(number for number, one in enumerate(lone) if one.start() == match.start())
    found = {match[0].upper()}
    for left, right in zip(lone[at:], lone[at + 1 :], strict=False):
        joint = _JOINT_HERE.match(text, left.end())
        if not joint or joint.end() != right.start():
            break
        found.add(right[0].upper())
    for right, left in zip(lone[at::-1], lone[at - 1 :: -1] if at else [], strict=False):
        joint = _JOINT_BEFORE.search(text, left.end(), right.start())
        if not joint or joint.start() != left.end():
            break
        found.add(left[0].upper())
    return found


def _denied(text: str, match: re.Match[str]) -> bool:
    start = max(0, match.start() - 40)
    return bool(_DENIED_BEFORE_HERE.search(text[start : match.start()]) or _DENIED_AFTER_HERE.match(text, match.end()))
