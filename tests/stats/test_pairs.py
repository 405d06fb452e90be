import pytest
from cell_factory import make_cell

from harness.pairs import pair_up
from harness.records import PlannedTrial, TrialRecord
from harness.scenario import Scenario

BENCHES = ({"name": "warm", "reported": False}, {"name": "P1024"})
PLAN = tuple(
    PlannedTrial(round=number, position=position, arm=arm)
    for number, arms in ((1, ("cache_off", "cache_on")), (2, ("cache_on", "cache_off")))
    for position, arm in enumerate(arms, start=1)
)


def scenario(**bench):
    shape = {"dataset": "random", "concurrency": 4, "prompts": 16, "seed": 1, "output": 8}
    shape |= {"shared_prefix": 0, "random_len": 1024, "range_ratio": 0.0}
    return Scenario.model_validate(
        {
            "schema": 1,
            "name": "s",
            "model": "m",
            "server": {"kind": "tiny-omni"},
            "arms": {"cache_off": {"baseline": True}, "cache_on": {}},
            "rounds": 2,
            "benches": tuple({**shape, **one, **bench} for one in BENCHES),
        }
    )


def ended(planned, **values):
    return TrialRecord.model_validate(
        {
            "round": planned.round,
            "position": planned.position,
            "arm": planned.arm,
            "status": "finished",
            "started_at": "2026-01-01T00:00:00Z",
            "finished_at": "2026-01-01T00:01:00Z",
            "argv": (),
            "env": {},
            "resolved": {},
            "resolved_sha256": "0",
            "pid": 1,
            "port": 1,
            "versions": {},
            "sources": (),
            "cache_config": {},
            "time_to_ready": 1.0,
            "first_request": None,
            "memory_ready": None,
            "memory_end": None,
            "memory_peak": None,
            "benches": ("warm", "P1024"),
            "stopped_by": "sigterm",
            **values,
        }
    )


def cells(**on):
    return [
        make_cell(trial.arm, trial.round, trial.position, **(on if trial.arm == "cache_on" else {})) for trial in PLAN
    ]


def test_every_round_pairs_the_arm_with_its_own_baseline():
    """One pair a round, of the cells of that round; the unreported bench has none."""
    pairs = pair_up(scenario(), PLAN, [ended(trial) for trial in PLAN], cells())
    assert [(pair.bench, pair.arm, pair.round) for pair in pairs] == [
        ("P1024", "cache_on", 1),
        ("P1024", "cache_on", 2),
    ]
    assert all(pair.valid for pair in pairs)
    assert [(pair.base.cell.round, pair.other.cell.round) for pair in pairs] == [(1, 1), (2, 2)]


def test_an_invalid_cell_names_its_trial():
    """A reason against one cell drops the pair and says whose it is."""
    broken = cells()
    broken[2] = make_cell("cache_on", 2, 1, invalid=("1 requests failed; allowed: 0",))
    first, second = pair_up(scenario(), PLAN, [ended(trial) for trial in PLAN], broken)
    assert first.valid
    assert second.reasons == ("r02-1-cache_on: 1 requests failed; allowed: 0",)


def test_disagreeing_arms_drop_the_pair_only_where_tokens_are_fixed():
    """Unequal output tokens are a reason with ignore_eos and none without."""
    trials = [ended(trial) for trial in PLAN]
    (pair, _) = pair_up(scenario(), PLAN, trials, cells(total_output_tokens=100))
    assert pair.reasons == ("arms disagree on output tokens: cache_off 128, cache_on 100",)
    (pair, _) = pair_up(scenario(ignore_eos=False), PLAN, trials, cells(total_output_tokens=100))
    assert pair.valid


def test_a_trial_not_run_yet_leaves_its_pair_pending():
    """A killed run has pairs without a partner: pending, not dropped."""
    first, second = pair_up(scenario(), PLAN, [ended(trial) for trial in PLAN[:3]], cells()[:3])
    assert first.valid
    assert second.pending
    assert second.reasons == ()


@pytest.mark.parametrize("measured", [4, 3])
def test_a_failed_trial_takes_all_its_pairs(measured):
    """A server that died later is not trusted for what it measured before."""
    trials = [ended(trial) for trial in PLAN[:3]] + [ended(PLAN[3], status="failed", failure="the server died")]
    _, second = pair_up(scenario(), PLAN, trials, cells()[:measured])
    assert second.reasons == ("r02-2-cache_off: the trial failed: the server died",)


def test_a_finished_trial_without_the_bench_is_a_reason():
    """A cell that should be there and is not drops the pair loudly."""
    _, second = pair_up(scenario(), PLAN, [ended(trial) for trial in PLAN], cells()[:3])
    assert second.reasons == ("r02-2-cache_off: the trial finished without this bench",)
