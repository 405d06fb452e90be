"""The plug-in in a real vLLM-Omni: three fresh servers, one after the other, and what they answered and cost.

On two cores a server takes two to four minutes to start and one to be asked; the module about ten.
"""

from __future__ import annotations

import string
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from vllm_omni_server import Answer, Server, check_installed

from prefix_cache.integrations.exposition import PROOF
from prefix_cache.integrations.timing import Medians, medians, read_steps, table

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

BLOCK = 32  # tokens, of the deploy profile
SPEAKING = 6
DECODING = 16
DECODED = 128  # tokens; requests that arrive one after the other share but the later ones
ARMS: Mapping[str, str | None] = {"cache_off": None, "builtin": "builtin", "bundled": "bundled"}


@dataclass
class Arm:
    """What one server left behind.

    Parameters:
        spoken: answers to the shared prefix and a tail of its own, one after the other.
        counters: of stage 0's prefix cache after these.
        costs: medians of stage 0's steps by kind; empty without a cache.
        proof: words of the line of proof, where there is one.
        series: `prefix_cache:*` of the page it names, before the server was stopped.
    """

    spoken: Sequence[Answer]
    counters: Mapping[str, float]
    decoded: Sequence[Answer]
    costs: Mapping[str, Medians] = field(default_factory=dict)
    proof: Mapping[str, str] = field(default_factory=dict)
    series: Mapping[str, float] = field(default_factory=dict)


def words(first: int, count: int) -> str:
    """Words of one token each in the tiny model's vocabulary: three letters and the blank before them."""
    letters, numbers = string.ascii_lowercase, range(first, first + count)
    return "".join(f" {letters[n // 676]}{letters[n // 26 % 26]}{letters[n % 26]}" for n in numbers)


def run(folder: Path, cache: str | None) -> Arm:
    timing = folder / "timing"
    env = {} if cache is None else {"PREFIX_CACHE": cache, "PREFIX_CACHE_TIMING": str(timing)}
    server = Server(folder, caching=cache is not None, env=env)
    try:
        server.wait_ready()
        prefix = words(0, 960)
        spoken = [server.ask(prefix + words(2000 + 64 * n, 64), ["text", "audio"], 16) for n in range(SPEAKING)]
        counters = server.stage0_counters()
        with ThreadPoolExecutor(DECODING) as clients:
            prompts = [words(5000 + 64 * n, 64) for n in range(DECODING)]
            decoded = list(clients.map(lambda prompt: server.ask(prompt, ["text"], DECODED), prompts))
        proof = proof_of(server.log)
        series = page(proof["metrics"]) if proof else {}
    finally:
        server.stop()
    return Arm(spoken, counters, decoded, medians(read_steps(timing)) if cache else {}, proof, series)


def proof_of(log: Path) -> Mapping[str, str]:
    lines = [line for line in log.read_text(errors="replace").splitlines() if PROOF in line]
    if not lines:
        return {}
    [line] = lines
    return dict(word.split("=", 1) for word in line.split(PROOF)[1].split() if "=" in word)


def page(url: str) -> Mapping[str, float]:
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "key" not in sample.labels
    }


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Arm]:
    check_installed()
    folder = tmp_path_factory.mktemp("omni")
    found = {name: run(folder / name, cache) for name, cache in ARMS.items()}
    costs = {name: arm.costs for name, arm in found.items() if arm.costs}
    print(f"\nstage 0, us per step, wall / thread CPU\n{table(costs)}")
    for name, arm in found.items():
        print(f"{name}: stage 0 {dict(arm.counters)}, {sum(len(each.pcm) for each in arm.spoken) // 2} samples")
    return found


def test_text_and_speech_are_the_same_to_the_bit(arms: Mapping[str, Arm]) -> None:
    """Without a cache, with vLLM-Omni's own and with ours: the Talker was handed the same prompts."""
    baseline = arms["cache_off"].spoken
    assert len(baseline) >= 6
    assert all(answer.text and len(answer.pcm) > 24_000 for answer in baseline)
    assert len({answer.pcm for answer in baseline}) == len(baseline), "answers that are all alike prove nothing"
    for name in ("builtin", "bundled"):
        assert [answer.text for answer in arms[name].spoken] == [answer.text for answer in baseline]
        assert [answer.pcm for answer in arms[name].spoken] == [answer.pcm for answer in baseline]


def test_stage_0_hits_the_same_tokens_under_either_cache(arms: Mapping[str, Arm]) -> None:
    """All but the first request find the whole blocks of the shared prefix; without a cache nobody asks."""
    assert arms["bundled"].counters == arms["builtin"].counters
    assert arms["bundled"].counters["hits"] >= (SPEAKING - 1) * (960 // BLOCK) * BLOCK
    assert arms["cache_off"].counters["hits"] == 0


def test_only_the_bundled_server_proves_that_it_is(arms: Mapping[str, Arm]) -> None:
    """One line, from the worker of stage 0, which names a page of this cache's own counters."""
    assert not arms["cache_off"].proof
    assert not arms["builtin"].proof
    proof, series = arms["bundled"].proof, arms["bundled"].series
    assert (proof["stage"], proof["block_size"], proof["engine"]) == ("0", str(BLOCK), "vllm-omni-0.30.0")
    assert series["prefix_cache:hit_tokens_total"] >= arms["bundled"].counters["hits"]
    assert series["prefix_cache:buffered_steps_total"] > 0
    assert series["prefix_cache:materialized_total"] > 0
    assert series["prefix_cache:discarded_total"] > 0
    assert series["prefix_cache:open_handles"] == 0


def test_a_decoding_step_costs_a_tenth(arms: Mapping[str, Arm]) -> None:
    """With 16 requests decoding, in processor time of the engine's thread and on the clock, by the same instrument."""
    builtin, bundled = (arms[name].costs[f"decode {DECODING}"] for name in ("builtin", "bundled"))
    assert min(builtin.steps, bundled.steps) >= 30, (builtin, bundled)
    assert builtin.cpu_us["step"] >= 10 * bundled.cpu_us["step"], (builtin, bundled)
    assert builtin.wall_us["step"] >= 10 * bundled.wall_us["step"], (builtin, bundled)


def test_what_is_not_known_stops_the_server_before_a_stage_starts(tmp_path: Path) -> None:
    """With one message; a server that went on with another cache would be measured as ours."""
    check_installed()
    server = Server(tmp_path / "refused", caching=True, env={"PREFIX_CACHE": "ours"})
    try:
        assert server.wait_end() != 0
    finally:
        server.stop()
    log = server.log.read_text(errors="replace")
    assert "PREFIX_CACHE: found 'ours'; allowed: builtin, bundled" in log
    assert "StageEngineCoreProc_stage0" not in log
