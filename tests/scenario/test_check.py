"""`bench check`: what a scenario would run, without starting it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.check import CheckReport, check_report
from harness.check_text import render_check
from harness.errors import UsageError
from harness.progress import Silent
from harness.runner import Runner
from harness.scenario import load_scenario

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "scenarios" / "quickstart.yaml"
# The table of `bench scope` lies beside them and is none.
SCENARIOS = sorted(path for path in (ROOT / "scenarios").glob("*.yaml") if path.name != "scope.yaml")

TABLE = """\
rounds: 3
workloads:
  - dataset: random
    table: |
      name shared_prefix random_len output range_ratio concurrency prompts seed
      P64  48            16         4      0.0         2           8       2
"""
TINY = f"""\
schema: 1
name: checked
model: tiny-omni
server: {{kind: tiny-omni}}
arms:
  off: {{baseline: true}}
  on: {{args: {{enable-prefix-caching: true}}}}
{TABLE}"""


def report_of(tmp_path: Path, text: str) -> CheckReport:
    path = tmp_path / "checked.yaml"
    path.write_text(text, encoding="utf-8")
    return check_report(load_scenario(path), path)


def test_the_quickstart_is_valid_and_says_what_it_covers() -> None:
    """It has no hit, half and 94 % shared prefix, decode and audio, and its ideal rates follow from its prompts."""
    report = check_report(load_scenario(QUICKSTART), QUICKSTART)
    ideal = {bench.name: bench.ideal_hit_rate for bench in report.benches}
    assert not report.notes
    assert [trial.arm for trial in report.trials] == ["cache_off", "cache_on", "cache_on", "cache_off"] * 2
    assert report.benches[0].name == "warm"
    assert not report.benches[0].reported
    for name, rate in ideal.items():
        share = {"h0": 0.0, "h50": 0.5, "h94": 0.9375}.get(name.split("_")[1] if "_h" in name else "h0")
        if share is not None and name != "warm":
            requests = next(bench.requests for bench in report.benches if bench.name == name)
            # The first request of a prefix misses; the template's tokens dilute the share a little.
            assert rate == pytest.approx(share * (requests - 1) / requests, abs=0.012)
    assert {bench.modalities for bench in report.benches} == {("text",), ("text", "audio")}


def test_an_arm_costs_its_trials_times_the_benches(tmp_path: Path) -> None:
    """Requests and tokens are summed over rounds; only the caching arm is spared what an ideal cache hits."""
    report = report_of(tmp_path, TINY)
    off, on = report.arms
    (bench,) = report.benches
    assert (off.caching, on.caching) == (False, True)
    assert (off.trials, off.requests, off.output_tokens) == (3, 24, 96)
    assert off.prompt_tokens == on.prompt_tokens == off.computed_tokens == 3 * bench.prompt_tokens
    assert report.requests == 48
    # Of 8 requests 7 hit three blocks of 16: the template's opening and 48 shared tokens are 3 blocks and a rest.
    assert bench.ideal_hit_rate == pytest.approx(7 * 48 / bench.prompt_tokens)
    assert on.computed_tokens == 3 * (bench.prompt_tokens - 7 * 48)


def test_the_block_size_of_the_arms_is_the_one_assumed(tmp_path: Path) -> None:
    """Fewer tokens fit whole blocks when blocks are larger; arms that differ have no common ideal."""
    larger = TINY.replace("{kind: tiny-omni}", "{kind: tiny-omni, deploy: {stages: [{stage_id: 0, block_size: 32}]}}")
    report = report_of(tmp_path, larger)
    assert report.block_size == 32
    assert report.benches[0].ideal_hit_rate == pytest.approx(7 * 32 / report.benches[0].prompt_tokens)

    apart = report_of(tmp_path, TINY.replace("on: {args: {", "on: {args: {block-size: 32, "))
    assert apart.block_size is None
    assert apart.benches[0].ideal_hit_rate is None
    assert apart.notes == ("ideal hit rate: not computed (block sizes differ: 16, 32)",)
    assert apart.arms[1].computed_tokens is None


def test_a_model_elsewhere_is_counted_by_its_table(tmp_path: Path) -> None:
    """Without a local tokenizer the ideal rate is withheld, not guessed."""
    report = report_of(tmp_path, TINY.replace("tiny-omni}", "vllm}").replace("model: tiny-omni", "model: Qwen/Qwen3"))
    assert report.tokenizer is None
    assert report.benches[0].ideal_hit_rate is None
    assert report.benches[0].prompt_tokens == 8 * 64
    assert any("no local tokenizer" in note for note in report.notes)
    assert "no local tokenizer" in render_check(report)


EXTERNAL = f"""\
schema: 1
name: attached
model: Qwen/Qwen3
tokenizer: {ROOT / "harness" / "tiny_omni" / "assets"}
server: {{kind: external}}
arms:
  off: {{baseline: true, url: "http://127.0.0.1:8791"}}
  on: {{url: "http://127.0.0.1:8792"}}
{TABLE}"""
OTHER_CLIENT = EXTERNAL.replace("dataset: random", "dataset: random\n    client: vllm-bench")
NO_TOKENIZER = EXTERNAL.replace("tokenizer:", "# ")


@pytest.mark.parametrize(
    ("text", "lacked"),
    [
        (NO_TOKENIZER, "tokenizer: found none for model Qwen/Qwen3; allowed"),
        (OTHER_CLIENT, f"client: found vllm-bench, and no vllm in {sys.executable}; allowed"),
        (
            OTHER_CLIENT.replace("external}", "external, python: /nowhere/python}"),
            "cannot look for vllm in /nowhere/python",
        ),
        (
            TINY.replace("dataset: random", "dataset: random\n    client: vllm-bench"),
            f"client: found vllm-bench, and no vllm in {sys.executable}; allowed",
        ),
    ],
)
def test_what_a_run_would_be_refused_for_is_noted(tmp_path: Path, text: str, lacked: str) -> None:
    """The check says of this machine, in the run's own words, what the run would end with before anything starts."""
    report = report_of(tmp_path, text)
    (note,) = [note for note in report.notes if note.startswith("a run needs more than this machine has: ")]
    assert lacked in note
    path = tmp_path / "checked.yaml"
    with pytest.raises(UsageError) as refused:
        Runner(load_scenario(path), path, Silent())
    assert str(refused.value) == f"{path}: {note.partition('has: ')[2]}"


def test_nothing_is_noted_where_a_run_has_all_it_needs(tmp_path: Path) -> None:
    report = report_of(tmp_path, EXTERNAL)
    assert not any("a run needs more" in note for note in report.notes)


def test_nothing_is_advised_that_a_server_of_somebody_else_cannot_be_told(tmp_path: Path) -> None:
    """Its block size is what it is; a server that we start can be told one."""
    (note,) = report_of(tmp_path, EXTERNAL).notes
    assert note.startswith("ideal hit rate: not computed (only the running server knows the block size")
    started = report_of(tmp_path, TINY.replace("kind: tiny-omni", "kind: vllm"))
    assert any("set block-size" in note for note in started.notes)


@pytest.mark.parametrize("kind", ["tiny-omni", "vllm"])
def test_requests_that_the_server_will_refuse_are_warned_of(tmp_path: Path, kind: str) -> None:
    """At the limit nothing is said; one token below it, each bench is named once with all arms it is refused by."""

    def checked(limit: object) -> CheckReport:
        model = "model: tiny-omni" if kind == "tiny-omni" else "model: Qwen/Qwen3"
        server = f"{{kind: {kind}, args: {{max-model-len: {limit}}}}}"
        return report_of(tmp_path, TINY.replace("{kind: tiny-omni}", server).replace("model: tiny-omni", model))

    (bench,) = checked(4096).benches
    # Every prompt is as long as the others, counted with the template or, without a tokenizer, by the table.
    longest = bench.prompt_tokens // 8 + 4
    assert bench.longest == longest
    assert not checked(longest).warnings
    (warning,) = checked(longest - 1).warnings
    assert warning.startswith(f"arms.off, on: max_model_len is {longest - 1}: the server refuses")
    assert f"P64 ({longest})" in warning
    assert f"warning: {warning}" in render_check(checked(longest - 1))


def test_a_limit_that_only_the_server_works_out_is_not_guessed_at(tmp_path: Path) -> None:
    """vLLM reads 1k its own way, and `auto` from the model."""
    text = TINY.replace("{kind: tiny-omni}", "{kind: vllm, args: {max-model-len: 0k}}")
    assert not report_of(tmp_path, text.replace("model: tiny-omni", "model: Qwen/Qwen3")).warnings


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("{enable-prefix-caching: true}", "{port: 80}", "arms.on.args: found port"),
        ("{enable-prefix-caching: true}", "{block-size: 0}", "arms.on: block_size: found 0"),
        ("model: tiny-omni", "model: tiny-omni\ntokenizer: nowhere", "tokenizer: found 'nowhere'"),
    ],
)
def test_settings_that_contradict_are_found_before_anything_starts(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    """The message names the file, the place and what was found."""
    with pytest.raises(UsageError, match=rf"checked\.yaml: .*{expected}"):
        report_of(tmp_path, TINY.replace(old, new, 1))


OMNI = (
    """\
schema: 1
name: staged
model: Some/Omni
server: {kind: vllm-omni, source: checkout, deploy: {base_config: base.yaml}}
arms:
  cache_off: {baseline: true, deploy: {stages: [{stage_id: 0, enable_prefix_caching: false}]}}
  cache_on: {deploy: {stages: [{stage_id: 0, enable_prefix_caching: true, block_size: 32}]}}
"""
    + TABLE
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with profiles where a checkout of vLLM-Omni has them."""
    (tmp_path / "checkout" / "vllm_omni").mkdir(parents=True)
    (tmp_path / "checkout" / "vllm_omni" / "deploy").symlink_to(ROOT / "tests" / "servers" / "deploy_profiles")
    return tmp_path


def test_the_stages_of_each_arm_are_resolved_and_shown(checkout: Path) -> None:
    """What differs between arms is a table, what they share a line a stage; JSON holds all of it with its source."""
    report = report_of(checkout, OMNI)
    assert [arm.caching for arm in report.arms] == [False, True]
    lines = [line.split() for line in render_check(report).splitlines()]
    assert ["stage", "setting", "cache_off", "cache_on"] in lines
    assert ["0", "enable_prefix_caching", "off", "on"] in lines
    assert ["0", "block_size", "unset", "32"] in lines
    (shared,) = [line for line in lines if line[:3] == ["stage", "1,", "all"]]
    assert "max_num_seqs 16" in " ".join(shared)
    stage = json.loads(json.dumps(report.to_json()))["deploy"][1]["stages"][0]
    assert stage["settings"]["max_num_seqs"] == 64
    assert stage["sources"]["max_num_seqs"] == "base.yaml"
    assert stage["sources"]["enable_prefix_caching"] == "deploy"


def test_an_arm_that_a_device_silences_is_warned_of(checkout: Path) -> None:
    """On that device as a warning, elsewhere as a note; and the arm is taken for what it would be."""
    path = checkout / "checked.yaml"
    path.write_text(OMNI, encoding="utf-8")
    lost = "stage 0 enable_prefix_caching: true is overridden by base.yaml platforms.npu: false"
    there = check_report(load_scenario(path), path, "npu")
    assert f"arms.cache_on: {lost}" in there.warnings
    assert [arm.caching for arm in there.arms] == [False, False]
    assert f"warning: arms.cache_on: {lost}" in render_check(there).splitlines()
    elsewhere = check_report(load_scenario(path), path, "cuda")
    assert not elsewhere.warnings
    assert f"on npu, arms.cache_on: {lost}" in elsewhere.notes


def test_a_base_that_is_not_here_is_a_note(tmp_path: Path) -> None:
    """The check goes on with the overlay alone, and says once for all arms what this machine lacks."""
    report = report_of(tmp_path, OMNI.replace("source: checkout, ", ""))
    assert [arm.caching for arm in report.arms] == [False, True]
    (note,) = [note for note in report.notes if "base.yaml is not on this machine" in note]
    assert note.startswith("arms.cache_off, cache_on: ")
    assert any(note.startswith("stages resolved for cuda: no vLLM-Omni on this machine") for note in report.notes)


def test_more_prompts_than_can_be_made_are_not_made(tmp_path: Path) -> None:
    """The table's numbers are stated at once, with a note; narrowed, the prompts are made."""
    large = TINY + "      L      0             4096       4      0.0         2           8000    3\n"
    report = report_of(tmp_path, large)
    assert report.benches[1].prompt_tokens == 8000 * 4096
    assert report.benches[0].ideal_hit_rate is None
    (note,) = [note for note in report.notes if "prompts are made here up to 1,000,000" in note]
    assert "32,768,512 prompt tokens" in note


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_of_the_repository_can_be_checked(path: Path) -> None:
    """Without their models, data sets and servers; what is missing is in the notes."""
    scenario = load_scenario(path)
    report = check_report(scenario, path)
    assert render_check(report)
    assert not report.warnings
    assert {arm.name: arm.caching for arm in report.arms}[scenario.baseline] is False


def test_the_text_shows_plan_benches_and_cost(tmp_path: Path) -> None:
    """A person sees every round, bench and arm."""
    text = render_check(report_of(tmp_path, TINY))
    lines = [line.split() for line in text.splitlines()]
    assert ["1", "off", "on"] in lines
    assert ["2", "on", "off"] in lines
    assert any(line[:2] == ["P64", "random"] for line in lines)
    assert any(line[:3] == ["off", "(baseline)", "off"] for line in lines)
    assert text.splitlines()[0].endswith("checked.yaml: valid")


def test_items_that_cannot_be_scored_are_found_before_anything_starts(tmp_path: Path) -> None:
    """Chinese words under an English normaliser are told of by the check, not by the scoring after hours of load."""
    asked = {"id": "a", "messages": [{"role": "user", "content": "say it"}], "expected": "你好"}
    (tmp_path / "asked.jsonl").write_text(json.dumps(asked), encoding="utf-8")
    accuracy = """\
accuracy:
  - dataset: conversation
    path: asked.jsonl
    modalities: [text, audio]
    measure: speech
    wer: {recogniser: whisper, model: tiny.pt, normaliser: whisper-english}
    table: |
      name  concurrency prompts output
      SAY   1           1       4
"""
    with pytest.raises(UsageError, match=r"check SAY: item a: found language 'zh'; allowed: .* whisper-english"):
        report_of(tmp_path, TINY + accuracy)


def test_the_json_form_is_complete(tmp_path: Path) -> None:
    """What a program reads holds every part."""
    data = json.loads(json.dumps(report_of(tmp_path, TINY).to_json(), allow_nan=False))
    assert [trial["slug"] for trial in data["trials"]][:2] == ["r01-1-off", "r01-2-on"]
    assert data["benches"][0]["name"] == "P64"
    assert data["requests"] == 48


def test_checking_loads_no_heavy_library() -> None:
    """A check needs neither torch nor matplotlib."""
    code = "import sys, harness.check; print(sorted({'torch', 'matplotlib', 'pandas'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"
