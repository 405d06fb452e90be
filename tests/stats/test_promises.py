"""What the statistics promise, kept on simulated and on real rounds: coverage, sameness, and the power to see 5 %."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cell_factory import make_pairs

from harness.gate import changes_of, gate
from harness.noise import floors_of, half_width
from harness.policy import Policy
from harness.stats import Verdict, compare, geometric_interval

AA_ROUNDS = Path(__file__).parent / "aa_rounds.json"
CASES = 10_000
POLICY = Policy.model_validate(
    {"schema": 1, "rules": [{"bench": "*", "metric": "request_throughput", "at_least": -0.03}]}
)


@pytest.mark.parametrize("rounds", [3, 4, 6, 10])
def test_the_interval_covers_the_truth(rounds: int) -> None:
    """Of 10,000 runs with 2 % noise on each cell, 93 to 97 % have the true ratio in their 95 % interval."""
    rng = np.random.default_rng(rounds)
    truth = 1.04
    base, other = (rng.normal(0.0, 0.02, (CASES, rounds)) for _ in range(2))
    low, _, high = geometric_interval(truth * np.exp(other - base))
    assert 0.93 <= float(np.mean((low <= truth) & (truth <= high))) <= 0.97


def aa_rounds() -> dict[str, dict[str, list[float]]]:
    """Request throughput (1/s) of the baseline and of itself again, round by round, as `bench run --aa` measured it."""
    found: dict[str, dict[str, list[float]]] = json.loads(AA_ROUNDS.read_text())["benches"]
    return found


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("bench", sorted(aa_rounds()))
def test_the_baseline_against_itself_is_the_same(bench: str, half: int) -> None:
    """Under the noise floor of every second round of a real `aa` run, 19 of 20 resamplings of the others are `same`."""
    rounds = aa_rounds()[bench]
    pairs = list(zip(rounds["baseline"], rounds["again"], strict=True))
    known = compare(make_pairs(*map(list, zip(*pairs[half::2], strict=True))), threshold=0.03)
    (floor,) = floors_of([known], "aa")
    others = pairs[1 - half :: 2]
    rng = np.random.default_rng(20)
    verdicts = []
    for _ in range(20):
        drawn = [others[index] for index in rng.integers(len(others), size=6)]
        cells = make_pairs(*map(list, zip(*drawn, strict=True)))
        verdicts.append(compare(cells, threshold=0.03, floor=lambda count: half_width(floor, count)).verdict)
    assert verdicts.count(Verdict.SAME) >= 19


@pytest.mark.parametrize(("slowdown", "verdict", "code"), [(0.05, "slower", 1), (0.002, "same", 0)])
def test_six_pairs_see_five_percent_and_forgive_a_fifth(slowdown: float, verdict: str, code: int) -> None:
    """With 0.5 % noise a cell: 5 % is slower and gates with 1, 0.2 % is the same and passes, 19 times of 20."""
    rng = np.random.default_rng(5)
    right = 0
    for _ in range(20):
        base, other = (10.0 * np.exp(rng.normal(0.0, 0.005, 6)) for _ in range(2))
        pairs = make_pairs(list(base), list(other / (1 + slowdown)))
        found = compare(pairs, threshold=0.03)
        result = gate(POLICY, changes_of(pairs, (), "cache_off"))
        right += (found.verdict, result.exit_code) == (Verdict(verdict), code)
    assert right >= 19
