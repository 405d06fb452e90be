"""The source trees of an arm's server, from what pip recorded (PEP 610)."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from harness.servers.arm import ResolvedArm
from harness.servers.sources import OURS, origin_tree, our_source, server_sources


def arm(**changes):
    settings = {
        "name": "on", "kind": "vllm", "args": {}, "env": {}, "python": None, "source": None, "deploy": None,
        "prefix_cache": None,
    }  # fmt: skip
    return ResolvedArm(**{**settings, **changes})


def commit(folder: Path) -> str:
    """Makes a repository with one commit, and returns that."""
    environment = {**os.environ}
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "a", f"GIT_{who}_EMAIL": "a@b"}

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, env=environment)
        return done.stdout.decode().strip()

    git("init", "--quiet")
    (folder / "code.py").write_text("")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    return git("rev-parse", "HEAD")


def test_an_editable_install_is_its_checkout_now(tmp_path):
    """The folder's commit, and whether it was changed since, with a blank in its path."""
    folder = tmp_path / "with blank"
    folder.mkdir()
    here = commit(folder)
    url = json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}})
    tree = origin_tree("vllm", url)
    assert (tree.name, tree.path, tree.commit, tree.dirty) == ("vllm", str(folder), here, False)
    (folder / "code.py").write_text("changed")
    assert origin_tree("vllm", url).dirty is True


def test_a_version_control_install_is_its_commit():
    """What was built from a commit is that commit; a password in the address is not recorded."""
    url = json.dumps({"url": "https://me:secret@host/vllm.git", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}})
    tree = origin_tree("vllm-omni", url)
    assert (tree.commit, tree.dirty, tree.path) == ("a" * 40, False, "https://...@host/vllm.git")


@pytest.mark.parametrize(
    "origin",
    [{"url": "file:///w/vllm.whl", "archive_info": {"hash": "sha256=1"}}, {"url": "file:///w/vllm", "dir_info": {}}],
    ids=["a wheel", "a folder that was copied"],
)
def test_what_was_copied_has_no_commit(origin):
    """Where it came from is told; what was in it then is not known."""
    tree = origin_tree("vllm", json.dumps(origin))
    assert (tree.path, tree.commit, tree.dirty) == (origin["url"], None, None)


def test_our_own_package_in_a_servers_interpreter_is_told_apart():
    """The harness may run from another checkout than the cache in the server."""
    tree = origin_tree(OURS, json.dumps({"url": "file:///w", "dir_info": {}}))
    assert tree.name == "omni-prefix-bench of the server"
    assert our_source().name == OURS


def test_a_servers_checkout_and_interpreter_are_both_asked(tmp_path):
    """The arm's source first, then what its interpreter has from elsewhere than an index."""
    source = tmp_path / "checkout"
    source.mkdir()
    here = commit(source)
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    for name, origin in (("vllm", {"url": source.as_uri(), "dir_info": {"editable": True}}), ("torch", {"url": "x"})):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "direct_url.json").write_text(json.dumps(origin))
    trees = server_sources(arm(python=str(python), source=str(source)))
    assert [(tree.name, tree.commit) for tree in trees] == [("server", here), ("vllm", here)]
    assert server_sources(arm(python=str(python)))[0].name == "vllm"


def test_a_server_of_this_interpreter_adds_nothing():
    """It runs this harness' own tree, which is recorded anyway; a server elsewhere is not to be looked at."""
    assert server_sources(arm()) == ()
    assert server_sources(arm(url="http://127.0.0.1:1", python=sys.executable)) == ()
