"""Scenario files: a right one becomes benches, a wrong one gives one message with place, found and allowed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ExitCode, ScenarioError
from harness.scenario import Scenario, load_scenario, scenario_sha256

GOOD = """\
schema: 1
name: small
model: tiny-omni
server:
  kind: tiny-omni
  args: {max-num-seqs: 8}
arms:
  cache_off:
    baseline: true
  cache_on: {prefix_cache: bundled}
rounds: 2
workloads:
  - dataset: random
    modalities: [text]
    table: |
      # what each bench is for
      name  shared_prefix random_len output range_ratio concurrency prompts seed

      warm  32            32         4      0.0         2           4       1
      P64   0             64         4      0.5         2           8       2   # no prefix
  - dataset: prefix_repetition
    endpoint: completions
    table: |
      name prefix_len suffix_len num_prefixes output concurrency prompts seed request_rate
      R4   32         16         4            4      2           8       3    inf
      R4o  32         16         4            4      2           8       3    2.5
"""
TOP_KEYS = (
    "schema, name, description, model, tokenizer, server, arms, rounds, order, until, passes, seed, validity, profile, "
    "workloads, accuracy"
)
ARM_KEYS = "baseline, url, args, env, python, source, deploy, prefix_cache"
BLOCK_KEYS = (
    "dataset, modalities, endpoint, client, ignore_eos, extra_body, request_rate, burstiness, reported, path, locale, "
    "first, task, media, table"
)
HEADER = "name shared_prefix random_len output range_ratio concurrency prompts seed"
NAME_RULE = "letters, digits and . _ + - after a first letter or digit"
TABLE = "workloads[0].table"
P64 = f":20: {TABLE} row 'P64'"
R4 = ":25: workloads[1].table row 'R4'"


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "small.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def message(path: Path) -> str:
    """The message of the one error, from behind the file's name."""
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert caught.value.exit_code == ExitCode.USAGE
    text = str(caught.value)
    assert text.startswith(str(path))
    return text.removeprefix(str(path))


def test_a_file_becomes_benches_in_file_order_with_their_block_settings(tmp_path: Path) -> None:
    """Rows of all tables are flattened; a block's settings and a row's request_rate reach its benches."""
    scenario = load_scenario(write(tmp_path, GOOD))

    assert [bench.name for bench in scenario.benches] == ["warm", "P64", "R4", "R4o"]
    warm, plain, closed, opened = scenario.benches
    assert (warm.reported, plain.reported) == (False, True)
    assert (plain.shared_prefix, plain.random_len, plain.range_ratio, plain.prefix_len) == (0, 64, 0.5, None)
    assert (closed.prefix_len, closed.suffix_len, closed.num_prefixes, closed.shared_prefix) == (32, 16, 4, None)
    assert (plain.endpoint, closed.endpoint) == ("chat", "completions")
    assert (closed.request_rate, opened.request_rate) == (None, 2.5)
    assert scenario.baseline == "cache_off"
    assert scenario.order == "abba"


def test_arms_may_bear_the_names_that_yaml_takes_for_booleans(tmp_path: Path) -> None:
    """`off` and `on` are names as keys, and booleans as values."""
    text = GOOD.replace("cache_off", "off").replace("cache_on: {", "on: {args: {enable-prefix-caching: on}, ")
    scenario = load_scenario(write(tmp_path, text))
    assert list(scenario.arms) == ["off", "on"]
    assert scenario.arms["on"].args == {"enable-prefix-caching": True}


def test_one_arm_that_is_the_baseline_is_a_scenario(tmp_path: Path) -> None:
    """A single arm needs no partner."""
    scenario = load_scenario(write(tmp_path, GOOD.replace("  cache_on: {prefix_cache: bundled}\n", "")))
    assert list(scenario.arms) == ["cache_off"]


def test_a_row_at_rate_inf_drops_its_blocks_burstiness(tmp_path: Path) -> None:
    """Burstiness shapes open-loop arrivals only."""
    scenario = load_scenario(write(tmp_path, GOOD.replace("completions", "completions\n    burstiness: 0.5")))
    assert [bench.burstiness for bench in scenario.benches] == [None, None, None, 0.5]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("schema: 1", "schema: 2", ":1: schema: found 2 (a whole number); allowed: 1"),
        ("schema: 1", "schema: true", ":1: schema: found true (true or false); allowed: 1"),
        ("schema: 1\n", "", ": schema: found nothing; allowed: a value: the key is required"),
        (
            "model: tiny",
            "modle: tiny",
            f":3: modle: found an unknown key (did you mean 'model'?); allowed: {TOP_KEYS}",
        ),
        ("rounds: 2", "rounds: 2\nbenches: []", f":12: benches: found an unknown key; allowed: {TOP_KEYS}"),
        (
            "{prefix_cache:",
            "{prefix_cach:",
            f":10: arms.cache_on.prefix_cach: found an unknown key (did you mean 'prefix_cache'?); allowed: {ARM_KEYS}",
        ),
        (
            "modalities:",
            "modalites:",
            f":14: workloads[0].modalites: found an unknown key (did you mean 'modalities'?); allowed: {BLOCK_KEYS}",
        ),
        ("rounds: 2", 'rounds: "2"', ":11: rounds: found '2' (text); allowed: a whole number"),
        ("rounds: 2", "rounds: true", ":11: rounds: found true (true or false); allowed: a whole number"),
        ("rounds: 2", "rounds: 2.0", ":11: rounds: found 2.0 (a number); allowed: a whole number"),
        ("rounds: 2", "rounds: 0", ":11: rounds: found 0 (a whole number); allowed: 1 or more"),
        ("rounds: 2", "rounds:", ":11: rounds: found nothing (null); allowed: a whole number"),
        (
            "rounds: 2",
            "rounds: 2\nrounds: 3",
            ":12: rounds: found the key twice (first on line 11); allowed: each key once",
        ),
        (
            "rounds: 2",
            "rounds: 2\norder: abab",
            ":12: order: found 'abab' (text); allowed: 'abba', 'alternate', 'random', 'latin' or 'aa'",
        ),
        (
            "  cache_on:",
            "  third: {}\n  cache_on:",
            ":7: arms: found order abba with 3 arms; allowed: order latin, alternate or random",
        ),
        (
            "  cache_on: {prefix_cache: bundled}\nrounds: 2",
            "rounds: 2\norder: latin",
            ":11: order: found order latin with 1 arm; allowed: order abba, alternate or random",
        ),
        ("name: small", "name: ../small", f":2: name: found '../small' (text); allowed: {NAME_RULE}"),
        ("cache_on:", "cache/on:", f":10: arms.cache/on: found 'cache/on' (text); allowed: {NAME_RULE}"),
        (
            "cache_on: {prefix_cache: bundled}",
            "cache_on:",
            ":10: arms.cache_on: found nothing (null); allowed: a mapping",
        ),
        (
            "cache_on:",
            "cache_off:",
            ":10: arms.cache_off: found the key twice (first on line 8); allowed: each key once",
        ),
        (
            "    baseline: true",
            "    baseline: false",
            ":7: arms: found no baseline; allowed: exactly one arm with `baseline: true`",
        ),
        (
            "{prefix_cache: bundled}",
            "{baseline: true}",
            ":7: arms: found 2 baselines (cache_off, cache_on); allowed: exactly one arm with `baseline: true`",
        ),
        (
            "kind: tiny-omni",
            "kind: vlm",
            ":5: server.kind: found 'vlm' (text); allowed: 'tiny-omni', 'vllm', 'vllm-omni' or 'external'",
        ),
        ("  kind: tiny-omni\n", "", ":4: server.kind: found nothing; allowed: a value: the key is required"),
        (
            "max-num-seqs: 8",
            "max-num-seqs: [8]",
            ":6: server.args.max-num-seqs: found a list; allowed: text, a whole number, a number or true or false",
        ),
        (
            "args: {max-num-seqs: 8}",
            "ready_timeout: 1e400",
            ":6: server.ready_timeout: found '1e400'; allowed: a finite number",
        ),
        (
            "[text]",
            "[txt]",
            ":14: workloads[0].modalities[0]: found 'txt' (text); allowed: 'text' or 'audio'",
        ),
        (
            "[text]",
            "[]",
            ":14: workloads[0].modalities: found []; allowed: each modality once, at least one",
        ),
        (
            "modalities: [text]",
            "request_rate: fast",
            ":14: workloads[0].request_rate: found 'fast' (text); allowed: a number or 'inf'",
        ),
        (
            "modalities: [text]",
            "burstiness: 1.0",
            ":14: workloads[0].burstiness: found a burstiness without a request_rate; allowed: both, or neither",
        ),
        (
            "completions",
            "completions\n    request_rate: 3.0",
            ":23: workloads[1].request_rate: found a request_rate beside the table's own column; "
            "allowed: one of the two",
        ),
        (
            "completions",
            "completions\n    modalities: [text, audio]",
            ":23: workloads[1].modalities: found audio from endpoint completions; allowed: [text], or endpoint chat",
        ),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    """One message says where, what was found and what is allowed."""
    assert old in GOOD
    assert message(write(tmp_path, GOOD.replace(old, new, 1))) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "8       2   #",
            "8           #",
            f":20: {TABLE} row 2 'P64': found 7 columns (P64 0 64 4 0.5 2 8); allowed: 8 columns: {HEADER}",
        ),
        (
            "8       2   #",
            "8       2 9 #",
            f":20: {TABLE} row 2 'P64': found 9 columns (P64 0 64 4 0.5 2 8 2 9); allowed: 8 columns: {HEADER}",
        ),
        (
            "prompts seed\n\n",
            "prompts sed\n\n",
            f":17: {TABLE} header: found the unknown column 'sed'; allowed: {HEADER} (and optionally: request_rate)",
        ),
        (
            "prompts seed\n\n",
            "prompts\n\n",
            f":17: {TABLE} header: found no column 'seed'; allowed: {HEADER} (and optionally: request_rate)",
        ),
        (
            "prompts seed\n\n",
            "prompts seed seed\n\n",
            f":17: {TABLE} header: found twice the column 'seed'; allowed: {HEADER} (and optionally: request_rate)",
        ),
        ("P64   0 ", "P64   x ", f"{P64} column 'shared_prefix': found 'x' (text); allowed: a whole number"),
        ("P64   0 ", "P64  -1 ", f"{P64} column 'shared_prefix': found -1 (a whole number); allowed: 0 or more"),
        ("P64   0 ", "P64  1.5", f"{P64} column 'shared_prefix': found 1.5 (a number); allowed: a whole number"),
        ("P64   0 ", "P64  1_0", f"{P64} column 'shared_prefix': found '1_0' (text); allowed: a whole number"),
        ("0.5  ", "1.0  ", f"{P64} column 'range_ratio': found 1.0 (a number); allowed: less than 1.0"),
        ("0.5  ", "nan  ", f"{P64} column 'range_ratio': found 'nan' (text); allowed: a number"),
        (
            "P64   0             64",
            "P64   0             0 ",
            f"{P64}: found a prompt of 0 tokens; allowed: shared_prefix + random_len * (1 - range_ratio) of 1 or more",
        ),
        (
            "P64 ",
            "P/6 ",
            f":20: {TABLE} row 'P/6' column 'name': found 'P/6' (text); allowed: {NAME_RULE}",
        ),
        (
            "P64  ",
            "trial",
            f":20: {TABLE} row 'trial' column 'name': found 'trial', the name of another record; "
            "allowed: any other name",
        ),
        (
            "P64  ",
            "server",
            f":20: {TABLE} row 'server' column 'name': found 'server', the name of another record; "
            "allowed: any other name",
        ),
        (
            "P64 ",
            "warm",
            f":20: {TABLE} row 'warm': found the name again (first on line 19); allowed: a name per bench",
        ),
        ("P64 ", "R4  ", f"{R4}: found the name again (first on line 20); allowed: a name per bench"),
        (
            "4            4      2           8       3    inf",
            "9            4      2           8       3    inf",
            f"{R4} column 'prompts': found 8 (a whole number); allowed: a multiple of num_prefixes, 9",
        ),
        (
            "8       3    inf",
            "10      3    inf",
            f"{R4} column 'prompts': found 10 (a whole number); allowed: a multiple of num_prefixes, 4",
        ),
        ("3    inf", "3    0", f"{R4} column 'request_rate': found 0 (a whole number); allowed: 1e-06 or more"),
        (
            "3    inf",
            "4294967296 inf",
            f"{R4} column 'seed': found 4294967296 (a whole number); allowed: 0 to 4294967295",
        ),
        (
            "table: |\n      #",
            "table: >\n      #",
            f":15: {TABLE}: found text on one line; allowed: a literal block: `table: |` with the rows below it",
        ),
    ],
)
def test_a_wrong_table_is_named_with_row_and_column(tmp_path: Path, old: str, new: str, expected: str) -> None:
    """A table's message names the row, its line in the file, and the column or the header."""
    assert old in GOOD
    assert message(write(tmp_path, GOOD.replace(old, new, 1))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", ": found an empty file; allowed: a YAML mapping"),
        (b"# nothing\n", ": found an empty file; allowed: a YAML mapping"),
        (b"- a\n", ":1: found a list; allowed: a YAML mapping (`key: value` lines)"),
        (b"hello\n", ":1: found the text 'hello'; allowed: a YAML mapping (`key: value` lines)"),
        (b"a: 1\nb: \xff\n", ":2: found the byte 0xff; allowed: text in UTF-8"),
        (b"a: 1\nb: \x00\n", ":2: found a control character (code 0); allowed: printable text"),
        (b"a: 1\n<<: {b: 2}\n", ":2: <<: found a merge key; allowed: keys written out"),
        (b"? [a]\n: b\n", ":1: found a key that is a mapping or a list; allowed: text keys"),
        (b"a: !!set {b}\n", ":1: a: found the tag tag:yaml.org,2002:set; allowed: plain YAML without tags"),
        (b"a: !!bool b\n", ":1: a: found 'b' marked as bool; allowed: a plain value"),
        (
            b"a: 1\n---\nb: 2\n",
            ":2: found what is not YAML (expected a single document in the stream, "
            "but found another document); allowed: a YAML file",
        ),
        (
            b"a: [1\nb: 2\n",
            ":2: found what is not YAML (while parsing a flow sequence, "
            "expected ',' or ']', but got ':'); allowed: a YAML file",
        ),
        (b"[" * 3000, ": found values nested too deeply to read; allowed: a YAML mapping"),
    ],
)
def test_a_file_that_is_no_scenario_at_all_is_refused(tmp_path: Path, text: bytes, expected: str) -> None:
    """Whatever the bytes, one message says what they are instead."""
    assert message(write(tmp_path, text)) == expected


def test_aliases_that_multiply_are_refused(tmp_path: Path) -> None:
    """A short file cannot expand without bound."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "found more than 100000 values" in message(write(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize(
    ("workloads", "expected"),
    [
        ("", ": workloads: found nothing; allowed: a value: the key is required"),
        ("workloads: []", ":12: workloads: found an empty list; allowed: a list of at least 1"),
        ("workloads: {a: 1}", ":12: workloads: found a mapping; allowed: a list"),
        ("workloads: [3]", ":12: workloads[0]: found 3 (a whole number); allowed: a mapping"),
        (
            "workloads:\n  - dataset: random\n    table: |\n      # none\n",
            f":14: {TABLE}: found an empty table; allowed: a header ({HEADER}) and rows",
        ),
        (
            f"workloads:\n  - dataset: random\n    table: |\n\n      {HEADER}\n",
            f":16: {TABLE}: found a header without rows; allowed: at least one row",
        ),
    ],
)
def test_a_file_without_benches_is_refused(tmp_path: Path, workloads: str, expected: str) -> None:
    """No workload, no table or no row is each its own message."""
    assert message(write(tmp_path, GOOD.split("workloads")[0] + workloads)) == expected


def test_a_path_that_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    """A directory, a missing file and an unreadable one are told apart."""
    assert message(tmp_path) == ": found a directory; allowed: a YAML file"
    assert message(tmp_path / "absent.yaml") == ": found no such file; allowed: a YAML file"
    below_a_file = write(tmp_path, GOOD) / "x.yaml"
    assert message(below_a_file) == ": found a file that cannot be read (Not a directory); allowed: a readable file"


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(GOOD) - 1),
            st.sampled_from(
                ["", " ", "\n", ":", "- ", "[", "}", "|", "#", "'", "x", "-1", "9", "null", "\t", "&a ", "*a"]
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_damage_gives_a_scenario_or_a_scenario_error(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, str]]
) -> None:
    """Characters replaced at random never let another kind of error out."""
    text = GOOD
    for position, piece in edits:
        text = text[:position] + piece + text[position + 1 :]
    path = write(tmp_path_factory.mktemp("damaged"), text)
    with contextlib.suppress(ScenarioError):
        assert load_scenario(path).benches


def test_the_resolved_form_is_json_that_reads_back_equal(tmp_path: Path) -> None:
    """Every default is written out, and nothing is lost."""
    scenario = load_scenario(write(tmp_path, GOOD))
    text = json.dumps(scenario.resolved(), allow_nan=False)
    assert Scenario.model_validate_json(text) == scenario
    assert json.loads(text)["validity"]["hit_rate_band"] == 0.02


def test_the_hash_follows_the_meaning_and_not_the_spelling(tmp_path: Path) -> None:
    """Comments, spacing and written-out defaults keep the hash; any changed value changes it."""
    digest = scenario_sha256(load_scenario(write(tmp_path, GOOD)))
    respelled = GOOD.replace("rounds: 2", "# two\nrounds:   2\norder: abba").replace("P64  ", "P64       ")
    assert scenario_sha256(load_scenario(write(tmp_path, respelled))) == digest
    for old, new in (("rounds: 2", "rounds: 3"), ("8       2   #", "8       4   #"), ("bundled", "builtin")):
        assert scenario_sha256(load_scenario(write(tmp_path, GOOD.replace(old, new)))) != digest
