"""The cache's statistics as Prometheus series, `prefix_cache:<field of CacheStats>`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from prefix_cache.stats import CacheStats


def cache_families(stats: CacheStats, labels: Mapping[str, str]) -> Iterator[Metric]:
    """One family per field: a counter where its name ends in `_total`, else a gauge; a mapping's keys become `key`."""
    for each in fields(stats):
        value = getattr(stats, each.name)
        name, text = f"prefix_cache:{each.name}", f"{each.name.replace('_', ' ')} of the output cache."
        if isinstance(value, Mapping):
            keyed = GaugeMetricFamily(name, text, labels=[*labels, "key"])
            for key, number in value.items():
                keyed.add_metric([*labels.values(), str(key)], number)
            yield keyed
            continue
        kind = CounterMetricFamily if each.name.endswith("_total") else GaugeMetricFamily
        family = kind(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        yield family
