"""Counters around a bench, and what the cache configuration says: pure functions of scrapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.errors import ArmMismatch, CounterReset, MetricAbsent
from harness.records import MetricsDelta, Sample
from harness.telemetry.scrape import Scrape

QUERIES = "vllm:prefix_cache_queries_total"
HITS = "vllm:prefix_cache_hits_total"
CACHE_CONFIG = "vllm:cache_config_info"
HIT_COUNTERS = (QUERIES, HITS)
"""Tokens asked of and found in the prefix cache."""

_CACHE_PREFIX = "prefix_cache:"
_REPLICA_LABELS = frozenset({"engine", "replica", "stage"})

_Series = tuple[tuple[str, str], ...]


def stage_samples(scrape: Scrape, stage: str = "0") -> tuple[Sample, ...]:
    """The series of one stage, over all its engines and replicas.

    A name none of whose series has a `stage` label comes from a server with one stage, or is about the whole server:
    it counts as stage 0.
    """
    staged = {sample.name for sample in scrape.samples if "stage" in sample.labels}
    return tuple(
        sample
        for sample in scrape.samples
        if (sample.labels.get("stage") == stage if sample.name in staged else stage == "0")
    )


def total(scrape: Scrape, name: str) -> float:
    """Sum of one series name over everything the server has: stages, engines, replicas.

    Raises:
        MetricAbsent: there is no such series.
    """
    values = [sample.value for sample in scrape.samples if sample.name == name]
    if not values:
        raise MetricAbsent(f"the server publishes no {name}")
    return sum(values)


def delta(before: Scrape, after: Scrape, names: Iterable[str], stage: str = "0") -> dict[str, float]:
    """Increase of counters between two scrapes, each summed over the stage's engines and replicas.

    The bundled cache's own counters (`prefix_cache:*`) are added as far as the server publishes them. One of those
    with a series that was first published in between is left out: where it started is not known.

    Raises:
        MetricAbsent: a named series is missing from a scrape, or a series came or went in between.
        CounterReset: a series went backwards.
    """
    increases = {}
    first, last = _by_name(before, stage), _by_name(after, stage)
    for name in names:
        for when, found in (("before", first), ("after", last)):
            if name not in found:
                raise MetricAbsent(f"stage {stage} publishes no {name} {when} the bench")
        came = last[name].keys() - first[name].keys()
        if came:
            raise MetricAbsent(f"{_show(name, min(came))} was not published before the bench")
        increases[name] = _increase(name, first[name], last[name])
    monotone = before.monotone | after.monotone
    for name in first:
        if name in increases or not name.startswith(_CACHE_PREFIX) or name not in monotone:
            continue
        # A sum over cumulative buckets means nothing.
        if name.endswith("_bucket") or last.get(name, {}).keys() - first[name].keys():
            continue
        increases[name] = _increase(name, first[name], last.get(name, {}))
    return increases


def metrics_delta(
    before: Scrape,
    after: Scrape,
    names: Iterable[str],
    stage: str = "0",
    probe: Mapping[str, float] | None = None,
) -> MetricsDelta:
    """The record of `delta`, with the series it was taken from and every `prefix_cache:*` series, labels kept.

    Parameters:
        probe: what of the increase is a probe of ours, by name; it is taken off.

    Raises:
        MetricAbsent, CounterReset: as `delta`.
    """
    wanted = tuple(names)
    increases = delta(before, after, wanted, stage)

    def kept(scrape: Scrape) -> tuple[Sample, ...]:
        return tuple(s for s in stage_samples(scrape, stage) if s.name in wanted or s.name.startswith(_CACHE_PREFIX))

    ours = dict(probe or {})
    increases |= {name: increases[name] - tokens for name, tokens in ours.items() if name in increases}
    return MetricsDelta(before=kept(before), after=kept(after), delta=increases, probe=ours)


def hit_counters(increases: Mapping[str, float]) -> tuple[float, float]:
    """Tokens (asked, found) out of what `delta` returned.

    Raises:
        MetricAbsent: the deltas lack one of the two.
    """
    for name in HIT_COUNTERS:
        if name not in increases:
            raise MetricAbsent(f"{name} was not measured around the bench")
    return increases[QUERIES], increases[HITS]


def cache_config(scrape: Scrape, stage: str = "0") -> dict[str, str]:
    """Labels of `vllm:cache_config_info`. Where engines of the stage differ, all their values, joined by `|`.

    Raises:
        MetricAbsent: the server does not publish it.
    """
    found: dict[str, set[str]] = {}
    for sample in stage_samples(scrape, stage):
        if sample.name == CACHE_CONFIG:
            for label, value in sample.labels.items():
                if label not in _REPLICA_LABELS:
                    found.setdefault(label, set()).add(value)
    if not found:
        raise MetricAbsent(f"stage {stage} publishes no {CACHE_CONFIG}, so its configuration cannot be checked")
    return {label: "|".join(sorted(values)) for label, values in found.items()}


def verify_arm(expects_caching: bool | None, cache_config: Mapping[str, str]) -> None:
    """Check that the server runs the arm it was started as; None expects nothing.

    Raises:
        ArmMismatch: caching is on where it should be off, or the reverse.
        MetricAbsent: the configuration does not say.
    """
    if expects_caching is None:
        return
    says = cache_config.get("enable_prefix_caching")
    if says is None:
        raise MetricAbsent(f"{CACHE_CONFIG} has no label enable_prefix_caching; it has {', '.join(cache_config)}")
    if says.lower() != str(expects_caching).lower():
        raise ArmMismatch(
            f"the arm sets enable_prefix_caching={expects_caching}, but the server says "
            f"{CACHE_CONFIG}{{enable_prefix_caching={says!r}}}"
        )


def changed(before: Scrape, after: Scrape, prefixes: tuple[str, ...]) -> list[str]:
    """What differs between two scrapes among the monotone series with one of these prefixes; empty when they agree."""
    first, last = _monotone(before, prefixes), _monotone(after, prefixes)
    return [
        f"{_show(name, series)} {_number(first.get((name, series)))} -> {_number(last.get((name, series)))}"
        for name, series in sorted(first.keys() | last.keys())
        if first.get((name, series)) != last.get((name, series))
    ]


def _increase(name: str, first: Mapping[_Series, float], last: Mapping[_Series, float]) -> float:
    for series, value in first.items():
        if series not in last:
            raise MetricAbsent(f"{_show(name, series)} was no longer published after the bench")
        if last[series] < value:
            raise CounterReset(f"{_show(name, series)} went backwards, from {value:g} to {last[series]:g}")
    return sum(last[series] - value for series, value in first.items())


def _by_name(scrape: Scrape, stage: str) -> dict[str, dict[_Series, float]]:
    found: dict[str, dict[_Series, float]] = {}
    for sample in stage_samples(scrape, stage):
        found.setdefault(sample.name, {})[_series(sample)] = sample.value
    return found


def _monotone(scrape: Scrape, prefixes: tuple[str, ...]) -> dict[tuple[str, _Series], float]:
    return {
        (sample.name, _series(sample)): sample.value
        for sample in scrape.samples
        if sample.name in scrape.monotone and sample.name.startswith(prefixes)
    }


def _series(sample: Sample) -> _Series:
    return tuple(sorted(sample.labels.items()))


def _show(name: str, series: _Series) -> str:
    labels = ",".join(f'{label}="{value}"' for label, value in series)
    return f"{name}{{{labels}}}" if labels else name


def _number(value: float | None) -> str:
    return "absent" if value is None else f"{value:g}"
