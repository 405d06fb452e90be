"""Scoring a run's kept answers: what each is worth, what does not come counts as wrong, and what is decided."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from kept_run import Said, write_run

from harness.accuracy.decision import Verdict
from harness.accuracy.models import Instead
from harness.accuracy.records import ItemScore
from harness.accuracy.score import score_run
from harness.accuracy.verdict import accuracy_verdict, exit_code, summaries_of, unscored
from harness.commands.run import exit_code as code_of_run
from harness.errors import RecordError, UsageError
from harness.records import CellRecord
from harness.report import build_report, render_markdown
from harness.report.machine import to_json

WORDS = [
    f"number {word} is right"
    for word in ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
]
RIGHT = [Said(words=words) for words in WORDS]
BOTH = ((1, "off"), (1, "on"), (2, "off"), (2, "on"))


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in recogniser is found as a user's own function would be."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def conversations(folder: Path, lines: Sequence[Mapping[str, object]]) -> Path:
    path = folder / "asked.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def speech(folder: Path, accept: str = "{max_wer: 0.05, max_wer_increase: 0.05}") -> str:
    lines = [
        {"id": f"i{number:02d}", "messages": [{"role": "user", "content": f"say: {words}"}], "expected": words}
        for number, words in enumerate(WORDS)
    ]
    return f"""\
  - dataset: conversation
    path: {conversations(folder, lines)}
    modalities: [text, audio]
    measure: speech
    wer: {{recogniser: "kept_run:spoken_words", normaliser: seed-tts}}
    accept: {accept}
    table: |
      name concurrency prompts output
      SAY  1           {len(WORDS)}      8
"""


def choice(folder: Path, accept: str = "{max_flips: 1}") -> str:
    lines = [
        {
            "id": f"q{number}",
            "messages": [{"role": "user", "content": "Which?"}],
            "options": ["red", "blue", "green"],
            "gold": "ABC"[number % 3],
        }
        for number in range(12)
    ]
    return f"""\
  - dataset: conversation
    path: {conversations(folder, lines)}
    measure: choice
    accept: {accept}
    table: |
      name concurrency prompts output
      ASK  1           12      8
"""


def scores(folder: Path, slug: str, check: str = "SAY") -> list[ItemScore]:
    lines = (folder / "run" / "accuracy" / check / f"{slug}.jsonl").read_text().splitlines()
    return [ItemScore.model_validate_json(line) for line in lines]


def test_equal_words_pass_and_every_score_is_written_down(tmp_path: Path) -> None:
    """WER is 0 in both arms; each answer has its line with what was heard and where."""
    store = write_run(tmp_path, speech(tmp_path), dict.fromkeys(BOTH, RIGHT))
    (summary,) = score_run(store)
    assert summary.verdict is Verdict.PASS
    assert [(arm.arm, arm.rounds, arm.answers, arm.failed) for arm in summary.arms] == [
        ("off", (1, 2), 24, 0),
        ("on", (1, 2), 24, 0),
    ]
    assert [arm.wer.mean for arm in summary.arms if arm.wer] == [0.0, 0.0]
    (first, *rest) = scores(tmp_path, "r02-2-on")
    assert len(rest) == 11
    assert (first.id, first.heard, first.wer, first.words) == ("i00", WORDS[0], 0.0, 4)
    assert first.audio == "trials/r02-2-on/SAY.audio/00000.wav"
    assert (store.path / first.audio).is_file()
    assert "kept_run:spoken_words" in (summary.recogniser or "")
    assert summary.normaliser == "seed-tts"


def test_what_did_not_come_is_wrong_and_counted(tmp_path: Path) -> None:
    """A failed request, an answer without audio and silence score WER 1 each: 3 of 12."""
    bad = [Said(failed=True), Said(words=None), Said(words=""), *RIGHT[3:]]
    store = write_run(tmp_path, speech(tmp_path), {(1, "off"): RIGHT, (1, "on"): bad})
    (summary,) = score_run(store)
    on = next(arm for arm in summary.arms if arm.arm == "on")
    assert on.wer is not None
    assert (on.answers, on.failed, on.wer.silent) == (12, 2, 1)
    assert on.wer.mean == pytest.approx(3 / 12)
    assert on.wer.corpus == pytest.approx(12 / 48)
    assert [one.flags for one in scores(tmp_path, "r01-2-on")[:4]] == [
        ("failed request",), ("no audio",), ("empty transcript",), (),
    ]  # fmt: skip


def test_wrong_words_fail_and_the_report_says_which_on_top(tmp_path: Path) -> None:
    """Half of the words replaced is worse by far than the margin; the reader sees it before the tables."""
    wrong = [Said(words=words.replace("right", "wrong").replace("number", "letter")) for words in WORDS]
    store = write_run(tmp_path, speech(tmp_path), {key: wrong if key[1] == "on" else RIGHT for key in BOTH})
    summaries = score_run(store)
    assert accuracy_verdict(summaries) is Verdict.FAIL
    assert exit_code(summaries) == 1
    failed = {(one.check, one.arm): one.value for one in summaries[0].judgements if one.verdict is Verdict.FAIL}
    assert failed == {("max_wer", "on"): pytest.approx(0.5), ("max_wer_increase", "on"): pytest.approx(0.5)}
    report = build_report(store)
    (machine,) = to_json(report)["accuracy"]
    assert (machine["check"], machine["verdict"]) == ("SAY", "fail")
    assert machine["summary"] == summaries[0].model_dump(mode="json")
    text = render_markdown(report)
    assert "> **Accuracy SAY: FAILED. max_wer of `on`: the mean 50.00% is above 5%; max_wer_increase" in text
    assert text.index("Accuracy SAY: FAILED") < text.index("## Request throughput")
    assert "kept_run:spoken_words" in text


@pytest.mark.parametrize(("given", "code"), [([Said(words="wrong words")] * len(WORDS), 1), (RIGHT, 4)])
def test_wrong_answers_are_told_even_where_no_pair_counted(tmp_path: Path, given: list[Said], code: int) -> None:
    """The run has not one valid pair of its bench: 4, unless its answers are wrong, which is 1 as in a gate."""
    store = write_run(tmp_path, speech(tmp_path), {key: given if key[1] == "on" else RIGHT for key in BOTH})
    score_run(store)
    report = build_report(store)
    assert not report.valid
    assert code_of_run(report) == code


def test_scoring_again_replaces_scores_and_needs_no_server(tmp_path: Path) -> None:
    """Another normaliser on the same audio: what differs in marks alone is equal to it."""
    marked = [Said(words=words.upper() + "!") for words in WORDS]
    store = write_run(tmp_path, speech(tmp_path), dict.fromkeys(BOTH, marked))
    assert unscored(store) == ("SAY",)
    assert "Accuracy SAY: not scored yet" in render_markdown(build_report(store))
    score_run(store)
    (before,) = summaries_of(store)
    assert before.verdict is Verdict.PASS
    assert unscored(store) == ()
    with pytest.raises(UsageError, match="normaliser: found 'none'"):
        score_run(store, Instead(normaliser="none"))
    assert summaries_of(store) == (before,)


def test_an_arm_that_was_not_measured_is_invalid(tmp_path: Path) -> None:
    """Nothing to compare is no pass."""
    store = write_run(tmp_path, speech(tmp_path), {(1, "off"): RIGHT, (2, "off"): RIGHT})
    (summary,) = score_run(store)
    assert summary.verdict is Verdict.INVALID
    assert all(one.reasons[:2] == ("r01-2-on: never asked", "r02-2-on: never asked") for one in summary.judgements)


def test_an_unfinished_run_is_invalid(tmp_path: Path) -> None:
    """What one round says is no pass while the other was never asked."""
    store = write_run(tmp_path, speech(tmp_path), {key: RIGHT for key in BOTH if key != (2, "on")})
    (summary,) = score_run(store)
    assert {one.verdict for one in summary.judgements} == {Verdict.INVALID}
    assert summary.judgements[0].reasons == ("r02-2-on: never asked",)


def test_answers_of_an_arm_that_is_not_what_it_claims_prove_nothing(tmp_path: Path) -> None:
    """Equal words out of a cache that never hit are no evidence for the cache."""
    store = write_run(tmp_path, speech(tmp_path), dict.fromkeys(BOTH, RIGHT))
    path = store.path / "trials" / "r01-2-on" / "SAY.json"
    cell = CellRecord.model_validate_json(path.read_text())
    why = "the cache is on, yet no token was looked up in the prefix cache"
    path.write_text(
        cell.model_copy(update={"cell": cell.cell.model_copy(update={"invalid": (why,)})}).model_dump_json()
    )
    (summary,) = score_run(store)
    assert summary.verdict is Verdict.INVALID
    assert summary.judgements[0].reasons == (f"r01-2-on: {why}",)


def test_a_baseline_that_never_answers_proves_nothing(tmp_path: Path) -> None:
    """Two arms that both fail are equal, and that is no pass."""
    accuracy = speech(tmp_path, "{max_wer_increase: 0.05}")
    store = write_run(tmp_path, accuracy, dict.fromkeys(BOTH, [Said(words=None)] * 12))
    (summary,) = score_run(store)
    assert summary.verdict is Verdict.INVALID
    assert summary.judgements[0].reasons == ("off: none of its 24 answers came",)


@pytest.mark.parametrize("instead", [Said("A", failed=True), Said("no idea")])
def test_questions_that_an_arm_does_not_answer_are_flips(tmp_path: Path, instead: Said) -> None:
    """All of an arm's requests fail, or none of its replies has a letter: every question flipped."""
    right = [Said("ABC"[number % 3]) for number in range(12)]
    store = write_run(tmp_path, choice(tmp_path), {key: [instead] * 12 if key[1] == "on" else right for key in BOTH})
    (summary,) = score_run(store)
    assert summary.verdict is Verdict.FAIL
    assert summary.judgements[0].value == 12.0


def test_replies_without_any_letter_prove_nothing(tmp_path: Path) -> None:
    """No letter is equal to no letter, and that is no pass."""
    store = write_run(tmp_path, choice(tmp_path), dict.fromkeys(BOTH, [Said("no idea")] * 12))
    (summary,) = score_run(store)
    assert summary.verdict is Verdict.INVALID
    assert summary.judgements[0].reasons == ("off: no letter in any of its 24 replies",)


@pytest.mark.parametrize("content", [None, b"", b"junk", "other"])
def test_kept_speech_is_what_was_received(tmp_path: Path, content: bytes | str | None) -> None:
    """Speech that was deleted, broken or replaced since is an error, and not an answer of the arm."""
    store = write_run(tmp_path, speech(tmp_path), dict.fromkeys(BOTH, RIGHT))
    path = store.path / "trials" / "r02-2-on" / "SAY.audio" / "00003.wav"
    other = (path.parent / "00004.wav").read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(other if isinstance(content, str) else content)
    with pytest.raises(RecordError, match=r"SAY\.audio/00003\.wav: found .*; allowed: what was received"):
        score_run(store)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "q1"}, r"items\.jsonl:1: found the id 'q1' more than once"),
        ({"gold": "Z"}, "gold: found 'Z' for 3 options"),
    ],
)
def test_items_that_were_edited_are_refused(tmp_path: Path, change: dict[str, str], said: str) -> None:
    """A line is named, and nothing is scored."""
    store = write_run(tmp_path, choice(tmp_path), dict.fromkeys(BOTH, [Said("A")] * 12))
    path = store.accuracy_path(f"{store.trials()[0].benches[0]}.items.jsonl")
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), **change}), *rest]) + "\n")
    with pytest.raises(RecordError, match=said):
        score_run(store)


def test_a_trial_that_begins_anew_takes_the_scores_away(tmp_path: Path) -> None:
    """They were of answers that will be others."""
    store = write_run(tmp_path, speech(tmp_path), dict.fromkeys(BOTH, RIGHT))
    score_run(store)
    assert unscored(store) == ()
    store.begin_trial(store.manifest().plan[-1])
    assert unscored(store) == ("SAY",)


def test_items_that_do_not_fit_the_scenario_are_refused(tmp_path: Path) -> None:
    """A file of items cut short is an error and not a smaller set."""
    store = write_run(tmp_path, speech(tmp_path), dict.fromkeys(BOTH, RIGHT))
    path = store.accuracy_path("SAY.items.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RecordError, match="found 11 items; allowed: all 12"):
        score_run(store)


def test_letters_flips_and_replies_without_one(tmp_path: Path) -> None:
    """Wrong over all questions; two flips against none in the control are more than one accepted, not yet proven."""
    right = [Said("ABC"[number % 3]) for number in range(12)]
    other = [Said("The answer is C."), Said("no idea"), *right[2:]]
    store = write_run(tmp_path, choice(tmp_path), {key: other if key[1] == "on" else right for key in BOTH})
    (summary,) = score_run(store)
    off, on = summary.arms
    assert off.accuracy == 1.0
    assert on.accuracy == pytest.approx(10 / 12)
    assert (on.correct, on.unparsed) == (20, ("q1",))
    assert [(flip.id, flip.round, flip.base, flip.other) for flip in summary.flips] == [
        ("q0", 1, "A", "C"), ("q1", 1, "B", None), ("q0", 2, "A", "C"), ("q1", 2, "B", None),
    ]  # fmt: skip
    (judged,) = summary.judgements
    assert (judged.value, judged.control, judged.verdict) == (2.0, 0.0, Verdict.INCONCLUSIVE)
    text = render_markdown(build_report(store))
    assert "Replies without a letter: `on`: q1." in text
    assert "| q0 | 1 | on | A | A | C |" in text


def test_parity_counts_beside_its_control(tmp_path: Path) -> None:
    """All answers differ from the baseline's, which repeats itself: a failure with its first differing position."""
    lines = [{"id": f"p{n}", "messages": [{"role": "user", "content": "Go on."}]} for n in range(12)]
    accuracy = f"""\
  - dataset: conversation
    path: {conversations(tmp_path, lines)}
    measure: parity
    accept: {{max_differing: 2}}
    table: |
      name concurrency prompts output
      SAME 1           12      8
"""
    one, two = [Said("the same words")] * 12, [Said("the sane words")] * 12
    store = write_run(tmp_path, accuracy, {key: two if key[1] == "on" else one for key in BOTH})
    (summary,) = score_run(store)
    control, arm = summary.parity
    assert (control.control, control.equal, control.differ) == (True, 12, 0)
    assert (arm.control, arm.equal, arm.differ, arm.first_difference) == (False, 0, 24, 6)
    assert summary.verdict is Verdict.FAIL
    assert (summary.judgements[0].value, summary.judgements[0].control) == (12.0, 0.0)
