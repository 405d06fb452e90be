import os
import platform
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from harness.provenance import host, source_tree, utc_now, versions


def git(path: Path, *arguments: str) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    environment = {**os.environ, **identity}
    done = subprocess.run(
        ["git", "-C", str(path), *arguments], check=True, capture_output=True, text=True, env=environment
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("1\n")
    (tmp_path / ".gitignore").write_text("ignored/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    return tmp_path


def test_clean_checkout(checkout: Path) -> None:
    """A checkout is its commit, and is clean after one."""
    tree = source_tree(checkout, "code")
    assert (tree.name, tree.path, tree.dirty) == ("code", str(checkout), False)
    assert tree.commit == git(checkout, "rev-parse", "HEAD")


@pytest.mark.parametrize("change", ["edit", "untracked"])
def test_dirty_checkout(checkout: Path, change: str) -> None:
    """An edit and a file that is not tracked both make it dirty, seen from any folder in it."""
    (checkout / "package").mkdir()
    (checkout / ("code.py" if change == "edit" else "package/new.py")).write_text("2\n")
    assert source_tree(checkout, "code").dirty is True
    assert source_tree(checkout / "package", "code").commit == git(checkout, "rev-parse", "HEAD")


def test_outside_version_control(tmp_path: Path, checkout: Path) -> None:
    """Outside a repository, in a folder that it ignores, and where nothing is, commit and dirty are null."""
    (checkout / "ignored").mkdir()
    for path in (Path("/"), checkout / "ignored", tmp_path / "absent"):
        tree = source_tree(path, "x")
        assert (tree.commit, tree.dirty) == (None, None)


def test_repository_without_a_commit(tmp_path: Path) -> None:
    """Before the first commit there is none, and what lies there is not committed."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "a").write_text("")
    tree = source_tree(tmp_path, "x")
    assert (tree.commit, tree.dirty) == (None, True)


def test_host() -> None:
    """The host's facts are those the system gives."""
    here = host()
    assert here.cpu_count == os.cpu_count()
    assert here.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (here.python, here.kernel) == (platform.python_version(), platform.release())
    assert here.cpu_model


def test_versions_without_imports() -> None:
    """Versions are read from the installed distributions; absent ones are left out and nothing heavy is imported."""
    found = versions()
    assert found["python"] == platform.python_version()
    assert found["omni-prefix-bench"]
    assert "vllm-omni" not in found
    heavy = "{'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    code = f"import sys, harness.provenance as p; p.versions(); print(sorted({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_utc_now() -> None:
    """Instants are ISO 8601 in UTC, to the millisecond."""
    now = utc_now()
    parsed = datetime.fromisoformat(now)
    assert now.endswith("Z")
    assert len(now) == len("2026-11-29T16:46:00.123Z")
    assert parsed.utcoffset() == timedelta(0)
