"""Scenarios for the lying server: a bench for each lie."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

BLOCK = """\
  - dataset: random
    modalities: [{modalities}]
    extra_body: {{lie: {lie}}}
    table: |
      name   shared_prefix random_len output range_ratio concurrency prompts seed
      {name} 0             32         4      0.0         2           3       {seed}
"""
SCENARIO = """\
schema: 1
name: lies
model: tiny-omni
server: {{kind: tiny-omni, source: {source}}}
arms:
  off: {{baseline: true, args: {{enable-prefix-caching: false}}}}
  "on": {{args: {{enable-prefix-caching: true}}}}
rounds: 1
validity: {{replace_rounds: 0}}
workloads:
"""


def name_of(lie: str) -> str:
    return lie.replace(" ", "_")


def write_lies(folder: Path, lies: Iterable[str]) -> Path:
    """The scenario's file, and beside it the checkout that its arms run from."""
    package = folder / "checkout" / "harness" / "tiny_omni"
    package.mkdir(parents=True)
    for place in (package.parent, package):
        (place / "__init__.py").write_text("")
    shutil.copy(Path(__file__).with_name("lying_server.py"), package / "__main__.py")
    scenario = folder / "lies.yaml"
    blocks = [
        BLOCK.format(
            lie=lie, name=name_of(lie), seed=10 + number, modalities="text, audio" if lie == "audio" else "text"
        )
        for number, lie in enumerate(lies)
    ]
    scenario.write_text(SCENARIO.format(source=folder / "checkout") + "".join(blocks))
    return scenario
