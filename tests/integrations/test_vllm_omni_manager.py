"""The manager, call by call, with imitated inputs of vLLM-Omni's runner."""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from vllm_omni_imitation import (
    HIDDEN_KEY,
    Batch,
    CachedRequestData,
    ModelCachePolicy,
    NewRequestData,
    PrefixCacheConfig,
    Runner,
    SchedulerOutput,
    SlidingWindowSpec,
    pretend_installed,
)

from prefix_cache import StepError
from prefix_cache.errors import (
    BlockSizeMismatch,
    CacheFailed,
    ConfigError,
    ContextParallelism,
    HybridLayout,
    KVTransfer,
    SpeculativeDecoding,
    UnalignedMatching,
)
from prefix_cache.integrations.exposition import PROOF, Exposition
from prefix_cache.integrations.vllm_omni import manager
from prefix_cache.integrations.vllm_omni.engine import building_for, refuse_v2
from prefix_cache.integrations.vllm_omni.manager import BundledManager
from prefix_cache.integrations.vllm_omni.passthrough import HandedOut

BLOCK, BLOCKS = 2, 16


class NoPage:
    """SIMULATED: a page that nobody serves, since closing a real one takes half a second."""

    url = "http://127.0.0.1:0/metrics"

    def __init__(self, stats: Any, labels: Any) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch)
    monkeypatch.setenv("PREFIX_CACHE_WARM_BYTES", "0")
    monkeypatch.setattr(manager, "Exposition", NoPage)


class Stage:
    """A runner and its manager, driven a step at a time."""

    def __init__(self, **facts: Any) -> None:
        self.runner = Runner(BLOCK, **facts)
        with building_for(self.runner):
            self.manager = BundledManager(PrefixCacheConfig(BLOCKS, BLOCK), None)
        self.manager.register_policy(self.runner._omni_cache_policy)

    def begin(self, *requests: tuple[str, int, list[int], int], new: tuple[str, ...] = (), **others: Any) -> None:
        """Requests: id, computed, blocks, scheduled."""
        announced = [NewRequestData(name, computed, (blocks,)) for name, computed, blocks, _ in requests if name in new]
        scheduled = {name: count for name, _, _, count in requests if count}
        self.manager.new_step_starts(SchedulerOutput(scheduled, announced, **others))
        self.runner.input_batch = Batch([(name, computed, blocks) for name, computed, blocks, _ in requests])

    def save(self, hidden: torch.Tensor | None, mm: dict[str, Any] | None = None, padded: int | None = None) -> int:
        count = sum(self.manager._scheduled.values())
        return self.manager.save_outputs(
            hidden, mm, num_tokens_unpadded=count, num_tokens_padded=count if padded is None else padded
        )


@pytest.fixture
def make() -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def stage(**facts: Any) -> Stage:
        made.append(Stage(**facts))
        return made[-1]

    yield stage
    for each in made:
        each.manager.shutdown()


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([[value, value] for value in values])


def column(tensor: torch.Tensor) -> list[float]:
    return tensor[:, 0].tolist()


def computed_prefix(stage: Stage, **mm: Any) -> None:
    """Request `a` computes the four tokens 1 to 4 into blocks 3 and 5, and ends."""
    stage.begin(("a", 0, [3, 5], 4), new=("a",))
    stage.manager.discard_step(stage.save(rows(1, 2, 3, 4), mm))


def test_a_hit_is_handed_out_in_front_of_the_requests_own_rows(make: Callable[..., Stage]) -> None:
    """Of a new request whose first blocks another has filled, the next stage gets the whole prompt."""
    stage = make()
    computed_prefix(stage, codes=rows(10, 20, 30, 40))
    stage.begin(("b", 4, [3, 5, 7], 1), new=("b",), finished_req_ids={"a"})
    outputs = stage.manager.materialize(stage.save(rows(5), {"codes": rows(50)}), ["b"])
    assert column(outputs.hidden_states["b"]) == [1, 2, 3, 4, 5]
    assert column(outputs.mm_outputs["codes"]["b"]) == [10, 20, 30, 40, 50]


def test_rows_of_inference_mode_are_read_outside_of_it(make: Callable[..., Stage]) -> None:
    """The output builder's thread is in another mode than the engine's."""
    stage = make()
    with torch.inference_mode():
        computed_prefix(stage)
        stage.begin(("b", 4, [3, 5, 7], 1), new=("b",), finished_req_ids={"a"})
        step = stage.save(rows(5), {"lists": [rows(9)]})
    assert not torch.is_inference_mode_enabled()
    outputs = stage.manager.materialize(step, ["b"])
    assert column(outputs.hidden_states["b"]) == [1, 2, 3, 4, 5]
    assert column(outputs.mm_outputs["lists"]["b"][0]) == [9]


def test_only_tensors_with_a_row_per_token_are_kept(make: Callable[..., Stage]) -> None:
    """As many rows as tokens, padding included or not, of two or more dimensions; the rest is of this step alone."""
    stage = make()
    stage.begin(("a", 0, [3, 5], 3), new=("a",))
    mm = {
        "exact": rows(1, 2, 3),
        "padded": rows(1, 2, 3, -1),
        "flat": torch.tensor([1.0, 2.0, 3.0]),
        "longer": rows(7, 7, 7, 7, 7),
        "name": "a word",
    }
    outputs = stage.manager.materialize(stage.save(rows(1, 2, 3, -1), mm, padded=4), ["a"])
    assert column(outputs.hidden_states["a"]) == [1, 2, 3]
    assert column(outputs.mm_outputs["padded"]["a"]) == [1, 2, 3]
    assert outputs.mm_outputs["flat"]["a"].tolist() == [1, 2, 3]
    assert column(outputs.mm_outputs["longer"]["a"]) == [7] * 5
    assert outputs.mm_outputs["name"]["a"] == "a word"
    stage.manager.shutdown()  # what is on its way to the store is there
    assert set(stage.manager._cache.stats().resident_bytes) == {HIDDEN_KEY, "exact", "padded"}


def test_a_key_that_some_steps_omit_never_serves_an_old_tenants_row(make: Callable[..., Stage]) -> None:
    """Zeros where nobody emitted it, whatever stood in the block before; also of a key that came after the read."""
    stage = make()
    computed_prefix(stage, codes=rows(10, 20, 30, 40))
    stage.begin(("b", 0, [3, 5], 4), new=("b",), finished_req_ids={"a"})
    stage.manager.discard_step(stage.save(rows(6, 7, 8, 9)))
    stage.begin(("c", 4, [3, 5, 7], 1), new=("c",), finished_req_ids={"b"})
    outputs = stage.manager.materialize(stage.save(rows(5), {"codes": rows(50), "later": rows(60)}), ["c"])
    assert column(outputs.hidden_states["c"]) == [6, 7, 8, 9, 5]
    assert column(outputs.mm_outputs["codes"]["c"]) == [0, 0, 0, 0, 50]
    assert column(outputs.mm_outputs["later"]["c"]) == [0, 0, 0, 0, 60]


def test_a_hit_without_hidden_rows_is_an_error(make: Callable[..., Stage]) -> None:
    """What was never computed here is not served as zeros; the failure is final."""
    stage = make()
    stage.begin(("b", 4, [3, 5, 7], 1), new=("b",))

    def read() -> None:
        stage.manager.materialize(stage.save(rows(5)), ["b"]).hidden_states["b"]

    with pytest.raises(CacheFailed):
        read()
    with pytest.raises(CacheFailed):
        stage.begin(("b", 5, [3, 5, 7], 1))


@pytest.mark.parametrize("other", [torch.zeros(1, 3), torch.zeros(1, 2, dtype=torch.float16)])
def test_rows_that_change_their_width_or_dtype_are_refused(make: Callable[..., Stage], other: torch.Tensor) -> None:
    """A store of one shape per key never casts silently."""
    stage = make()
    computed_prefix(stage, codes=rows(1, 2, 3, 4))
    stage.begin(("a", 4, [3, 5, 7], 1))
    with pytest.raises(StepError, match="codes"):
        stage.save(rows(5), {"codes": other})


def test_what_is_passed_through_is_copied_at_the_save_and_made_once(make: Callable[..., Stage]) -> None:
    """The engine overwrites its buffers; two readers of one request get the same object, two requests do not."""
    stage = make()
    stage.begin(("a", 0, [3], 1), ("b", 0, [4], 1), new=("a", "b"))
    buffer = torch.ones(1, 1, 2)
    nested = {"inner": [buffer], "tuple": (buffer, 3)}
    step = stage.save(rows(1, 2), {"lists": [buffer], "nested": nested})
    buffer.fill_(-1)
    outputs = stage.manager.materialize(step, ["a", "b"]).mm_outputs
    assert outputs["lists"]["a"][0].unique().tolist() == [1]
    assert outputs["nested"]["b"]["inner"][0].unique().tolist() == [1]
    assert outputs["nested"]["b"]["tuple"][0].unique().tolist() == [1]
    assert outputs["lists"]["a"] is outputs["lists"]["a"]
    outputs["lists"]["a"][0].fill_(7)
    assert outputs["lists"]["b"][0].unique().tolist() == [1]


def test_a_tensor_as_long_as_the_step_is_cut_by_request(make: Callable[..., Stage]) -> None:
    """In the batch's order, not the order in which requests are asked for."""
    stage = make()
    stage.begin(("a", 0, [3], 2), ("b", 0, [4], 1), new=("a", "b"))
    outputs = stage.manager.materialize(stage.save(rows(1, 2, 3), {"flat": torch.tensor([1, 2, 3])}), ["b", "a"])
    assert outputs.mm_outputs["flat"]["a"].tolist() == [1, 2]
    assert outputs.mm_outputs["flat"]["b"].tolist() == [3]
    assert list(outputs.mm_outputs["flat"]) == ["b", "a"]


def test_a_model_that_needs_no_whole_prompt_is_handed_no_hidden_states(make: Callable[..., Stage]) -> None:
    """None, as the runner expects; other rows are kept."""
    stage = make(hidden=False)
    computed_prefix(stage, codes=rows(1, 2, 3, 4))
    stage.begin(("b", 4, [3, 5, 7], 1), new=("b",), finished_req_ids={"a"})
    outputs = stage.manager.materialize(stage.save(rows(5), {"codes": rows(50)}), ["b"])
    assert outputs.hidden_states is None
    assert column(outputs.mm_outputs["codes"]["b"]) == [1, 2, 3, 4, 50]


def test_a_model_that_needs_it_must_emit_it(make: Callable[..., Stage]) -> None:
    """Tokens without hidden states are refused when they are saved, not when somebody hits them."""
    stage = make()
    stage.begin(("a", 0, [3], 1), new=("a",))
    with pytest.raises(StepError, match="hidden"):
        stage.save(None)


def test_a_step_is_consumed_once_by_requests_of_its_own(make: Callable[..., Stage]) -> None:
    """A subset may be read; an unknown request, a second time and a step never saved are errors."""
    stage = make()
    stage.begin(("a", 0, [3], 1), ("b", 0, [4], 1), new=("a", "b"))
    step = stage.save(rows(1, 2))
    with pytest.raises(StepError, match="other"):
        stage.manager.materialize(step, ["a", "other"])
    outputs = stage.manager.materialize(step, ["b"])
    assert list(outputs.hidden_states) == ["b"]
    assert "a" not in outputs.hidden_states
    with pytest.raises(KeyError):
        outputs.hidden_states["a"]
    for again in (step, step + 1):
        with pytest.raises(StepError):
            stage.manager.materialize(again, ["a"])
        with pytest.raises(StepError):
            stage.manager.discard_step(again)


def test_a_step_that_emits_nothing_is_told_from_one_that_emits_something(make: Callable[..., Stage]) -> None:
    """Without outputs the mapping is empty: the runner then falls back to its live ones, which are empty too."""
    stage = make()
    stage.begin(("a", 0, [3], 1), new=("a",))
    assert stage.manager.materialize(stage.save(rows(1), {}), ["a"]).mm_outputs == {}
    stage.begin(("a", 1, [3], 1))
    assert set(stage.manager.materialize(stage.save(rows(1), {"some": []}), ["a"]).mm_outputs) == {"some"}


def test_a_live_request_that_is_announced_again_hits_nothing(make: Callable[..., Stage]) -> None:
    """More of a prompt arrives in chunks: its earlier rows were handed out already. Ended, it is new again."""
    stage = make()
    computed_prefix(stage)
    stage.begin(("a", 4, [3, 5, 7], 1), new=("a",))
    assert column(stage.manager.materialize(stage.save(rows(5)), ["a"]).hidden_states["a"]) == [5]
    stage.begin(("a", 4, [3, 5, 7], 1), new=("a",), finished_req_ids={"a"})
    assert column(stage.manager.materialize(stage.save(rows(6)), ["a"]).hidden_states["a"]) == [1, 2, 3, 4, 6]


def test_a_resumed_request_hits_nothing_and_ends_the_peace_of_decoding(make: Callable[..., Stage]) -> None:
    """Its blocks are others: parked rows are written before them."""
    stage = make()
    computed_prefix(stage)
    for token in (4, 5):
        stage.begin(("a", token, [3, 5, 7], 1))
        stage.manager.discard_step(stage.save(rows(token)))
    assert stage.manager._cache.stats().buffered_steps_total == 2
    resumed = CachedRequestData({"a"}, ["a"], [([3, 5, 8],)], [4])
    stage.begin(("a", 4, [3, 5, 8], 1), scheduled_cached_reqs=resumed)
    assert column(stage.manager.materialize(stage.save(rows(9)), ["a"]).hidden_states["a"]) == [9]
    assert stage.manager._cache.stats().buffered_steps_total == 2


def test_hits_of_a_step_without_tokens_are_dropped_with_it(make: Callable[..., Stage]) -> None:
    """Such a step has a beginning and no save."""
    stage = make()
    computed_prefix(stage)
    stage.begin(("b", 4, [3, 5], 0), new=("b",), finished_req_ids={"a"})
    stage.begin(("b", 4, [3, 5, 7], 1))
    assert column(stage.manager.materialize(stage.save(rows(5)), ["b"]).hidden_states["b"]) == [5]


def test_a_save_of_no_tokens_passes_its_other_outputs_through(make: Callable[..., Stage]) -> None:
    """A step that computes nothing may still have something to say."""
    stage = make()
    stage.begin()
    outputs = stage.manager.materialize(stage.save(None, {"note": [torch.ones(1)]}), [])
    assert outputs.hidden_states is None or len(outputs.hidden_states) == 0
    assert "note" in outputs.mm_outputs


def test_a_batch_that_is_not_what_was_scheduled_is_refused(make: Callable[..., Stage]) -> None:
    """Rows whose slots are not known are not stored anywhere."""
    stage = make()
    stage.begin(("a", 0, [3], 1), new=("a",))
    with pytest.raises(StepError, match="1 scheduled tokens, the step has 2"):
        stage.manager.save_outputs(rows(1, 2), {}, num_tokens_unpadded=2, num_tokens_padded=2)


def test_a_block_copied_without_a_forward_is_refused(make: Callable[..., Stage]) -> None:
    """The rows of the copy would be computed by nobody."""
    with pytest.raises(UnalignedMatching, match="copies 1 KV blocks"):
        make().begin(("a", 0, [3], 1), new=("a",), kv_cache_block_copies=[(1, 2)])


def test_nothing_is_merged_for_a_request_that_nobody_reads(make: Callable[..., Stage]) -> None:
    """The runner asks for all requests of a mixed batch, and reads only those that a later stage wants."""
    stage = make()
    computed_prefix(stage)
    stage.begin(("text", 4, [3, 5, 7], 1), ("speech", 4, [3, 5, 8], 1), new=("text", "speech"), finished_req_ids={"a"})
    step = stage.save(rows(5, 6))
    outputs = stage.manager.materialize(step, ["text", "speech"])
    assert stage.manager._cache.stats().merged_bytes_total == 0
    assert outputs.hidden_states
    assert "text" in outputs.hidden_states
    assert stage.manager._cache.stats().merged_bytes_total == 0
    assert column(outputs.hidden_states["speech"]) == [1, 2, 3, 4, 6]
    assert stage.manager._cache.stats().merged_bytes_total == rows(6).nbytes


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"specs": []}, HybridLayout),
        ({"specs": [SlidingWindowSpec()]}, HybridLayout),
        ({"speculative": 3}, SpeculativeDecoding),
        ({"speculative": 0}, SpeculativeDecoding),
        ({"dcp": 2}, ContextParallelism),
        ({"kv_consumer": True}, KVTransfer),
        # Connectors may load for a producer too.
        ({"kv_consumer": False}, KVTransfer),
        ({"match": 1}, UnalignedMatching),
        ({"engine_block_size": 4}, BlockSizeMismatch),
        ({"device": "meta"}, ConfigError),
    ],
)
def test_an_engine_that_cannot_be_followed_is_refused(facts: dict[str, Any], error: type[Exception]) -> None:
    """By the kind of error that says what to change, before a step."""
    with pytest.raises(error):
        Stage(**facts)


def test_a_policy_that_is_not_the_runners_is_refused(make: Callable[..., Stage]) -> None:
    """What is stored was decided when the manager was built."""
    with pytest.raises(ConfigError, match="needs_full_hidden_states=False"):
        make().manager.register_policy(ModelCachePolicy(False))


def test_a_manager_belongs_to_a_runner() -> None:
    """Built by anything else, it could not know its stage."""
    with pytest.raises(ConfigError, match="model runner"):
        BundledManager(PrefixCacheConfig(BLOCKS, BLOCK), None)


def test_a_batch_without_a_table_on_the_host_is_refused() -> None:
    """Slots are computed from it at every step."""
    runner = Runner(BLOCK)
    runner.input_batch.block_table[0].block_table.np = None
    with building_for(runner), pytest.raises(ConfigError, match="block table"):
        BundledManager(PrefixCacheConfig(BLOCKS, BLOCK), None)


def test_the_second_model_runner_is_refused_where_it_would_matter() -> None:
    """It consults no output cache; without prefix caching there is none to consult."""
    with pytest.raises(ConfigError, match="stage 1"):
        refuse_v2(Runner(v2=True, stage=1).vllm_config)
    refuse_v2(Runner(v2=True, caching=False).vllm_config)
    refuse_v2(Runner().vllm_config)


def test_the_line_of_proof_names_a_page_that_shuts_down_with_the_manager(
    make: Callable[..., Stage], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logged when the cache is built; the series are this cache's, under its stage."""
    monkeypatch.setattr(manager, "Exposition", Exposition)
    caplog.set_level(logging.INFO, logger="vllm")
    stage = make(stage=2)
    [line] = [record.getMessage() for record in caplog.records if record.getMessage().startswith(PROOF)]
    words = dict(word.split("=", 1) for word in line.removeprefix(PROOF).split())
    assert (words["stage"], words["engine"]) == ("2", "vllm-omni-0.30.0")
    assert (words["block_size"], words["blocks"], words["device"]) == (str(BLOCK), str(BLOCKS), "cpu")
    computed_prefix(stage)
    page = urllib.request.urlopen(words["metrics"], timeout=10).read().decode()
    assert 'prefix_cache:steps_total{engine="vllm-omni-0.30.0",rank="0",stage="2"} 1.0' in page
    stage.manager.shutdown()
    stage.manager.shutdown()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(words["metrics"], timeout=10)


def test_bounds_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, make: Callable[..., Stage]) -> None:
    """As for every other engine; a value that is no number is refused by its name."""
    monkeypatch.setenv("PREFIX_CACHE_DEVICE_BYTES", "12345")
    monkeypatch.setenv("PREFIX_CACHE_INLINE", "1")
    config = make().manager._cache.config
    assert (config.device_bytes, config.threaded) == (12345, False)
    monkeypatch.setenv("PREFIX_CACHE_DEVICE_BYTES", "many")
    with pytest.raises(ConfigError, match="PREFIX_CACHE_DEVICE_BYTES"):
        Stage()


def test_a_part_is_asked_for_by_the_requests_place_in_the_batch() -> None:
    """Its index and its tokens, of the step's total; a request that was not asked for has no part."""
    asked: list[tuple[Any, ...]] = []

    def element(value: Any, index: int, *, start: int, end: int, pass_lists_through: bool, seq_len: int) -> str:
        asked.append((value, index, start, end, pass_lists_through, seq_len))
        return "a part"

    spans = {"a": (0, 2), "b": (2, 3), "c": (3, 3)}
    parts = HandedOut("a value", spans, ["c", "b"], element)
    assert parts["b"] == "a part"
    assert asked == [("a value", 1, 2, 3, True, 3)]
    assert "a" not in parts
    with pytest.raises(KeyError):
        parts["a"]
