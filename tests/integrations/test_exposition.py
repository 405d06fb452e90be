"""A worker's page of metrics, and its line of proof."""

import os
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from prefix_cache import CacheStats
from prefix_cache.integrations.exposition import PROOF, Exposition, proof_line

LABELS = {"stage": "0", "replica": "1"}


def read(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_page_shows_the_statistics_of_the_moment_it_is_read() -> None:
    """A counter that grew between two reads shows its new value, under the given labels."""
    stats = CacheStats(hits_total=3, resident_bytes={"hidden": 4096})
    page = Exposition(lambda: stats, LABELS)
    labels = tuple(sorted(LABELS.items()))
    try:
        before = read(page.url)
        stats.hits_total = 5
        after = read(page.url)
    finally:
        page.close()
    assert before["prefix_cache:hits_total", labels] == 3
    assert after["prefix_cache:hits_total", labels] == 5
    assert before["prefix_cache:resident_bytes", tuple(sorted({**LABELS, "key": "hidden"}.items()))] == 4096


def test_a_closed_page_no_longer_answers() -> None:
    """After `close`, however often, nobody listens on the port."""
    page = Exposition(CacheStats, {})
    page.close()
    page.close()
    with pytest.raises(urllib.error.URLError):
        read(page.url)


def test_the_line_of_proof_names_the_process_and_every_fact() -> None:
    """The harness finds the line by how it begins and splits the rest at blanks."""
    line = proof_line(stage=0, metrics="http://127.0.0.1:1/metrics", engine="vllm omni")
    assert line.startswith(PROOF)
    words = dict(word.split("=", 1) for word in line.removeprefix(PROOF).split())
    assert words == {
        "pid": str(os.getpid()),
        "stage": "0",
        "metrics": "http://127.0.0.1:1/metrics",
        "engine": "vllmomni",
    }
