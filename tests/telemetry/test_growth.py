"""Memory growth within a trial, on cells with chosen memory."""

import pytest

from harness.records import CellInfo, CellRecord, MemoryPoint, MetricsDelta, Sample
from harness.telemetry.growth import memory_growth

MIB = 2**20


def cell(bench, rss, *, rows=None, number=1, reported=True):
    """A cell with stage 0's memory after it, and what the cache says it holds by then."""
    after = () if rows is None else (Sample(name="prefix_cache:resident_bytes", labels={"key": "hidden"}, value=rows),)
    info = CellInfo.model_construct(
        bench=bench,
        memory=None if rss is None else MemoryPoint(rss=rss, pss=None),
        metrics=MetricsDelta(before=(), after=after, delta={}),
        pass_number=number,
        reported=reported,
    )
    return CellRecord.model_construct(cell=info)


def messages(*cells):
    return [caveat.message for caveat in memory_growth(cells)]


@pytest.mark.parametrize(
    ("last", "told"), [(1000 * MIB, False), (1064 * MIB, False), (1065 * MIB, True), (900 * MIB, False)]
)
def test_growth_over_five_percent_and_64_mib_is_told(last, told):
    """From the end of the first reported bench to the end of the last; the warm-up does not count."""
    found = messages(cell("warm", 1, reported=False), cell("A", 1000 * MIB), cell("B", last))
    assert bool(found) is told
    assert all("grew by 65 MiB from the end of A to the end of B" in message for message in found)


def test_a_large_server_may_grow_by_its_share():
    """Five percent of 40 GiB is 2 GiB."""
    big = 40 * 1024 * MIB
    assert messages(cell("A", big), cell("B", big + 2000 * MIB)) == []
    assert len(messages(cell("A", big), cell("B", big + 2100 * MIB))) == 1


def test_rows_that_the_cache_holds_are_its_purpose():
    """What the cache says it holds more is taken off, and no more than that."""
    grown = (cell("A", 1000 * MIB, rows=100 * MIB), cell("B", 1500 * MIB, rows=600 * MIB))
    assert messages(*grown) == []
    (message,) = messages(grown[0], cell("B", 1500 * MIB, rows=300 * MIB))
    assert "500 MiB" in message
    assert "200 MiB of it rows in the cache" in message


def test_an_accuracy_check_is_another_load():
    """Speech that no bench asked for takes memory of its own, which says nothing of a leak."""
    assert messages(cell("A", 1000 * MIB), cell("SAY", 1500 * MIB, reported=False)) == []
    assert messages(cell("A", 1000 * MIB), cell("B", 1001 * MIB), cell("SAY", 1500 * MIB, reported=False)) == []


def test_with_passes_the_same_load_is_compared():
    """From the end of the first pass to the end of the last, whatever happened within the first."""
    first = (cell("A", 100 * MIB), cell("B", 1000 * MIB))
    assert messages(*first, cell("A", 1000 * MIB, number=2), cell("B", 1010 * MIB, number=2)) == []
    (message,) = messages(*first, cell("A", 1000 * MIB, number=2), cell("B", 1200 * MIB, number=2))
    assert "from the end of B to the end of B in pass 2" in message


def test_what_was_not_measured_says_nothing():
    """Memory of a server elsewhere is unknown; one bench alone has nothing to grow from."""
    assert messages(cell("A", None), cell("B", None)) == []
    assert messages(cell("A", 1000 * MIB)) == []
    assert messages() == []
