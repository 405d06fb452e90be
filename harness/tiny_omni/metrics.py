"""The `/metrics` page: vLLM's names, read from the engine at the moment of the scrape, so never a step behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from harness.errors import UsageError
from harness.tiny_omni.config import EngineConfig
from harness.tiny_omni.engine import EngineStats
from harness.tiny_omni.request import FinishReason
from prefix_cache.integrations.series import cache_families

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS = {
    "prefix_cache_queries": ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "prompt_tokens": ("vllm:prompt_tokens", "Prompt tokens of the requests that were computed."),
    "generation_tokens": ("vllm:generation_tokens", "Generated tokens."),
    "preemptions": ("vllm:num_preemptions", "Requests whose KV blocks were taken away to be computed again."),
    "steps": ("tiny_omni:steps", "Engine steps."),
    "steps_prefill": ("tiny_omni:prefill_steps", "Engine steps with prompt tokens."),
    "scheduled_tokens": ("tiny_omni:scheduled_tokens", "Tokens computed."),
}
_GAUGES = {
    "num_running": ("vllm:num_requests_running", "Requests in the batch."),
    "num_waiting": ("vllm:num_requests_waiting", "Requests that wait for a place in the batch."),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1."),
}


@dataclass(slots=True)
class FinishCounts:
    """Finished requests by reason; every reason is there from the start. For use on the event loop alone."""

    by_reason: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(get_args(FinishReason), 0))

    def add(self, reason: FinishReason) -> None:
        self.by_reason[reason] += 1


class EngineCollector(Collector):
    """Stage 0 as metric families, labelled `model_name`, `stage`, `replica` and `engine`.

    Parameters:
        stats: the engine's snapshot.
        dropped: a series name left out, as a fault.

    Raises:
        UsageError: `dropped` names no series.
    """

    def __init__(
        self,
        model_name: str,
        config: EngineConfig,
        stats: Callable[[], EngineStats],
        finished: FinishCounts,
        dropped: str | None = None,
    ) -> None:
        self._labels = {"model_name": model_name, "stage": "0", "replica": "0", "engine": "0"}
        self._config, self._stats, self._finished, self._dropped = config, stats, finished, dropped
        names = {sample.name for family in self._families() for sample in family.samples}
        if dropped is not None and dropped not in names:
            raise UsageError(f"--fault drop-metric: found {dropped!r}; allowed: {', '.join(sorted(names))}")

    def collect(self) -> Iterator[Metric]:
        for family in self._families():
            family.samples = [sample for sample in family.samples if sample.name != self._dropped]
            if family.samples:
                yield family

    def _families(self) -> Iterator[Metric]:
        stats = self._stats()
        for attribute, (name, text) in _COUNTERS.items():
            yield self._counter(name, text, {}, getattr(stats, attribute))
        for attribute, (name, text) in _GAUGES.items():
            yield self._gauge(name, text, {}, getattr(stats, attribute))
        success = CounterMetricFamily(
            "vllm:request_success", "Finished requests.", labels=[*self._labels, "finished_reason"]
        )
        for reason, count in self._finished.by_reason.items():
            success.add_metric([*self._labels.values(), reason], count)
        yield success
        yield self._gauge("vllm:cache_config_info", "The cache's configuration.", self._cache_config(), 1.0)
        if stats.cache is not None:
            yield from cache_families(stats.cache, self._labels)

    def _cache_config(self) -> dict[str, str]:
        config = self._config
        return {
            "enable_prefix_caching": str(config.enable_prefix_caching),
            "block_size": str(config.block_size),
            "num_gpu_blocks": str(config.num_blocks),
            "cache_dtype": "auto",
            "is_attention_free": "False",
        }

    def _counter(self, name: str, text: str, more: Mapping[str, str], value: float) -> Metric:
        labels = {**self._labels, **more}
        family = CounterMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _gauge(self, name: str, text: str, more: Mapping[str, str], value: float) -> Metric:
        labels = {**self._labels, **more}
        family = GaugeMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family


def exposition(collector: Collector) -> bytes:
    """The text page of one collector, from a registry of its own."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
