"""The engine end to end: threads, callbacks, prompt rows, failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from harness.tiny_omni.config import EngineConfig, ModelConfig
from harness.tiny_omni.engine import Engine, EngineFailed, EngineOutput, EngineRequest, RequestRefused
from harness.tiny_omni.model import ROW_KEYS, Thinker
from harness.tiny_omni.step import build_input
from prefix_cache import CacheFailed, PrefixCache

SMALL = ModelConfig(hidden_size=128, num_layers=3, num_heads=4, intermediate_size=128, vocab_size=256)
WAIT = 60.0


def engine_config(**changes: int | bool) -> EngineConfig:
    values: dict[str, int | bool] = {"num_blocks": 256, "max_model_len": 512, "max_num_batched_tokens": 64}
    return EngineConfig(model=SMALL, **(values | changes))  # type: ignore[arg-type]  # a union of the fields' types


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny operators on a busy machine wait for their sibling threads longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextmanager
def running(config: EngineConfig, hook: Callable[[int], None] | None = None) -> Iterator[Engine]:
    before = set(threading.enumerate())
    engine = Engine(config, step_hook=hook)
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()
        assert set(threading.enumerate()) <= before


def opened(gate: threading.Event) -> Callable[[int], None]:
    """A hook that holds every step while `gate` is closed."""

    def hold(_step: int) -> None:
        assert gate.wait(WAIT)

    return hold


def slowly(_step: int) -> None:
    """A hook that makes a long request outlast what a test does meanwhile."""
    time.sleep(0.005)


class Consumer:
    """Collects one request's outputs."""

    def __init__(self) -> None:
        self.outputs: list[EngineOutput] = []
        self.first = threading.Event()
        self.ended = threading.Event()

    def __call__(self, output: EngineOutput) -> None:
        assert not self.ended.is_set(), "an output after the last one"
        self.outputs.append(output)
        self.first.set()
        if output.finish_reason is not None:
            self.ended.set()

    def wait(self) -> Consumer:
        assert self.ended.wait(WAIT), "the request never ended"
        return self

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.new_token_ids]

    @property
    def rows(self) -> Mapping[str, torch.Tensor]:
        (rows,) = [output.prompt_rows for output in self.outputs if output.prompt_rows is not None]
        return rows

    @property
    def reason(self) -> str | None:
        return self.outputs[-1].finish_reason


def submit(
    engine: Engine,
    name: str,
    prompt: Sequence[int],
    max_tokens: int = 8,
    *,
    ignore_eos: bool = True,
    needs_rows: bool = False,
) -> Consumer:
    consumer = Consumer()
    engine.submit(EngineRequest(name, tuple(prompt), max_tokens, ignore_eos, needs_rows, on_output=consumer))
    return consumer


def random_tokens(count: int, seed: int, vocab: int = SMALL.vocab_size) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return tokens


def recompute(model: Thinker, tokens: Sequence[int]) -> tuple[dict[str, torch.Tensor], int]:
    """Rows and next token of a whole text in one forward: no scheduler, no reuse of anything."""
    count = len(tokens)
    positions = np.arange(count)
    logits = model.forward(
        build_input(
            token_ids=np.array(tokens),
            positions=positions,
            block_tables=np.arange(count, dtype=np.int32)[None],
            computed=np.array([0]),
            counts=np.array([count]),
            slots=positions,
            sample_rows=np.array([count - 1]),
            block_size=1,
        )
    )
    return {key: model.outputs[key][:count].clone() for key in ROW_KEYS}, int(logits.argmax())


@pytest.fixture(scope="module")
def reference() -> Thinker:
    return Thinker(SMALL, num_slots=512, max_tokens=512, max_positions=512)


def greedy(model: Thinker, prompt: Sequence[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        text.append(recompute(model, text)[1])
    return text[len(prompt) :]


def nearest(model: Thinker, rows: torch.Tensor) -> list[int]:
    unit = torch.nn.functional.normalize(model.embedding)
    tokens: list[int] = (torch.nn.functional.normalize(rows) @ unit.T).argmax(dim=1).tolist()
    return tokens


def check_rows(model: Thinker, consumer: Consumer, prompt: Sequence[int]) -> None:
    """The rows are the whole prompt's, in order, with the first output and never again."""
    assert consumer.outputs[0].prompt_rows is consumer.rows
    expected, _ = recompute(model, prompt)
    assert set(consumer.rows) == set(ROW_KEYS)
    for key in ROW_KEYS:
        torch.testing.assert_close(consumer.rows[key], expected[key], atol=1e-4, rtol=1e-3)
        assert nearest(model, consumer.rows[key]) == list(prompt)


def shared_prefix_prompts() -> list[list[int]]:
    prefixes = [random_tokens(size, seed=size) for size in (48, 70)]
    return [prefixes[index % 2] + random_tokens(3 + 5 * index, seed=100 + index) for index in range(12)]


@pytest.mark.parametrize("caching", [False, True], ids=["off", "on"])
def test_texts_and_rows_of_concurrent_requests(reference: Thinker, caching: bool) -> None:
    """Requests that share prefixes and arrive together get the tokens and prompt rows of a lone recomputation."""
    prompts = shared_prefix_prompts()
    expected = [greedy(reference, prompt, 8) for prompt in prompts]
    with running(engine_config(enable_prefix_caching=caching)) as engine:
        for turn in ("cold", "warm"):
            consumers = [
                submit(engine, f"{turn}-{index}", prompt, needs_rows=index % 3 != 2)
                for index, prompt in enumerate(prompts)
            ]
            for index, (consumer, prompt) in enumerate(zip(consumers, prompts, strict=True)):
                assert consumer.wait().tokens == expected[index]
                assert consumer.reason == "length"
                if index % 3 != 2:
                    check_rows(reference, consumer, prompt)
                else:
                    assert all(output.prompt_rows is None for output in consumer.outputs)
        stats = engine.stats()
    assert stats.prompt_tokens == 2 * sum(len(prompt) for prompt in prompts)
    assert stats.generation_tokens == 2 * 12 * 8
    if caching:
        assert stats.prefix_cache_queries == stats.prompt_tokens
        # Every prompt of the warm turn hits all its full blocks but the one of its last token.
        warm = sum((len(prompt) - 1) // 16 * 16 for prompt in prompts)
        assert warm < stats.prefix_cache_hits < stats.prefix_cache_queries
        assert stats.cache is not None
        assert stats.cache.hit_tokens_total == stats.prefix_cache_hits
    else:
        assert stats.prefix_cache_queries == stats.prefix_cache_hits == 0
        assert stats.cache is None


def test_rows_of_a_hit_in_the_same_step(reference: Thinker) -> None:
    """Of two equal prompts in one step the second is handed rows that the first computes in that very step."""
    prompt = random_tokens(40, seed=1)
    gate = threading.Event()
    with running(engine_config(enable_prefix_caching=True), opened(gate)) as engine:
        first = submit(engine, "holds the engine", random_tokens(5, seed=2), max_tokens=2)
        pair = [submit(engine, name, prompt, needs_rows=True) for name in "ab"]
        gate.set()
        for consumer in pair:
            check_rows(reference, consumer.wait(), prompt)
            assert consumer.tokens == greedy(reference, prompt, 8)
        first.wait()
        assert [consumer.outputs[0].cached_tokens for consumer in pair] == [0, 32]
        stats = engine.stats()
        assert stats.cache is not None
        assert stats.cache.same_step_hits_total == 1


def test_texts_one_by_one_are_equal_with_and_without_hits() -> None:
    """With the default model and one request at a time, a prefix hit changes no token."""
    prefix = random_tokens(64, seed=3, vocab=4096)
    prompts = [prefix[: 16 * (index % 5)] + random_tokens(9 + index, 200 + index, 4096) for index in range(16)]
    texts: list[list[list[int]]] = []
    for caching in (False, True):
        with running(EngineConfig(enable_prefix_caching=caching, num_blocks=256)) as engine:
            texts.append([submit(engine, str(i), prompt, 12).wait().tokens for i, prompt in enumerate(prompts)])
            assert (engine.stats().prefix_cache_hits > 0) == caching
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts[0]}) == len(prompts)


@pytest.mark.parametrize("caching", [False, True], ids=["off", "on"])
def test_preemption_changes_no_answer(reference: Thinker, caching: bool) -> None:
    """In a pool so small that requests are preempted again and again, tokens and rows are those of a large one."""
    prompts = [prompt[:60] for prompt in shared_prefix_prompts()[:8]]
    config = engine_config(enable_prefix_caching=caching, num_blocks=12, max_num_batched_tokens=24)
    with running(config) as engine:
        consumers = [submit(engine, str(index), prompt, 40, needs_rows=True) for index, prompt in enumerate(prompts)]
        for consumer, prompt in zip(consumers, prompts, strict=True):
            check_rows(reference, consumer.wait(), prompt)
        stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.prompt_tokens == sum(len(prompt) for prompt in prompts)
    with running(engine_config()) as engine:
        large = [submit(engine, str(index), prompt, 40) for index, prompt in enumerate(prompts)]
        assert [consumer.wait().tokens for consumer in large] == [consumer.tokens for consumer in consumers]
        assert engine.stats().preemptions == 0


def test_blocks_recycled_under_load_serve_no_old_tenant(reference: Thinker) -> None:
    """Many prompts through few blocks, some aborted on the way: every row handed over is its own prompt's."""
    prefixes = [random_tokens(32, seed=300 + index) for index in range(4)]
    with running(engine_config(enable_prefix_caching=True, num_blocks=16)) as engine:
        for turn in range(4):
            prompts = [prefixes[(turn + i) % 4] + random_tokens(i + 2, 400 + 10 * turn + i) for i in range(6)]
            consumers = [
                submit(engine, f"{turn}-{i}", prompt, 3 + 2 * i, needs_rows=i != 3) for i, prompt in enumerate(prompts)
            ]
            engine.abort(f"{turn}-{turn}")
            for i, (consumer, prompt) in enumerate(zip(consumers, prompts, strict=True)):
                if consumer.wait().reason == "length" and i != 3:
                    check_rows(reference, consumer, prompt)
        stats = engine.stats()
        assert stats.prefix_cache_hits > 0
        assert stats.kv_cache_usage == 0.0
        assert stats.cache is not None
        assert stats.cache.open_handles == 0


def test_end_of_sequence_stops(reference: Thinker) -> None:
    """A request ends with "stop" at the end-of-sequence token, which is its last token."""
    prompt = random_tokens(20, seed=5)
    text = greedy(reference, prompt, 6)
    end = text.index(text[4])
    with running(engine_config(eos_token_id=text[4])) as engine:
        stopped = submit(engine, "stops", prompt, 6, ignore_eos=False).wait()
        assert (stopped.tokens, stopped.reason) == (text[: end + 1], "stop")
        assert submit(engine, "goes on", prompt, 6).wait().tokens == text


def test_abort_of_running_and_waiting_requests() -> None:
    """An aborted request ends with "abort", once; others go on; unknown ids are ignored."""
    with running(engine_config(max_num_seqs=1), slowly) as engine:
        first = submit(engine, "runs", random_tokens(5, seed=6), 400)
        second = submit(engine, "waits", random_tokens(5, seed=7), 400)
        third = submit(engine, "follows", random_tokens(5, seed=8), 2)
        assert first.first.wait(WAIT)
        engine.abort("waits")
        assert second.wait().reason == "abort"
        assert second.tokens == []
        engine.abort("runs")
        engine.abort("nobody")
        assert first.wait().reason == "abort"
        assert 0 < len(first.tokens) < 400
        assert third.wait().reason == "length"
        assert submit(engine, "runs", random_tokens(5, seed=9), 2).wait().reason == "length"


def test_reset_forgets_prefixes_only_at_rest() -> None:
    """Reset is refused while a request runs; at rest it makes the next equal prompt a miss."""
    prompt = random_tokens(40, seed=10)
    gate = threading.Event()
    gate.set()
    with running(engine_config(enable_prefix_caching=True), opened(gate)) as engine:
        assert submit(engine, "a", prompt).wait().outputs[0].cached_tokens == 0
        assert submit(engine, "b", prompt).wait().outputs[0].cached_tokens == 32
        gate.clear()
        held = submit(engine, "c", prompt)
        while not engine.stats().num_running:
            time.sleep(0.001)
        assert not engine.reset_prefix_cache()
        gate.set()
        held.wait()
        assert engine.reset_prefix_cache()
        assert submit(engine, "d", prompt).wait().outputs[0].cached_tokens == 0


def test_stats_tell_what_runs_and_waits() -> None:
    """While a step is held: one request runs, the others wait, its blocks are in use; at rest all is zero."""
    gate = threading.Event()
    with running(engine_config(max_num_seqs=1), opened(gate)) as engine:
        consumers = [submit(engine, name, random_tokens(17, seed=11), 2) for name in "abc"]
        while not engine.stats().num_running:
            time.sleep(0.001)
        stats = engine.stats()
        assert (stats.num_running, stats.num_waiting) == (1, 2)
        assert stats.kv_cache_usage == pytest.approx(2 / 256)
        gate.set()
        for consumer in consumers:
            consumer.wait()
        stats = engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)
        assert (stats.prompt_tokens, stats.generation_tokens, stats.steps, stats.steps_prefill) == (51, 6, 6, 3)


def test_refusals_leave_the_engine_well() -> None:
    """A request that can never run, or whose id is in use, is refused at submit; others are served."""
    gate = threading.Event()
    with running(engine_config(), opened(gate)) as engine:
        with pytest.raises(RequestRefused, match=r"request 'long': .*max_model_len = 512"):
            submit(engine, "long", random_tokens(510, seed=12), 3)
        first = submit(engine, "twice", random_tokens(4, seed=13))
        with pytest.raises(RequestRefused, match="request 'twice': the id belongs to an unfinished request"):
            submit(engine, "twice", random_tokens(4, seed=13))
        gate.set()
        assert first.wait().reason == "length"
        assert engine.failure is None


@pytest.mark.parametrize("caching", [False, True], ids=["off", "on"])
def test_a_failing_step_ends_everything_loudly(caching: bool) -> None:
    """An exception in a step ends running and waiting requests with "error"; it is kept, and submits raise it."""

    gate = threading.Event()

    def crash(step: int) -> None:
        assert gate.wait(WAIT)
        if step == 3:
            raise ZeroDivisionError("step 3")

    with running(engine_config(enable_prefix_caching=caching, max_num_seqs=1), crash) as engine:
        consumers = [submit(engine, name, random_tokens(20, seed=14), 50, needs_rows=True) for name in "ab"]
        gate.set()
        for consumer in consumers:
            assert consumer.wait().reason == "error"
            assert "step 3" in (consumer.outputs[-1].error or "")
        assert isinstance(engine.failure, ZeroDivisionError)
        with pytest.raises(EngineFailed, match="step 3") as raised:
            submit(engine, "late", [1])
        assert raised.value.__cause__ is engine.failure


def test_a_failing_consumer_is_an_engine_failure() -> None:
    """An exception in `on_output` is not swallowed: it ends every request."""

    def broken(output: EngineOutput) -> None:
        if output.finish_reason is None:
            raise LookupError("consumer")

    with running(engine_config(enable_prefix_caching=True), slowly) as engine:
        other = submit(engine, "other", random_tokens(20, seed=15), 200)
        engine.submit(EngineRequest("broken", (1, 2, 3), 5, on_output=broken))
        assert other.wait().reason == "error"
        assert isinstance(engine.failure, LookupError)


@pytest.mark.parametrize("call", ["begin_step", "save_step", "materialize"])
def test_a_failing_cache_is_an_engine_failure(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """What the output cache reports is never served around."""

    def fails(*_args: object, **_options: object) -> None:
        raise CacheFailed(call)

    monkeypatch.setattr(PrefixCache, call, fails)
    with running(engine_config(enable_prefix_caching=True)) as engine:
        consumer = submit(engine, "a", random_tokens(20, seed=16), needs_rows=True)
        assert consumer.wait().reason == "error"
        assert isinstance(engine.failure, CacheFailed)


def test_shutdown_aborts_joins_and_may_be_repeated() -> None:
    """Shutdown ends what is unfinished with "abort"; afterwards nothing can be submitted and no thread is left."""
    before = threading.active_count()
    engine = Engine(engine_config(enable_prefix_caching=True), step_hook=slowly)
    engine.start()
    consumers = [submit(engine, name, random_tokens(20, seed=17), 400) for name in "ab"]
    assert consumers[0].first.wait(WAIT)
    engine.shutdown()
    engine.shutdown()
    assert [consumer.wait().reason for consumer in consumers] == ["abort", "abort"]
    assert threading.active_count() == before
    with pytest.raises(RequestRefused, match="shut down"):
        submit(engine, "late", [1])
    with pytest.raises(RuntimeError, match="shut down"):
        engine.start()


def test_an_engine_that_never_started_can_be_shut_down() -> None:
    """What was queued before `start` is aborted when there is none."""
    engine = Engine(engine_config(enable_prefix_caching=True))
    consumer = submit(engine, "a", [1, 2])
    engine.shutdown()
    assert consumer.wait().reason == "abort"


def test_requests_come_from_many_threads(reference: Thinker) -> None:
    """Submitting is thread-safe: requests from several threads at once all get their own answers."""
    prompts = shared_prefix_prompts()[:6]
    answers: dict[int, list[int]] = {}
    with running(engine_config(enable_prefix_caching=True)) as engine:

        def client(index: int) -> None:
            for turn in range(3):
                consumer = submit(engine, f"{index}-{turn}", prompts[index], 5)
                answers[index] = consumer.wait().tokens

        clients = [threading.Thread(target=client, args=(index,)) for index in range(6)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
    assert answers == {index: greedy(reference, prompt, 5) for index, prompt in enumerate(prompts)}
