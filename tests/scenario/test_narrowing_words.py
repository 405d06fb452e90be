"""--only and --arms as a person types them: again, with commas, or with a space too many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.commands.run import Narrowing, narrowed
from harness.errors import UsageError

ROOT = Path(__file__).parent.parent.parent
TEXT = """\
schema: 1
name: words
model: tiny-omni
server: {kind: tiny-omni}
arms:
  off: {baseline: true}
  on: {prefix_cache: bundled}
  other: {}
rounds: 1
order: latin
workloads:
  - dataset: random
    table: |
      name     shared_prefix random_len output range_ratio concurrency prompts seed
      warm     0             8          4      0.0         1           1       1
      P64_h0   0             8          4      0.0         1           1       2
      P64_h50  8             8          4      0.0         1           1       3
      DEC      0             8          4      0.0         1           1       4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "words.yaml"
    path.write_text(TEXT)
    return path


def planned(*words: str) -> tuple[set[str], set[str]]:
    """Arms and benches of the plan that `bench check` prints."""
    done = CliRunner().invoke(app, ["check", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    text = json.dumps(json.loads(done.stdout))
    return (
        {arm for arm in ("off", "on", "other") if f'"{arm}"' in text},
        {bench for bench in ("warm", "P64_h0", "P64_h50", "DEC") if f'"{bench}"' in text},
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--arms", "off,other", "--only", "DEC,P64_h0"),
        ("--arms", "off", "--arms", "other", "--only", "DEC", "--only", "P64_h0"),
        ("--arms=off, other", "--only=DEC,P64_h0,DEC"),
        ("--arms", "off,other", "--only", "D*,*_h0"),
    ],
    ids=["commas", "again", "a space behind the comma", "patterns"],
)
def test_names_are_given_again_or_with_commas(file: Path, words: tuple[str, ...]) -> None:
    """No name holds a comma, so one parts two names or patterns."""
    assert planned(str(file), *words) == ({"off", "other"}, {"warm", "P64_h0", "DEC"})


@pytest.mark.parametrize("name", ["on", "on,no", "off,", ","])
def test_each_name_of_a_list_is_held_against_the_scenario(file: Path, name: str) -> None:
    """Nothing between two commas is no name, and not everything."""
    with pytest.raises(UsageError, match="--arms: found"):
        CliRunner().invoke(app, ["check", str(file), "--arms", name], catch_exceptions=False)


@pytest.mark.parametrize("command", ["check", "run", "nightly"])
def test_a_word_left_over_is_told_how_names_are_given(file: Path, command: str) -> None:
    """`--arms off on` leaves a word over; the message says what to type instead. Nothing was started."""
    policy = ("--policy", str(ROOT / "policies" / "default.yaml")) if command == "nightly" else ()
    for words in ((str(file), "--arms", "off", "on"), (str(file), "--only", "DEC", "on")):
        with pytest.raises(UsageError) as refused:
            CliRunner().invoke(app, [command, *policy, *words], catch_exceptions=False)
        assert str(refused.value) == (
            f"bench {command}: found 'on' left over; allowed: one FILE; --only and --arms may be given again, "
            "or take several names with commas (--arms a,b)"
        )


def test_an_option_that_no_command_has_is_still_refused(file: Path) -> None:
    done = CliRunner().invoke(app, ["check", str(file), "--arm", "off"])
    assert done.exit_code == 2
    assert "--arm" in done.output


def test_the_beginning_of_a_name_is_answered_with_its_pattern(file: Path) -> None:
    """Only where a bench begins so; a name that is whole needs no hint."""
    with pytest.raises(UsageError) as refused:
        narrowed(file, Narrowing(only=("P64",)))
    assert str(refused.value) == (
        "--only: found 'P64'; allowed: warm, P64_h0, P64_h50, DEC (or a pattern that fits one: 'P64*' fits P64_h0, "
        "P64_h50)"
    )
    for none in ("Q", ""):
        with pytest.raises(UsageError, match=r"\(or a pattern that fits one\)$"):
            narrowed(file, Narrowing(only=(none,)))
    assert [bench.name for bench in narrowed(file, Narrowing(only=("DEC",))).benches] == ["warm", "DEC"]
