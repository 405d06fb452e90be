import json

import pytest

from prefix_cache.bench.cases import Case, Sizes, catalogue, select
from prefix_cache.bench.results import Ratio, Results, mean_wall, median_wall, summarise
from prefix_cache.bench.samples import FirstSaves, FirstTimes, Resident, Sample
from prefix_cache.bench.targets import Check, checks


def sample(*walls: int, copy: tuple[int, ...] = ()) -> Sample:
    ones = [1] * len(walls)
    return Sample(
        begin=ones, save=ones, consume=[wall - 2 for wall in walls], thread=ones, process=5.0, copy=list(copy)
    )


def results(ours: list[Sample], peer: list[Sample]) -> Results:
    found = Results(Sizes(), len(ours), 0.0)
    found.samples["decode-64-discard", "inline"] = {"ours": ours, "peer": peer}
    return found


def verdicts(found: Results) -> dict[tuple[str, str], str]:
    return {(check.what, check.mode): check.verdict for check in checks(found)}


def test_ratios_go_repeat_by_repeat() -> None:
    """A ratio is taken within each repeat, and its median and extremes over the repeats are kept."""
    found = results(
        [sample(10, 10), sample(20, 20), sample(40, 40)], [sample(100, 100), sample(20, 20), sample(80, 80)]
    )
    ratio = found.against_peer("decode-64-discard", "inline", median_wall)
    assert ratio == Ratio(median=2.0, low=1.0, high=10.0)


def test_the_mean_has_the_flush_in_it() -> None:
    """One slow step of a batch does not move the median, and moves the mean by its share."""
    summary = summarise([sample(10_000, 10_000, 10_000, 50_000)])
    assert (summary.median, summary.mean) == (10.0, 20.0)


def test_a_target_misses_by_one_figure() -> None:
    """A target that only the median keeps is reported as missed by the mean."""
    ours, peer = [sample(10, 10, 10, 10_000)], [sample(2000, 2000, 2000, 2000)]
    assert verdicts(results(ours, peer))["decode-64-discard, thread", "inline"] == "MISSED by mean"
    assert verdicts(results([sample(10)], [sample(2000)]))["decode-64-discard, thread", "inline"] == "held"
    assert verdicts(results([sample(100)], [sample(2000)]))["decode-64-discard, thread", "inline"] == "MISSED"


def test_what_was_not_measured_is_listed() -> None:
    """Without a peer, or without a case, its targets stand in the list as not measured, in both modes."""
    found = Results(Sizes(), 1, 0.0)
    found.samples["decode-64-discard", "inline"] = {"ours": [sample(10)]}
    listed = verdicts(found)
    assert set(listed.values()) == {"not measured"}
    assert {mode for _, mode in listed} == {"inline", "threaded"}
    assert len(listed) == 2 * 19


def test_a_bound_from_above_and_one_on_both_sides() -> None:
    """Copies have an upper bound; resident memory may differ from what was written in neither direction."""
    found = Results(Sizes(), 1, 0.0)
    found.samples["prefill-8192", "inline"] = {"ours": [sample(50, copy=(10,))]}
    found.samples["prefill-8192", "threaded"] = {"ours": [sample(30, copy=(10,))]}
    found.residents["inline"] = {
        "ours": Resident({"1%": 100, "10%": 100, "100%": 100}, {"1%": 106, "10%": 94, "100%": 104})
    }
    listed = verdicts(found)
    assert listed["prefill-8192, in copies", "inline"] == "MISSED"
    assert listed["prefill-8192, in copies", "threaded"] == "held"
    shares = [listed[f"resident, {share} full", "inline"] for share in ("1%", "10%", "100%")]
    assert shares == ["MISSED", "MISSED", "held"]


def test_first_saves() -> None:
    """The first save is held against the median of later ones of its kind; a case that never decodes has none."""
    found = Results(Sizes(), 2, 0.0)
    walls = [FirstSaves([30], [10, 10, 99], [15, 15], [], []), FirstSaves([50], [10], [10], [], [])]
    saves = [FirstTimes(wall, FirstSaves([8], [8], [4], [], [])) for wall in walls]
    found.firsts["first-prefill-512", "inline"] = {"ours": saves}
    assert found.first_over_later("first-prefill-512", "inline", "ours", "fresh blocks") == Ratio(4.0, 3.0, 5.0)
    assert found.first_over_later("first-prefill-512", "inline", "ours", "used blocks") == Ratio(3.5, 2.0, 5.0)
    assert found.first_over_later("first-prefill-512", "inline", "ours", "decoding") is None
    assert found.first_over_later("first-prefill-512", "inline", "ours", "used blocks", thread=True) == Ratio(2, 2, 2)
    assert [FirstTimes.from_json(json.loads(json.dumps(save.to_json()))) for save in saves] == saves


def test_json_keeps_every_measurement() -> None:
    """Samples survive the way through JSON, and so does what they were measured on."""
    before = sample(10, 20, copy=(3, 4))
    assert Sample.from_json(json.loads(json.dumps(before.to_json()))) == before
    for case in catalogue(Sizes()):
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case
    found = results([before], [before])
    found.cases["decode-64-discard"] = catalogue(Sizes())[0]
    document = json.loads(json.dumps(found.to_json()))
    assert document["cases"][0]["sides"]["ours"]["batches_ns"] == [before.to_json()]
    assert found.against_peer("decode-64-discard", "inline", mean_wall) == Ratio(1.0, 1.0, 1.0)


@pytest.mark.parametrize("quick", [False, True])
def test_every_batch_has_its_share_of_flushes(quick: bool) -> None:
    """A batch of decode steps is a multiple of the steps that become one write: every mean has whole flushes."""
    cases = select(catalogue(Sizes()), [], quick=quick, block_size=16)
    assert all(case.steps % 16 == 0 and case.steps > 0 for case in cases if case.kind == "decode")
    assert len({case.name for case in cases}) == len(cases) == 22
    assert [case.name for case in select(cases, ["slots-*", "first-d*"], quick=False, block_size=16)] == [
        "slots-decode-16",
        "slots-decode-64",
        "slots-prefill-8192",
        "first-decode-64",
    ]


def test_goal() -> None:
    """A goal says the direction, the limit and the unit."""
    assert Check("a", "inline", "at least", 100, "x peer", {}).goal == ">= 100 x peer"
    assert Check("a", "inline", "at most", 1.5, "copies", {}).goal == "<= 1.5 copies"
