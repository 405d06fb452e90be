"""What /metrics says, and the faults of the HTTP side."""

from __future__ import annotations

import asyncio

import pytest
from served import ScriptedEngine, chat, events, key, series, serving, whole

from harness.errors import UsageError
from harness.tiny_omni.engine import Engine
from harness.tiny_omni.faults import Faults


async def test_metrics_follow_the_requests(engine: Engine) -> None:
    """Every counter is there at 0 before the first request, and afterwards equals what usage said."""
    caching = engine.config.enable_prefix_caching
    zero = (
        *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:prompt_tokens_total"),
        *("vllm:generation_tokens_total", "vllm:num_preemptions_total", "vllm:num_requests_running"),
        *("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    )
    async with serving(engine) as client:
        before = await series(client)
        answers = [await whole(client, "/v1/chat/completions", chat("the house is cold " * 8)) for _ in range(2)]
        after = await series(client)
    assert [before[key(name)] for name in zero] == [0.0] * len(zero)
    assert before[key("vllm:request_success_total", finished_reason="length")] == 0
    prompt, cached = (
        sum(answer["usage"][part] for answer in answers)
        if part == "prompt_tokens"
        else sum(answer["usage"]["prompt_tokens_details"][part] for answer in answers)
        for part in ("prompt_tokens", "cached_tokens")
    )
    assert after[key("vllm:prefix_cache_queries_total")] == (prompt if caching else 0)
    assert after[key("vllm:prefix_cache_hits_total")] == cached
    assert (cached > 0) is caching
    assert after[key("vllm:prompt_tokens_total")] == prompt
    assert after[key("vllm:generation_tokens_total")] == 12
    assert after[key("vllm:request_success_total", finished_reason="length")] == 2
    assert after[key("vllm:num_requests_running")] == 0
    (info,) = [dict(labels) for name, labels in after if name == "vllm:cache_config_info"]
    assert info["enable_prefix_caching"] == str(caching)
    assert (info["block_size"], info["num_gpu_blocks"]) == ("16", "256")
    names = {name for name, _ in after}
    assert ("prefix_cache:rows_written_total" in names) is caching
    assert (key("prefix_cache:resident_bytes", key="hidden") in after) is caching


async def test_reset_prefix_cache(caching_engine: Engine) -> None:
    """After a reset the same prompt is computed afresh; while a request runs the reset is refused."""
    async with serving(caching_engine) as client:
        body = chat("the house is cold " * 8)
        await whole(client, "/v1/chat/completions", body)
        assert await whole(client, "/reset_prefix_cache", {}) == {"success": True}
        answer = await whole(client, "/v1/chat/completions", body)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    async with serving(ScriptedEngine()) as client:
        assert "while a request is running" in (await whole(client, "/reset_prefix_cache", {}, 400))["error"]["message"]


async def test_fault_missing_usage(caching_engine: Engine) -> None:
    """With missing-usage no answer carries usage, streamed or not."""
    async with serving(caching_engine, Faults(missing_usage=True)) as client:
        body = chat(stream=True, stream_options={"include_usage": True})
        assert not any("usage" in message for message in await events(client, "/v1/chat/completions", body))
        assert (await whole(client, "/v1/chat/completions", chat()))["usage"] is None


async def test_fault_fail_request(caching_engine: Engine) -> None:
    """With fail-request=2 the second generation request alone gets HTTP 500."""
    async with serving(caching_engine, Faults(fail_request=2)) as client:
        statuses = [(await client.post("/v1/chat/completions", json=chat())).status for _ in range(3)]
    assert statuses == [200, 500, 200]


async def test_fault_stall_stream(caching_engine: Engine) -> None:
    """With stall-stream=1 the first stream sends its first text and then hangs; the next one is fine."""
    async with serving(caching_engine, Faults(stall_stream=1)) as client:
        async with client.post("/v1/chat/completions", json=chat(stream=True)) as response:
            seen = ""
            while '"modality": "text"' not in seen:
                seen += (await response.content.readline()).decode()
            await response.content.readline()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(response.content.readline(), 0.3)
            response.close()
        assert len(await events(client, "/v1/chat/completions", chat(stream=True))) > 3


async def test_fault_wrong_model(caching_engine: Engine) -> None:
    """With wrong-model the server bears another name and does not know its own."""
    async with serving(caching_engine, Faults(wrong_model="imposter")) as client:
        models = await (await client.get("/v1/models")).json()
        await whole(client, "/v1/chat/completions", chat(), 404)
        await whole(client, "/v1/chat/completions", chat(model="imposter"))
    assert [model["id"] for model in models["data"]] == ["imposter"]


async def test_fault_drop_metric(caching_engine: Engine) -> None:
    """With drop-metric the named series is absent, its neighbours stay, and an unknown name is refused."""
    name = "vllm:prefix_cache_hits_total"
    async with serving(caching_engine, Faults(drop_metric=name)) as client:
        found = await series(client)
    assert key(name) not in found
    assert key("vllm:prefix_cache_queries_total") in found
    with pytest.raises(UsageError, match=r"drop-metric: found 'nonsense'; allowed: .*vllm:prefix_cache_hits_total"):
        async with serving(caching_engine, Faults(drop_metric="nonsense")):
            pass
