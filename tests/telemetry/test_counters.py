import pytest
from metrics_text import OMNI, VLLM

from harness.errors import ArmMismatch, CounterReset, MetricAbsent
from harness.telemetry.counters import (
    HIT_COUNTERS,
    HITS,
    QUERIES,
    cache_config,
    changed,
    delta,
    hit_counters,
    metrics_delta,
    stage_samples,
    total,
    verify_arm,
)
from harness.telemetry.scrape import parse

COUNTED = "vllm:prefix_cache_queries_total"


def test_monotone_series() -> None:
    """Counters and the parts of histograms are monotone; gauges and times of creation are not."""
    assert parse(VLLM).monotone == {
        "python_gc_objects_collected_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:time_to_first_token_seconds_count",
        "vllm:time_to_first_token_seconds_sum",
    }


def test_page_that_is_not_metrics() -> None:
    """Text in another format is refused."""
    with pytest.raises(ValueError, match=r"\S"):
        parse("<html>{not metrics</html>\n")


def test_stage_samples() -> None:
    """A stage's series are those with its label; series of a server without stages are stage 0's."""
    assert [s.value for s in stage_samples(parse(OMNI)) if s.name == COUNTED] == [10.0, 20.0]
    assert [s.value for s in stage_samples(parse(OMNI), "1")] == [700.0]
    assert [s.value for s in stage_samples(parse(VLLM)) if s.name == COUNTED] == [100.0, 50.0]
    assert stage_samples(parse(VLLM), "1") == ()


def test_total_sums_everything() -> None:
    """A total is over all stages, engines and replicas, and an absent series is an error."""
    assert total(parse(OMNI), COUNTED) == 730.0
    assert total(parse(VLLM), "vllm:num_requests_running") == 3.0
    with pytest.raises(MetricAbsent, match="publishes no vllm:num_requests_waiting"):
        total(parse(VLLM), "vllm:num_requests_waiting")


def test_delta_sums_over_engines() -> None:
    """The increase of each counter is summed over the engines."""
    after = VLLM.replace("} 100.0", "} 180.0").replace("} 50.0", "} 51.5").replace("} 32.0", "} 64.0")
    increases = delta(parse(VLLM), parse(after), HIT_COUNTERS)
    assert increases == {QUERIES: 81.5, HITS: 32.0}
    assert hit_counters(increases) == (81.5, 32.0)


def test_delta_of_one_stage_keeps_the_caches_own_counters() -> None:
    """Other stages do not count; `prefix_cache:*` counters come along without buckets and gauges."""
    after = (
        OMNI.replace("} 20.0", "} 27.0")
        .replace("} 700.0", "} 999.0")
        .replace("} 4096.0", "} 5096.0")
        .replace("sum 0.5", "sum 0.75")
    )
    assert delta(parse(OMNI), parse(after), [COUNTED]) == {
        COUNTED: 7.0,
        "prefix_cache:written_bytes_total": 1000.0,
        "prefix_cache:merge_seconds_count": 0.0,
        "prefix_cache:merge_seconds_sum": 0.25,
    }


def test_absent_counter_is_an_error_and_not_zero() -> None:
    """A named counter that a scrape lacks is an error that names counter, stage and scrape."""
    without = "\n".join(line for line in VLLM.splitlines() if "hits_total" not in line) + "\n"
    with pytest.raises(MetricAbsent, match=f"stage 0 publishes no {HITS} before"):
        delta(parse(without), parse(VLLM), HIT_COUNTERS)
    with pytest.raises(MetricAbsent, match=f"stage 0 publishes no {HITS} after"):
        delta(parse(VLLM), parse(without), HIT_COUNTERS)
    with pytest.raises(MetricAbsent, match=f"stage 2 publishes no {COUNTED} before"):
        delta(parse(OMNI), parse(OMNI), [COUNTED], stage="2")
    with pytest.raises(MetricAbsent, match="prefix_cache_hits_total was not measured"):
        hit_counters({QUERIES: 1.0})


def test_counter_that_went_backwards() -> None:
    """One engine's counter that fell is an error even when the sum rose."""
    after = VLLM.replace("} 100.0", "} 900.0").replace("} 50.0", "} 49.0")
    with pytest.raises(
        CounterReset, match=r'queries_total\{engine="1",model_name="tiny"\} went backwards, from 50 to 49'
    ):
        delta(parse(VLLM), parse(after), HIT_COUNTERS)
    shrunk = OMNI.replace("} 1024.0", "} 1000.0")
    with pytest.raises(CounterReset, match=r'written_bytes_total\{key="mid"\} went backwards'):
        delta(parse(OMNI), parse(shrunk), [COUNTED])


def test_series_that_comes_or_goes() -> None:
    """An engine's series that appears or vanishes during the bench is an error that names it."""
    fewer = "\n".join(line for line in VLLM.splitlines() if 'engine="1"' not in line) + "\n"
    with pytest.raises(MetricAbsent, match=r'engine="1".* was no longer published after'):
        delta(parse(VLLM), parse(fewer), HIT_COUNTERS)
    with pytest.raises(MetricAbsent, match=r'engine="1".* was not published before'):
        delta(parse(fewer), parse(VLLM), HIT_COUNTERS)


def test_cache_counter_that_comes_is_left_out_and_one_that_goes_is_an_error() -> None:
    """Of a cache counter with a new series the start is unknown: no increase is made up for it."""
    fewer = "\n".join(line for line in OMNI.splitlines() if 'key="mid"' not in line) + "\n"
    assert "prefix_cache:written_bytes_total" not in delta(parse(fewer), parse(OMNI), [COUNTED])
    with pytest.raises(MetricAbsent, match=r'written_bytes_total\{key="mid"\} was no longer'):
        delta(parse(OMNI), parse(fewer), [COUNTED])


def test_metrics_delta_keeps_the_series() -> None:
    """The record holds the series of the stage that it was taken from, labels and all, and the cache's gauges."""
    record = metrics_delta(parse(OMNI), parse(OMNI.replace("} 10.0", "} 11.0")), [COUNTED])
    assert record.delta[COUNTED] == 1.0
    queries = [sample for sample in record.after if sample.name == COUNTED]
    assert [(s.labels["replica"], s.labels["stage"], s.value) for s in queries] == [("0", "0", 11.0), ("1", "0", 20.0)]
    assert [s.value for s in record.before if s.name == "prefix_cache:resident_bytes"] == [8192.0]


def test_cache_config() -> None:
    """Labels of the configuration, without those that tell engines apart; differing values are all shown."""
    config = cache_config(parse(VLLM))
    assert config == {"block_size": "128", "enable_prefix_caching": "True", "num_gpu_blocks": "64|72"}
    with pytest.raises(MetricAbsent, match="publishes no vllm:cache_config_info"):
        cache_config(parse(OMNI))


@pytest.mark.parametrize("says", ["True", "true"])
def test_arm_is_what_it_claims(says: str) -> None:
    """Agreement passes, and an arm that claims nothing is not checked."""
    verify_arm(True, {"enable_prefix_caching": says})
    verify_arm(None, {})


@pytest.mark.parametrize(("expected", "says"), [(True, "False"), (False, "True"), (True, "False|True"), (True, "None")])
def test_arm_is_not_what_it_claims(expected: bool, says: str) -> None:
    """Disagreement, also of one engine among several, names what was set and what the server says."""
    with pytest.raises(ArmMismatch, match=rf"enable_prefix_caching={expected}, but .*'{says.replace('|', '.')}'"):
        verify_arm(expected, {"enable_prefix_caching": says})


def test_arm_that_does_not_say() -> None:
    """A configuration without the label proves nothing."""
    with pytest.raises(MetricAbsent, match="no label enable_prefix_caching; it has block_size"):
        verify_arm(False, {"block_size": "16"})


def test_changed_looks_at_monotone_series_of_the_server() -> None:
    """Gauges and the process' own counters may move; a server's counter that moves, comes or goes is named."""
    moved = VLLM.replace("12961.0", "12999.0").replace("} 2.0", "} 0.0")
    assert changed(parse(VLLM), parse(moved), ("vllm:",)) == []
    assert changed(parse(VLLM), parse(VLLM.replace("} 32.0", "} 48.0")), ("vllm:",)) == [
        'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 32 -> 48'
    ]
    fewer = VLLM.replace('vllm:prefix_cache_hits_total{engine="1",model_name="tiny"} 16.0\n', "")
    assert changed(parse(fewer), parse(VLLM), ("vllm:",)) == [
        'vllm:prefix_cache_hits_total{engine="1",model_name="tiny"} absent -> 16'
    ]
