"""The result of `vllm bench serve` as our records, and what is refused of it.

The results are golden files of the real command (tests/golden/vllm_bench), whole and falsified.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_bench import make_bench

from harness.client.summary import summarise
from harness.client.vllm_bench_result import VllmBenchResult, records_of, summary_of
from harness.errors import HarnessFailure
from harness.records import RequestRecord
from harness.scenario import Bench
from harness.workloads.prompt import Prompt

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm_bench"
FAMILIES = ("ttft", "tpot", "itl", "e2el")


def golden(name: str) -> tuple[dict[str, Any], VllmBenchResult]:
    path = GOLDEN / f"{name}.json"
    speech = name == "speech"
    return json.loads(path.read_text(encoding="utf-8")), VllmBenchResult.read(path, omni=speech, speech=speech)


def bench_of(data: dict[str, Any], **changes: Any) -> tuple[Bench, list[Prompt]]:
    """A bench as large as a golden file, whose prompts ask for what the file's requests got."""
    prompts = [Prompt("p", 5, tokens or 4) for tokens in data["output_lens"]]
    return make_bench(prompts=len(prompts), **changes), prompts


def golden_records(name: str) -> tuple[dict[str, Any], VllmBenchResult, Bench, tuple[RequestRecord, ...]]:
    """A golden file, what is read of it, its bench, and the records made of it."""
    data, result = golden(name)
    bench, prompts = bench_of(data)
    return data, result, bench, records_of(result, bench=bench, prompts=prompts)


def changed(tmp_path: Path, name: str = "chat", **changes: Any) -> Path:
    """A golden result with some keys replaced; None removes one."""
    data = {**golden(name)[0], **changes}
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({key: value for key, value in data.items() if key not in changes or value is not None}))
    return path


def test_every_request_of_the_file_is_a_record() -> None:
    """Times from the first send; what the file does not say is absent."""
    data, _, _, records = golden_records("chat")
    assert [record.index for record in records] == list(range(16))
    for index, record in enumerate(records):
        assert (record.status, record.error) == ("ok", None)
        assert record.sent == data["start_times"][index] - min(data["start_times"])
        assert record.queued == data["queue_times"][index]
        assert (record.ttft, record.latency) == (data["ttfts"][index], data["latencies"][index])
        assert list(record.itl) == data["itls"][index]
        assert (record.prompt_tokens, record.output_tokens) == (data["input_lens"][index], data["output_lens"][index])
        assert record.text == data["generated_texts"][index]
        assert (record.http_status, record.finish_reason, record.cached_tokens, record.tokens_from) == (None,) * 4


@pytest.mark.parametrize("name", ["chat", "completions", "refused"])
def test_our_definitions_give_its_numbers(name: str) -> None:
    """`harness.client.summarise` over the records is what `vllm bench serve` itself wrote in the file."""
    data, _, bench, records = golden_records(name)
    ours = summarise(
        records, bench=bench, duration_s=data["duration"], started_at=datetime.now(UTC), model="m", tokenizer="t"
    ).model_dump()
    keys = ["completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput"]
    keys += ["output_throughput", "total_token_throughput"]
    keys += [f"{statistic}_{family}_ms" for statistic in ("mean", "median", "std") for family in FAMILIES]
    assert {key: ours[key] for key in keys} == pytest.approx({key: data[key] for key in keys})


@pytest.mark.parametrize("name", ["chat", "completions", "refused"])
def test_the_summary_has_its_statistics_and_withholds_percentiles_of_few(name: str) -> None:
    data, result, bench, records = golden_records(name)
    summary = summary_of(
        result, records, bench=bench, started_at=datetime.now(UTC), model="m", tokenizer="t"
    ).model_dump()
    gaps = sum(len(gap) for gap in data["itls"])
    for family in FAMILIES:
        samples = gaps if family == "itl" else data["completed"]
        for statistic, needed in (("mean", 1), ("median", 1), ("std", 1), ("p90", 10), ("p99", 100)):
            key = f"{statistic}_{family}_ms"
            assert summary[key] == (data[key] if samples >= needed else None), key
    assert summary["backend"] == data["backend"]
    assert summary["total_audio_duration_s"] is None


def test_a_failed_request_keeps_its_error_and_has_no_times() -> None:
    """Zeros of the file are times that nobody measured."""
    data, result = golden("refused")
    bench, prompts = bench_of(data)
    records = records_of(result, bench=bench, prompts=prompts)
    failed = [record for record in records if record.status == "failed"]
    assert len(failed) == data["failed"] == 3
    for record in failed:
        assert (record.error, record.ttft, record.latency, record.itl) == ("Bad Request", None, None, ())


def test_speech_is_told_by_the_summary_alone() -> None:
    """vLLM-Omni's client times no single request to its last sound, and says of speech what it adds up to."""
    data, result = golden("speech")
    bench, prompts = bench_of(data, modalities=("text", "audio"))
    records = records_of(result, bench=bench, prompts=prompts)
    summary = summary_of(result, records, bench=bench, started_at=datetime.now(UTC), model="m", tokenizer="t")
    for record in records:
        assert (record.status, record.latency, record.queued) == ("ok", None, None)
        assert (record.audio_seconds, record.audio_rtf, record.ttfp, record.audio_sha256) == (None,) * 4
    assert summary.total_audio_duration_s == data["total_audio_duration_s"] > 0
    assert summary.median_audio_ttfp_ms == data["median_audio_ttfp_ms"]
    assert summary.mean_audio_rtf == data["mean_audio_rtf"]
    assert summary.median_e2el_ms == data["median_e2el_ms"]
    assert summary.median_tpot_ms == pytest.approx(1e3 * np.median([np.mean(gaps) for gaps in data["itls"]]))


def test_an_answer_cut_short_is_failed_here() -> None:
    """It is completed to `vllm bench serve`, and would make a cell look fast; our own client fails it too."""
    data, result = golden("chat")
    bench, prompts = bench_of(data)
    prompts[3] = Prompt("p", 5, prompts[3].output_len + 1)
    records = records_of(result, bench=bench, prompts=prompts)
    assert [record.index for record in records if record.status == "failed"] == [3]
    assert (
        records[3].error
        == f"partial output: {data['output_lens'][3]} of {prompts[3].output_len} tokens, with ignore_eos"
    )
    summary = summary_of(result, records, bench=bench, started_at=datetime.now(UTC), model="m", tokenizer="t")
    assert (summary.completed, summary.failed) == (15, 1)
    assert summary.request_throughput == pytest.approx(15 / data["duration"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"errors": None}, "errors: Field required"),
        ({"ttfts": [0.1]}, "ttfts has 1 entries for 16 prompts"),
        ({"completed": 15}, "15 completed and 0 failed, yet 0 errors"),
        ({"duration": 0.0}, "a duration of 0.0 s"),
        ({"itls": "fast"}, "itls: Input should be a valid array, found 'fast'"),
        ({"duration": float("inf")}, "duration: Input should be a finite number, found inf"),
        ({"latencies": None}, "latencies: Field required"),
        ({"queue_times": None}, "queue_times: Field required"),
        ({"std_itl_ms": None}, "std_itl_ms: found nothing, expected a finite number"),
    ],
)
def test_a_result_that_is_not_understood_is_one_message(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HarnessFailure, match=message):
        VllmBenchResult.read(changed(tmp_path, **changes))


@pytest.mark.parametrize("name", ["chat", "speech"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("statistic", ["mean", "median", "p90", "p99"])
@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, "nothing, expected a finite number"),
        ("12.5", "'12.5', expected a finite number"),
        (True, "True, expected a finite number"),
        (float("nan"), "nan, expected a finite number"),
        (-1.0, "-1.0, expected a finite number of at least 0"),
        (1e9, "1000000000, expected "),
    ],
)
def test_a_statistic_that_was_asked_for_is_there_and_true(
    tmp_path: Path, name: str, family: str, statistic: str, value: object, found: str
) -> None:
    """Null in the report is for what had no sample, and no number is taken that its own requests contradict."""
    key, speech = f"{statistic}_{family}_ms", name == "speech"
    with pytest.raises(HarnessFailure, match=f"not a result of vllm bench serve: {key}: found {found}"):
        VllmBenchResult.read(changed(tmp_path, name, **{key: value}), omni=speech, speech=speech)


@pytest.mark.parametrize("statistic", ["mean", "std"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["chat", "completions", "refused"])
def test_a_statistic_is_that_of_the_completed_requests(tmp_path: Path, name: str, family: str, statistic: str) -> None:
    """To a thousandth and less, in every family, failed requests left out."""
    key = f"{statistic}_{family}_ms"
    value = golden(name)[0][key]
    VllmBenchResult.read(changed(tmp_path, name, **{key: value * (1 + 1e-9)}))
    with pytest.raises(HarnessFailure, match=f"{key}: found .*, expected {value:.10g} by the requests' own times"):
        VllmBenchResult.read(changed(tmp_path, name, **{key: value * 1.001}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"request_throughput": None}, "request_throughput: Field required"),
        ({"request_throughput": "fast"}, "request_throughput: Input should be a valid number, .*, found 'fast'"),
        ({"duration": 3.537922712999716 / 2}, "request_throughput: found 2.26.*, expected 4.52.* by 8 in 1.76896 s"),
        ({"output_throughput": 1.0}, "output_throughput: found 1, expected 13.56.* by 48 in 3.53792 s"),
        ({"total_token_throughput": 1.0}, "total_token_throughput: found 1, expected 665.36.* by 2354 in"),
        ({"input_lens": [1] * 8}, "total_input_tokens: found 2306, expected 8 by input_lens of those completed"),
        ({"total_input_tokens": 2305}, "total_input_tokens: found 2305, expected 2306 by"),
        (
            {"input_lens": [10**6] * 8, "total_input_tokens": 8 * 10**6 + 1},
            "found 8000001, expected 8000000 by input_lens",
        ),
        ({"total_output_tokens": 1}, "total_output_tokens: found 1, expected 48 by output_lens"),
        ({"output_lens": [-6, *[6] * 7]}, "output_lens: 0: Input should be greater than or equal to 0, found -6"),
        ({"ttfts": [-1.0] * 8}, "ttfts: 0: Input should be greater than or equal to 0, found -1.0"),
        ({"itls": [[0.1], [-0.1], *[[0.1]] * 6]}, "itls: 1: 0: Input should be .* equal to 0, found -0.1"),
        ({"latencies": [3.0, -3.0, *[3.0] * 6]}, "latencies: 1: Input should be .* equal to 0, found -3.0"),
        ({"queue_times": [-0.1] * 8}, "queue_times: 0: found -0.1, expected at least 0 s"),
        ({"ttfts": [0.0] * 8}, "ttfts: 0: found 0.0, expected more than 0 s of a completed request"),
        ({"ttfts": [0.5, None, *[0.5] * 6]}, "ttfts: 1: found None, expected more than 0 s of a completed request"),
        ({"latencies": [0.0] * 8}, "latencies: 0: found 0.0, expected at least its ttft, 0.87494"),
        ({"ttfts": [0.5] * 8}, "mean_ttft_ms: found 1278.34.*, expected 500 by the requests' own times"),
    ],
)
def test_a_result_that_contradicts_itself_is_one_message(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """It says which field, what was found there, and what was expected."""
    with pytest.raises(HarnessFailure, match=message):
        VllmBenchResult.read(changed(tmp_path, "completions", **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean_audio_rtf": None}, "mean_audio_rtf: found nothing, expected a finite number"),
        ({"p99_audio_ttfp_ms": "soon"}, "p99_audio_ttfp_ms: found 'soon', expected a finite number"),
        ({"total_audio_duration_s": None}, "total_audio_duration_s: found nothing, expected a finite number"),
        ({"audio_throughput": 1.0}, "audio_throughput: found 1, expected 50.95.* by total_audio_duration_s in 0.26"),
        ({"ttfts": [0.5] * 4}, "mean_ttft_ms: found 21.92.*, expected 500 by the requests' own times"),
    ],
)
def test_a_result_of_speech_that_contradicts_itself_is_one_message(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(HarnessFailure, match=message):
        VllmBenchResult.read(changed(tmp_path, "speech", **changes), omni=True, speech=True)


def test_what_had_no_sample_need_not_be_there(tmp_path: Path) -> None:
    """Answers of one token have no gaps: the statistics are 0 to vLLM's client, absent to vLLM-Omni's, None to us."""
    data = golden("speech")[0]
    single = {
        "output_lens": [1] * 4,
        "itls": [[]] * 4,
        "total_output_tokens": 4,
        "output_throughput": 4 / data["duration"],
        "total_token_throughput": (226 + 4) / data["duration"],
    }
    gaps: dict[str, Any] = {key: None for key in data if key.endswith(("_tpot_ms", "_itl_ms"))}
    result = VllmBenchResult.read(changed(tmp_path, "speech", **single, **gaps), omni=True, speech=True)
    bench, prompts = bench_of({"output_lens": [1] * 4}, modalities=("text", "audio"))
    records = records_of(result, bench=bench, prompts=prompts)
    assert [record.error for record in records] == [None] * 4
    summary = summary_of(result, records, bench=bench, started_at=datetime.now(UTC), model="m", tokenizer="t")
    assert (summary.mean_tpot_ms, summary.mean_itl_ms) == (None, None)
    assert summary.mean_ttft_ms == data["mean_ttft_ms"]

    data = golden("completions")[0]
    single = {
        "output_lens": [1] * 8,
        "itls": [[]] * 8,
        "total_output_tokens": 8,
        "output_throughput": 8 / data["duration"],
        "total_token_throughput": (2306 + 8) / data["duration"],
    }
    zeros = {key: 0.0 for key in data if key.endswith(("_tpot_ms", "_itl_ms"))}
    VllmBenchResult.read(changed(tmp_path, "completions", **single, **zeros))


def test_a_tpot_that_was_not_timed_by_gaps_is_not_compared_with_them(tmp_path: Path) -> None:
    """vLLM-Omni's client may have it from the server, of a request whose gaps it did not see."""
    data = golden("speech")[0]
    itls = [[], *data["itls"][1:]]
    gaps = [1e3 * gap for of_one in itls for gap in of_one]
    told = {f"p{percent}_itl_ms": np.percentile(gaps, percent) for percent in (90, 99)}
    told |= {"mean_itl_ms": np.mean(gaps), "median_itl_ms": np.median(gaps), "mean_tpot_ms": 7.0}
    result = VllmBenchResult.read(changed(tmp_path, "speech", itls=itls, **told), omni=True, speech=True)
    assert result.statistic("mean_tpot_ms") == 7.0


def test_a_load_that_failed_as_a_whole_is_a_result(tmp_path: Path) -> None:
    """Every statistic is 0 then, of no sample."""
    data = golden("refused")[0]
    nothing: dict[str, Any] = {key: 0.0 for key in data if key.endswith(("_ms", "_throughput"))}
    zeros = [0.0] * 8
    nothing |= {"completed": 0, "failed": 8, "total_input_tokens": 0, "total_output_tokens": 0}
    nothing |= {"errors": ["Bad Request"] * 8, "output_lens": [0] * 8, "ttfts": zeros, "latencies": zeros}
    nothing |= {"itls": [[]] * 8}
    result = VllmBenchResult.read(changed(tmp_path, "refused", **nothing))
    bench, prompts = bench_of(data)
    assert {record.error for record in records_of(result, bench=bench, prompts=prompts)} == {"Bad Request"}


def test_an_answer_longer_than_asked_for_is_failed_here() -> None:
    """It did other work than its bench says; where the body says how long an answer is, the bench does not know."""
    data, result = golden("chat")
    bench, prompts = bench_of(data)
    prompts[3] = Prompt("p", 5, data["output_lens"][3] - 1)
    records = records_of(result, bench=bench, prompts=prompts)
    assert {record.index: record.error for record in records if record.error} == {
        3: f"too long an output: {data['output_lens'][3]} tokens, where at most {prompts[3].output_len} were asked for"
    }
    unknown, _ = bench_of(data, extra_body={"max_tokens": 64})
    assert not any(record.error for record in records_of(result, bench=unknown, prompts=prompts))


def test_the_tokens_of_speech_are_not_held_against_an_answer() -> None:
    """vLLM-Omni's client takes the largest count that it is told of, and the Talker's is one."""
    data, result = golden("speech")
    bench, _ = bench_of(data, modalities=("text", "audio"))
    records = records_of(result, bench=bench, prompts=[Prompt("p", 5, 1)] * 4)
    assert [record.error for record in records] == [None] * 4


def test_an_answer_of_which_no_text_came_is_failed_here(tmp_path: Path) -> None:
    """vLLM-Omni's client calls it completed, first token at 0; our own client fails it in these words."""
    data = golden("speech")[0]
    zeros = {key: 0.0 for key in data if key.endswith("_ttft_ms")}
    result = VllmBenchResult.read(changed(tmp_path, "speech", ttfts=[0.0] * 4, **zeros), omni=True, speech=True)
    bench, prompts = bench_of(data, modalities=("text", "audio"))
    records = records_of(result, bench=bench, prompts=prompts)
    assert [record.error for record in records] == ["no text came (8 output tokens counted)"] * 4


def test_a_result_of_other_prompts_is_refused() -> None:
    bench, prompts = bench_of(golden("chat")[0])
    with pytest.raises(HarnessFailure, match="sent 16 prompts; the bench has 15"):
        records_of(golden("chat")[1], bench=bench, prompts=prompts[:-1])
