"""What a scenario file may not hold: secrets, absurd sizes, text that nothing can carry; and where its paths start."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.check import check_report
from harness.errors import ScenarioError, UsageError
from harness.scenario import load_scenario, scenario_sha256

HEADER = "name shared_prefix random_len output range_ratio concurrency prompts seed"
GOOD = f"""\
schema: 1
name: small
model: tiny-omni
server:
  kind: tiny-omni
arms:
  off: {{baseline: true}}
  on: {{}}
rounds: 2
workloads:
  - dataset: random
    table: |
      {HEADER}
      P64 0 64 4 0.0 2 8 2
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def message(path: Path) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    return str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("arm", "where"),
    [
        ("env: {HF_TOKEN: hush}", "env.HF_TOKEN"),
        ("env: {DB_PASS: hush}", "env.DB_PASS"),
        ("env: {PROXY: 'http://me:hush@host'}", "env.PROXY"),
        ("env: {PROXY: 'http://hush@host'}", "env.PROXY"),
        ("env: {PROXY: 'http://${ME}:hush@host'}", "env.PROXY"),
        ("env: {HF_TOKEN: 'hush${MORE}'}", "env.HF_TOKEN"),
        ("env: {HEADER: 'Bearer hush'}", "env.HEADER"),
        ("args: {api-key: hush}", "args.api-key"),
        ("args: {api_key: 1234}", "args.api_key"),
        ("args: {url: 'http://me:hush@host'}", "args.url"),
        ("deploy: {stages: [], url: 'http://me:hush@host'}", "deploy"),
    ],
)
def test_a_secret_written_out_is_refused_and_not_repeated(tmp_path: Path, arm: str, where: str) -> None:
    """The message says where it stands and what may stand there."""
    text = message(write(tmp_path, GOOD.replace("on: {}", f"on: {{{arm}}}")))
    assert text.startswith(f":8: arms.on.{where}: found a secret written out; allowed: ")
    assert "hush" not in text


def test_a_secret_in_extra_body_is_refused(tmp_path: Path) -> None:
    """A request's body is recorded with the scenario."""
    body = "extra_body: {a: [{b: 'Bearer hush'}]}\n    table: |"
    text = message(write(tmp_path, GOOD.replace("table: |", body)))
    assert text.startswith(":12: workloads[0].extra_body: found a secret written out; allowed: ")


@pytest.mark.parametrize(
    "arm",
    [
        "env: {HF_TOKEN: '${HF_TOKEN}'}",
        "env: {PROXY: 'http://me:${PASS}@host'}",
        "env: {HEADER: 'Bearer ${T}'}",
        "env: {TOKENIZERS_PARALLELISM: 'false'}",
        "args: {api-key: '${KEY}', tokenizer: t, enable-auth: true}",
    ],
)
def test_references_and_lookalikes_are_kept_as_they_stand(tmp_path: Path, arm: str) -> None:
    """The scenario that is recorded holds the reference, never a value of the environment."""
    scenario = load_scenario(write(tmp_path, GOOD.replace("on: {}", f"on: {{{arm}}}")))
    kind, _, rest = arm.partition(": ")
    assert scenario.resolved()["arms"]["on"][kind]
    assert ("${" in rest) == ("${" in json.dumps(scenario.resolved()))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("2 8 2\n", "2 1000000000000000000 2\n", "column 'prompts': found 1000000000000000000 (a whole number)"),
        ("2 8 2\n", "100001 8 2\n", "column 'concurrency': found 100001 (a whole number); allowed: at most 100000"),
        (
            "P64 0",
            "P64 1000000000000",
            "column 'shared_prefix': found 1000000000000 (a whole number); allowed: at most",
        ),
        ("0 64 4", "0 64 1e30", "column 'output': found 1e+30 (a number); allowed: a whole number"),
        ("rounds: 2", "rounds: 10001", ":9: rounds: found 10001 (a whole number); allowed: at most 10000"),
        ("rounds: 2", "rounds: 0x" + "f" * 6000, ":9: rounds: found '0xfff"),
        (
            "table: |",
            "request_rate: 1.0e-308\n    table: |",
            "request_rate: found 1e-308 (a number); allowed: 1e-06 or",
        ),
        ("model: tiny-omni", 'model: "\\ud800"', ":3: model: found '\\ud800', text with half a surrogate pair"),
        ("model: tiny-omni", 'model: "a\\0"', ":3: model: found 'a\\x00', text with a NUL character; allowed"),
        ("on: {}", 'on: {env: {"A\\0": x}}', ":8: arms.on.env: found 'A\\x00', text with a NUL character"),
        (
            "on: {}",
            f"on: {{deploy: {{a: {'[' * 100}{']' * 100}}}}}",
            ":8: arms.on.deploy: found values nested more than",
        ),
        (
            "table: |",
            "extra_body: {stream: false}\n    table: |",
            ":12: workloads[0].extra_body.stream: found 'stream'",
        ),
        (
            "table: |",
            "extra_body: {chat_template_kwargs: [1]}\n    table: |",
            ":12: workloads[0].extra_body.chat_template_kwargs: found a list; allowed: a mapping",
        ),
        ("P64 ", "server ", "row 'server' column 'name': found 'server', the name of another record"),
        (
            "on: {}",
            "on: {source: ~nobody-here/x}",
            ":8: arms.on.source: found '~nobody-here/x' (text); allowed: the path",
        ),
    ],
)
def test_what_no_run_could_carry_out_is_one_message(tmp_path: Path, old: str, new: str, expected: str) -> None:
    """Absurd sizes, text without a form on this machine and wrong bodies are named with their place."""
    assert old in GOOD
    assert expected in message(write(tmp_path, GOOD.replace(old, new, 1)))


@pytest.mark.parametrize("variables", ["{messages: 1, self: 2}", "{}"])
def test_template_variables_cannot_collide_with_ours(tmp_path: Path, variables: str) -> None:
    """Names that the renderer uses itself are template variables like any other."""
    body = f"extra_body: {{chat_template_kwargs: {variables}}}\n    table: |"
    path = write(tmp_path, GOOD.replace("table: |", body))
    assert check_report(load_scenario(path), path).benches[0].requests == 8


@pytest.mark.parametrize("tokenizer", ["~nobody-here/x", "x" * 5000])
def test_a_tokenizer_path_that_cannot_be_one_is_refused(tmp_path: Path, tokenizer: str) -> None:
    """What the operating system refuses as a path is the person's to mend."""
    path = write(tmp_path, GOOD.replace("rounds: 2", f"rounds: 2\ntokenizer: {tokenizer}"))
    with pytest.raises(UsageError, match=r"tokenizer: found"):
        check_report(load_scenario(path), path)


def test_paths_start_at_the_files_folder_wherever_bench_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreters with a slash and checkouts become absolute, bare names stay, and the digest ignores the folder."""
    text = GOOD.replace("  kind: tiny-omni\n", "  kind: tiny-omni\n  python: python3\n  source: checkout\n")
    path = write(tmp_path, text.replace("on: {}", "on: {python: env/bin/python, source: /elsewhere}"))
    monkeypatch.chdir(tmp_path)
    near = load_scenario("small.yaml")
    monkeypatch.chdir("/")
    far = load_scenario(os.path.relpath(path))
    assert (near.server.python, near.server.source) == ("python3", str(tmp_path / "checkout"))
    assert (near.arms["on"].python, near.arms["on"].source) == (str(tmp_path / "env/bin/python"), "/elsewhere")
    assert scenario_sha256(near) == scenario_sha256(far)
