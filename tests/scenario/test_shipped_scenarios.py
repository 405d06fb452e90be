"""The scenarios of the repository: each is valid, and those of a published table run its benches."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

from harness.plan import round_orders
from harness.scenario import Bench, Scenario, load_scenario
from harness.servers.arm import resolve_arm

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted(path for path in (ROOT / "scenarios").glob("*.yaml") if path.name != "scope.yaml")
PUBLISHED = {"qwen3_omni": 4, "minicpm_o_4_5": 3}
"""Rounds of each published table, by the name of its file and of the scenario."""
HEAVY = ("torch", "transformers", "vllm", "vllm_omni", "matplotlib", "pandas")

BLOCKED = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked by the test)", name=name)

sys.meta_path.insert(0, Blocked())
from harness.cli import app

for path in sys.argv[1:]:
    app(["check", path], standalone_mode=False)
    print("checked", path)
"""


def load(name: str) -> Scenario:
    return load_scenario(ROOT / "scenarios" / f"{name}.yaml")


def benches(name: str) -> list[Bench]:
    return [bench for bench in load(name).benches if bench.reported]


@pytest.mark.timeout(300)  # it may have to ask an installed vLLM-Omni, which takes its time on a busy machine
def test_every_scenario_passes_bench_check_without_heavy_packages() -> None:
    """Checking needs no engine, no model, no data set and no network, only the base installation."""
    paths = [str(path) for path in SCENARIOS]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *paths], capture_output=True, text=True, timeout=280, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("checked")] == [f"checked {p}" for p in paths]
    assert done.stdout.count(": valid\n") == len(paths)


def test_the_block_is_one() -> None:
    """The test above would say nothing if the packages were importable after all."""
    script = BLOCKED.replace("from harness.cli import app", "import torch")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "No module named 'torch' (blocked by the test)" in done.stderr


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_table_is_run_row_by_row_in_its_order(name: str) -> None:
    """Bench names and order are those of the CSV file, after one warm-up."""
    with (ROOT / "results" / "published" / f"{name}.csv").open(encoding="utf-8") as file:
        rows = [row["bench"] for row in csv.DictReader(file)]
    assert [bench.name for bench in benches(name)] == rows
    assert load(name).benches[0].name == "warm"
    assert load(name).rounds == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_row_is_what_its_name_says(name: str) -> None:
    """P4096_h94_c64: prompts of 4096 tokens, 94 % shared, 64 in flight; and so on for the other names."""
    understood = 0
    for bench in benches(name):
        assert bench.name.endswith(f"c{bench.concurrency}"), bench.name
        length = (bench.shared_prefix or 0) + (bench.random_len or 0)
        if shape := re.search(r"[PL](\d+)_h(\d+)_", bench.name):
            assert (length, bench.range_ratio) == (int(shape[1]), 0.0), bench.name
            assert abs(100 * (bench.shared_prefix or 0) / length - int(shape[2])) < 0.5, bench.name
            assert bench.output == {"P": 8, "O": 256, "A": 128}[bench.name[0]], bench.name
        elif bench.name.startswith("DEC"):
            ratio = 0.5 if bench.name.startswith("DECV") else 0.0
            assert (bench.shared_prefix, length, bench.output, bench.range_ratio) == (0, 100, 100, ratio), bench.name
        elif bench.name.startswith("MP32"):
            assert (bench.prefix_len, bench.suffix_len, bench.num_prefixes, bench.prompts) == (3840, 256, 32, 512)
        else:
            assert (bench.name, bench.first, bench.prompts, bench.output) == ("SEEDTTS_c8", 113, 128, 2048)
        understood += 1
        speaks = bench.name.startswith(("AUD", "SEEDTTS"))
        assert bench.modalities == (("text", "audio") if speaks else ("text",)), bench.name
        assert bench.ignore_eos is (bench.dataset != "seed_tts"), bench.name
        if name == "minicpm_o_4_5":
            template = {"enable_thinking": False, **({"use_tts_template": True} if speaks else {})}
            assert bench.extra_body == {"chat_template_kwargs": template}, bench.name
        else:
            assert bench.extra_body == {}, bench.name
    assert understood == {"qwen3_omni": 22, "minicpm_o_4_5": 21}[name]
    seeds = [bench.seed for bench in load(name).benches if bench.dataset != "seed_tts"]
    assert all(50_000 < seed < 53_000 for seed in seeds)


@pytest.mark.parametrize("name", PUBLISHED)
def test_arms_differ_in_the_cache_of_stage_0_alone(name: str) -> None:
    """Off, vLLM-Omni's own and ours, on one deploy profile; MiniCPM-o's longest prompts need a longer limit."""
    scenario = load(name)
    assert list(scenario.arms) == ["cache_off", "builtin", "bundled"]
    assert scenario.baseline == "cache_off"
    limit = {"max_model_len": 17408} if name == "minicpm_o_4_5" else {}
    limit |= {"block_size": 16}
    for arm, (on, cache) in {
        "cache_off": (False, None),
        "builtin": (True, "builtin"),
        "bundled": (True, "bundled"),
    }.items():
        resolved = resolve_arm(scenario, arm)
        assert resolved.deploy is not None
        assert resolved.deploy["stages"] == [{"stage_id": 0, **limit, "enable_prefix_caching": on}]
        assert resolved.deploy["base_config"] == {"qwen3_omni": "qwen3_omni_moe.yaml"}.get(
            name, "minicpmo_4_5_turn.yaml"
        )
        assert resolved.prefix_cache == cache
        trust = {"trust-remote-code": True} if name == "minicpm_o_4_5" else {}
        assert resolved.args == {**trust, "stage-init-timeout": 600, "init-timeout": 900, "log-stats": True}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_arm_follows_every_other(name: str) -> None:
    """With three arms, what a server leaves behind must not always meet the same one."""
    scenario = load(name)
    orders = round_orders(scenario.order, tuple(scenario.arms), scenario.rounds, scenario.seed)
    assert {order[0] for order in orders} == set(scenario.arms)
    assert len({pair for order in orders for pair in pairwise(order)}) >= 3


def test_replays_send_the_identical_requests_again() -> None:
    """What a bench called replay repeats is the bench before it: the same rows of the same set, or the same seed."""
    replays = 0
    for path in SCENARIOS:
        for before, bench in pairwise(load_scenario(path).benches):
            if bench.name.endswith("_replay"):
                assert bench.model_copy(update={"name": before.name}) == before, f"{path.name}: {bench.name}"
                replays += 1
    assert replays >= 6


def test_names_are_unique_and_a_description_says_what_is_asked() -> None:
    """Runs are found by their scenario's name; `bench scope` joins by it."""
    loaded = [load_scenario(path) for path in SCENARIOS]
    names = [scenario.name for scenario in loaded]
    assert len(set(names)) == len(names)
    assert all(scenario.description for scenario in loaded)


def test_the_readme_s_server_of_one_s_own_is_a_scenario(tmp_path: Path) -> None:
    """With any workload below it, as it stands there, it is complete; its address is that of the command beside it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (head,) = re.findall(r"```yaml\n([^`]*kind: external[^`]*)```", readme)
    quickstart = (ROOT / "scenarios" / "quickstart.yaml").read_text(encoding="utf-8")
    path = tmp_path / "running.yaml"
    path.write_text(textwrap.dedent(head) + quickstart[quickstart.index("workloads:") :], encoding="utf-8")
    server = load_scenario(path).server
    (command,) = re.findall(r"vllm\.entrypoints\.cli\.main serve [^`]*", readme)
    assert server.url == "http://{}:{}".format(*re.findall(r"--(?:host|port) (\S+)", command))
    assert f"--served-model-name {load_scenario(path).model} " in command


def test_the_readme_says_truly_which_orders_are_balanced() -> None:
    """Over as many rounds as there are arms, each arm stands once at each position; `alternate` never changes."""
    for order, arms in (("abba", "ab"), ("latin", "abc"), ("latin", "abcd")):
        rows = round_orders(order, tuple(arms), len(arms))
        assert all(sorted(places) == sorted(arms) for places in zip(*rows, strict=True))
    assert set(round_orders("alternate", ("a", "b", "c"), 4)) == {("a", "b", "c")}
    assert load_scenario(ROOT / "scenarios" / "vllm_cpu.yaml").order == "alternate"
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "`alternate` keeps the file's order in all, as `scenarios/vllm_cpu.yaml` does" in readme
    assert "in balanced order" not in readme
    assert "in alternating order" not in readme
