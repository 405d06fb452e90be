"""Shared memory in /dev/shm: what a server has left there, what of it may be removed, and what can only be named.

Only objects right under /dev/shm that were not there before the server's start: POSIX shared memory has no folders, and
whatever was there before (a model that somebody keeps in memory) or lies deeper (caches, results) is nobody's leftover.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.records import Caveat

FOLDER = Path("/dev/shm")
_PROC = Path("/proc")
_EXAMPLES = 3
_KIB, _MIB = 2**10, 2**20

FileId = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One object under one name. Equal is what has the same name and is the same object.

    Parameters:
        allocated: bytes that it really takes; its size may be far more.
        uid: of its owner.
    """

    name: str
    device: int
    inode: int
    allocated: int = field(compare=False, default=0)
    uid: int = field(compare=False, default=0)

    @property
    def file(self) -> FileId:
        return self.device, self.inode


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is still there, under its old name, once a server's last process has ended.

    Parameters:
        removed: the server had it mapped and nobody uses it any more.
        in_use: the server had it mapped, and another process still uses it.
        unclaimed: it appeared while the server ran, and nobody uses it: whose it is cannot be told. One that was to be
            removed and could not be is here too.
    """

    removed: tuple[Segment, ...] = ()
    in_use: tuple[Segment, ...] = ()
    unclaimed: tuple[Segment, ...] = ()


class SharedMemory:
    """What is remembered of one server's shared memory; made before its start. Without a /dev/shm there is nothing."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._before = segments(folder)
        self._known = set[Segment]()

    def look(self, pids: Iterable[int]) -> None:
        """Remember what these processes of the server have mapped now.

        Some milliseconds for a large server, and its memory map is locked meanwhile: not while it is measured.
        """
        appeared = segments(self._folder) - self._before
        if appeared:
            held = {file for pid in pids for file in shared_mappings(pid)}
            self._known.update(one for one in appeared if one.file in held)

    def clear(self) -> Leftovers:
        """Remove what the server has left and nobody uses; to be called once no process of it is left."""
        appeared = segments(self._folder) - self._before
        if not appeared:
            return Leftovers()
        used = files_in_use({one.name for one in appeared})
        # Who was about to remove an object has had the time that the look at all processes took.
        found = sort_out(appeared & segments(self._folder), self._known, used, os.geteuid())
        stuck = tuple(one for one in found.removed if not self._remove(one))
        return Leftovers(
            removed=tuple(one for one in found.removed if one not in stuck),
            in_use=found.in_use,
            unclaimed=found.unclaimed + stuck,
        )

    def _remove(self, segment: Segment) -> bool:
        path = self._folder / segment.name
        try:
            if _segment(path) == segment:
                path.unlink()
        except FileNotFoundError:
            pass
        except OSError:
            return False
        return True


def segments(folder: Path) -> frozenset[Segment]:
    """The regular files right under a folder; none where it does not exist."""
    found = set()
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                found.add(_segment(path))
    return frozenset(one for one in found if one is not None)


def sort_out(appeared: Iterable[Segment], known: Collection[Segment], used: Collection[FileId], uid: int) -> Leftovers:
    """Tell what may be removed from what may not, the largest first.

    Parameters:
        appeared: what was not there before the server's start and is there after its end.
        known: what the server had mapped.
        used: what processes that live now have mapped or open.
        uid: ours; what belongs to others is left alone.
    """
    order = sorted(appeared, key=lambda one: (-one.allocated, one.name))
    unused = [one for one in order if one.file not in used and one.uid == uid]
    return Leftovers(
        removed=tuple(one for one in unused if one in known),
        in_use=tuple(one for one in order if one.file in used and one in known),
        unclaimed=tuple(one for one in unused if one not in known),
    )


def shared_mappings(pid: int) -> frozenset[FileId]:
    """Files that a process shares in its memory; none where it has ended or does not let us see.

    An open file without a mapping is no shared memory: it may be a log that somebody wants to keep.
    """
    return frozenset(file for file, shared in _mappings(pid) if shared)


def files_in_use(names: Collection[str]) -> frozenset[FileId]:
    """Files that any process we may look into has mapped, and those of these names that one has open."""
    found = set[FileId]()
    for entry in _PROC.glob("[0-9]*"):
        found.update(file for file, _ in _mappings(int(entry.name)))
        with contextlib.suppress(OSError):
            for descriptor in (entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    # By the last part alone: in another mount namespace the folder may have another name. And only
                    # those, since asking for a file on a dead network disk never returns.
                    if Path(descriptor.readlink()).name in names:
                        about = descriptor.stat()
                        found.add((about.st_dev, about.st_ino))
    return frozenset(found)


def caveats(left: Leftovers) -> tuple[Caveat, ...]:
    """What is to be told of a server's shared memory; nothing where it left none."""
    told = (
        (
            "removed",
            left.removed,
            "the server had mapped and left behind {} in {}; no process used it any more, and it was removed",
        ),
        (
            "in use",
            left.in_use,
            "the server had mapped and left behind {} in {}; another process still uses it, and it was not removed",
        ),
        (
            "left",
            left.unclaimed,
            "{} in {} appeared while the server ran and is used by no process: it may be the server's or another "
            "program's, and was not removed",
        ),
    )
    return tuple(
        Caveat(kind=f"shared memory {kind}", message=text.format(_listed(found), FOLDER), line=None)
        for kind, found, text in told
        if found
    )


def _listed(found: tuple[Segment, ...]) -> str:
    total = sum({one.file: one.allocated for one in found}.values())
    size = f"{total / _MIB:.0f} MiB" if total >= _MIB else f"{total / _KIB:.0f} KiB"
    names = ", ".join(one.name for one in found[:_EXAMPLES]) + (", ..." if len(found) > _EXAMPLES else "")
    return f"shared memory of {size} ({len(found)} object{'' if len(found) == 1 else 's'}: {names})"


def _segment(path: Path) -> Segment | None:
    """What lies there; None for what is no regular file."""
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode):
        return None
    return Segment(path.name, about.st_dev, about.st_ino, about.st_blocks * 512, about.st_uid)


def _mappings(pid: int) -> Iterator[tuple[FileId, bool]]:
    """Files in a process' memory, and whether it shares what it writes there."""
    # Not `smaps`, which walks every page.
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "maps").read_bytes().splitlines():
            _, permissions, _, device, inode, *_ = line.split(None, 5)
            if inode != b"0":
                major, minor = (int(part, 16) for part in device.split(b":"))
                yield (os.makedev(major, minor), int(inode)), permissions.endswith(b"s")
