"""A deploy profile: one YAML file of vLLM-Omni, or an arm's overlay, and the chain of files it builds on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness._scenario_yaml import read_document
from harness.errors import UsageError

BASE = "base_config"


@dataclass(frozen=True, slots=True)
class MissingBase:
    """A base that is nowhere: its name, who names it, and the folders it was looked for in."""

    name: str
    where: str
    folders: tuple[Path, ...]

    def __str__(self) -> str:
        places = f"in {', '.join(map(str, self.folders))}" if self.folders else "on this machine"
        return (
            f"{self.where}: {BASE}: found {self.name}, which is not {places}; "
            "allowed: a path from the scenario's folder, a profile in deploy/ there, or one that vLLM-Omni ships"
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """One link of the chain.

    Parameters:
        label: what messages and sources call it: a file's name, or `deploy` for an arm's overlay.
        path: the file; None for an overlay that is none yet.
        data: what it says, without `base_config`.
        base: what it builds on.
        beside: whether vLLM-Omni itself finds the base, which it looks for beside the file alone.
        missing: the base it names and that was not found.
    """

    label: str
    path: Path | None
    data: Mapping[str, Any]
    base: Profile | None = None
    beside: bool = True
    missing: MissingBase | None = None

    def chain(self) -> Iterator[Profile]:
        """This profile, its base, the base of that, and so on."""
        link: Profile | None = self
        while link is not None:
            yield link
            link = link.base

    def whole(self) -> Profile:
        """This profile, if nothing of its chain is missing.

        Raises:
            UsageError: a base is.
        """
        for link in self.chain():
            if link.missing is not None:
                raise UsageError(str(link.missing))
        return self


def load_profile(path: Path, folders: Sequence[Path] = ()) -> Profile:
    """A profile file and all it builds on.

    Parameters:
        folders: where a base is looked for that is not beside the file which names it.

    Raises:
        UsageError: a file that is missing or no profile, or a chain that returns to itself.
    """
    return _read(path, tuple(folders), ()).whole()


def overlay_profile(data: Mapping[str, Any], where: str, folders: Sequence[Path] = ()) -> Profile:
    """An arm's overlay and all it builds on. A base that is nowhere is told in `missing` of the link that names it.

    Parameters:
        where: the key that messages begin with, such as `arms.on.deploy`.
        folders: where bases are looked for.

    Raises:
        UsageError: a file that is no profile, or a chain that returns to itself.
    """
    return _linked("deploy", None, data, where, tuple(folders), ())


def locate(name: str, beside: Path | None, folders: Sequence[Path]) -> Path | None:
    """The file of that name: as it stands if absolute, else beside a file, else in the first folder that has it."""
    if Path(name).is_absolute():
        return Path(name) if Path(name).is_file() else None
    places = [folder / name for folder in (*(() if beside is None else (beside,)), *folders)]
    return next((place for place in places if place.is_file()), None)


def _read(path: Path, folders: tuple[Path, ...], above: tuple[Path, ...]) -> Profile:
    identity = path.resolve()
    if identity in above:
        names = " -> ".join(link.name for link in (*above[above.index(identity) :], identity))
        raise UsageError(f"{path}: {BASE}: found a chain that returns to itself ({names}); allowed: one that ends")
    return _linked(path.name, path, read_document(path).data, str(path), folders, (*above, identity))


def _linked(
    label: str,
    path: Path | None,
    data: Mapping[str, Any],
    where: str,
    folders: tuple[Path, ...],
    above: tuple[Path, ...],
) -> Profile:
    own = {key: value for key, value in data.items() if key != BASE}
    name = data.get(BASE)
    if name is None:
        return Profile(label, path, own)
    if not isinstance(name, str) or not name:
        raise UsageError(f"{where}: {BASE}: found {name!r}; allowed: the path of a deploy profile")
    beside = None if path is None else path.parent
    found = locate(name, beside, folders)
    if found is None:
        searched = (*(() if beside is None else (beside,)), *folders)
        return Profile(label, path, own, missing=MissingBase(name, where, searched))
    itself = Path(name).is_absolute() or (beside is not None and found == beside / name)
    return Profile(label, path, own, _read(found, folders, above), itself)
