"""Limits of control groups, on trees in the kernel's form."""

import pytest

from harness.containers import container_limits
from harness.records import Container


@pytest.fixture
def groups(tmp_path):
    """Writes a version 2 hierarchy; the process is in /a/b."""

    def write(**files):
        root = tmp_path / "cgroup"
        (root / "a" / "b").mkdir(parents=True)
        (root / "cgroup.controllers").write_text("cpu memory\n")
        for place, text in files.items():
            *folder, group, limit = place.split("__")
            (root / "/".join(folder) / f"{group}.{limit}").write_text(text)
        own = tmp_path / "own"
        own.write_text("1:name=systemd:/\n0::/a/b\n")
        return container_limits(root, own)

    return write


def test_limits_of_the_own_group(groups):
    """A quota over its period is a number of processors; memory is in bytes."""
    assert groups(a__b__cpu__max="150000 100000\n", a__b__memory__max="1073741824\n") == Container(
        cpus=1.5, memory_bytes=2**30
    )


def test_the_tightest_limit_counts(groups):
    """A group cannot use more than those it lies in."""
    found = groups(a__b__cpu__max="800000 100000\n", a__cpu__max="200000 100000\n", a__memory__max="4096\n")
    assert found == Container(cpus=2.0, memory_bytes=4096)


def test_no_limit_is_null(groups):
    """`max` is no number, and the root has no such files."""
    assert groups(a__b__cpu__max="max 100000\n", a__b__memory__max="max\n") == Container(cpus=None, memory_bytes=None)


def test_version_1_alone_is_unknown(tmp_path):
    """Without a mounted version 2 hierarchy nothing is claimed, whatever /proc says."""
    own = tmp_path / "own"
    own.write_text("4:memory:/x\n0::/\n")
    assert container_limits(tmp_path, own) is None
    own.write_text("4:memory:/x\n")
    assert container_limits(tmp_path, own) is None
    assert container_limits(tmp_path, tmp_path / "absent") is None
