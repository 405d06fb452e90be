"""What servers leave in /dev/shm. Other programs may leave something there meanwhile: tests ask for their own names."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory as PythonSharedMemory
from pathlib import Path

import pytest
from fake_launch import MakeLaunch, wait_for, wait_for_log

from harness.servers.launch import Launch
from harness.servers.process import ServerProcess
from harness.servers.shared_memory import Leftovers, Segment, SharedMemory, caveats, segments, sort_out

SHM = Path("/dev/shm")
needs_shm = pytest.mark.skipif(not SHM.is_dir(), reason="this system has no /dev/shm")
PATIENT = 30.0
WRITTEN_BYTES = 2**18


@pytest.fixture
def name() -> Iterator[str]:
    """A name in /dev/shm that nobody has, and that is gone after the test."""
    name = f"omni-prefix-bench-test-{secrets.token_hex(8)}"
    yield name
    (SHM / name).unlink(missing_ok=True)


def names(found: tuple[Segment, ...]) -> list[str]:
    return [one.name for one in found]


@contextlib.contextmanager
def attached(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has the segment mapped, and does not make its tracker unlink it."""
    monkeypatch.setattr(resource_tracker, "register", lambda *_: None)
    segment = PythonSharedMemory(name)
    try:
        yield
    finally:
        segment.close()


@needs_shm
@pytest.mark.parametrize("options", [(), ("--ignore-sigterm",)], ids=["stopped", "killed"])
def test_what_the_server_had_mapped_is_removed(make_launch: MakeLaunch, name: str, options: tuple[str, ...]) -> None:
    """Its bytes are those it takes, not its size; a server that had to be killed is cleared as one that obeys."""
    launch = make_launch("--segment", f"mapped:{name}", *options)
    with ServerProcess.start(launch, PATIENT if not options else 0.3) as server:
        wait_for_log(launch, "listening")
        assert (SHM / name).stat().st_size == 2**20
        report = server.stop()
    assert report.stopped_by == ("sigkill" if options else "sigterm")
    assert [(one.name, one.allocated) for one in report.shared_memory.removed] == [(name, WRITTEN_BYTES)]
    assert not (SHM / name).exists()
    told = caveats(Leftovers(removed=report.shared_memory.removed))
    assert [(caveat.kind, caveat.message) for caveat in told] == [
        (
            "shared memory removed",
            f"the server had mapped and left behind shared memory of 256 KiB (1 object: {name}) in /dev/shm; no "
            "process used it any more, and it was removed",
        )
    ]


@needs_shm
def test_a_server_that_dies_is_cleared_by_the_look_before(make_launch: MakeLaunch, name: str) -> None:
    """Nothing can be seen of a dead process: what it had when it was looked at counts, and the exit by `with` too."""
    launch = make_launch("--segment", f"mapped:{name}")
    with ServerProcess.start(launch, PATIENT) as server:
        wait_for_log(launch, "listening")
        server.look_at_shared_memory()
        os.kill(server.pid, signal.SIGKILL)
        wait_for(lambda: not server.alive, "the death to be noticed")
    assert names(server.stop().shared_memory.removed) == [name]
    assert not (SHM / name).exists()


@needs_shm
def test_what_the_server_no_longer_maps_is_named_and_stays(make_launch: MakeLaunch, name: str) -> None:
    """A name that appeared while the server ran may be anybody's."""
    launch = make_launch("--segment", f"closed:{name}")
    with ServerProcess.start(launch, PATIENT) as server:
        wait_for_log(launch, "listening")
        left = server.stop().shared_memory
    assert name in names(left.unclaimed)
    assert name not in names(left.removed + left.in_use)
    assert (SHM / name).exists()


@needs_shm
@pytest.mark.parametrize("how", ["mapped", "closed"])
def test_what_another_process_uses_stays(
    make_launch: MakeLaunch, name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named where the server had it mapped; else it is plainly the other's, and nothing is said."""
    launch = make_launch("--segment", f"{how}:{name}")
    with ServerProcess.start(launch, PATIENT) as server:
        wait_for_log(launch, "listening")
        with attached(name, monkeypatch):
            left = server.stop().shared_memory
    assert names(left.in_use) == ([name] if how == "mapped" else [])
    assert name not in names(left.removed + left.unclaimed)
    assert (SHM / name).exists()


@needs_shm
def test_a_name_that_another_process_has_only_open_is_its_own(make_launch: MakeLaunch, name: str) -> None:
    """A lock that is held is an open file and no mapping."""
    launch = make_launch("--segment", f"closed:{name}")
    with ServerProcess.start(launch, PATIENT) as server:
        wait_for_log(launch, "listening")
        with (SHM / name).open("rb"):
            left = server.stop().shared_memory
    assert name not in names(left.unclaimed)


@needs_shm
def test_what_was_there_before_the_start_is_nobodys_leftover(make_launch: MakeLaunch, name: str) -> None:
    """A model that somebody keeps in memory, and that the server maps, stays and is not spoken of."""
    (SHM / name).write_bytes(b"weights")
    script = (
        f"import mmap, time; file = open('/dev/shm/{name}', 'r+b'); kept = mmap.mmap(file.fileno(), 0); "
        "print('mapped', flush=True); time.sleep(600)"
    )
    like = make_launch()
    argv = (sys.executable, "-I", "-S", "-c", script)
    launch = Launch(argv, {}, like.cwd, like.log_path, like.base_url, like.port, "m")
    with ServerProcess.start(launch, PATIENT) as server:
        wait_for_log(launch, "mapped")
        left = server.stop().shared_memory
    assert name not in names(left.removed + left.in_use + left.unclaimed)
    assert (SHM / name).read_bytes() == b"weights"


@needs_shm
def test_a_tidy_server_leaves_nothing_to_say(make_launch: MakeLaunch, name: str) -> None:
    """One that unlinks what it made, and one that never made anything: nothing is removed and nothing is told."""
    for options in (("--segment", f"tidy:{name}"), ()):
        launch = make_launch(*options)
        with ServerProcess.start(launch, PATIENT) as server:
            wait_for_log(launch, "listening")
            assert (SHM / name).exists() == bool(options)
            left = server.stop().shared_memory
        assert (left.removed, left.in_use) == ((), ())
        assert name not in names(left.unclaimed)
    assert caveats(Leftovers()) == ()


def test_another_object_under_the_old_name_is_not_removed(tmp_path: Path) -> None:
    """The name alone proves nothing: what the server had is gone, and somebody else has taken its name."""
    memory = SharedMemory(tmp_path)
    (tmp_path / "psm").write_bytes(b"server's")
    with running_reader(tmp_path / "psm") as pid:
        memory.look([pid])
        (tmp_path / "other").write_bytes(b"other's")
        (tmp_path / "other").rename(tmp_path / "psm")
    left = memory.clear()
    assert (names(left.removed), names(left.unclaimed)) == ([], ["psm"])
    assert (tmp_path / "psm").read_bytes() == b"other's"


def test_folders_and_links_are_not_looked_into(tmp_path: Path) -> None:
    """Shared memory has no folders: a cache or results kept in memory are files of somebody."""
    memory = SharedMemory(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    with running_reader(tmp_path / "folder" / "file") as pid:
        memory.look([pid])
    assert memory.clear() == Leftovers()
    assert (tmp_path / "folder" / "file").exists()


def test_a_system_without_the_folder_has_nothing(tmp_path: Path) -> None:
    """As on macOS."""
    memory = SharedMemory(tmp_path / "absent")
    memory.look([os.getpid()])
    assert memory.clear() == Leftovers()
    assert segments(tmp_path / "absent") == frozenset()


def test_what_belongs_to_others_is_left_alone_and_the_largest_is_named_first() -> None:
    """An object of another user is neither removed nor spoken of, even where the server had it mapped."""
    theirs = Segment("a", 1, 1, 50, uid=7)
    small, large, known = Segment("b", 1, 2, 10, uid=5), Segment("c", 1, 3, 20, uid=5), Segment("d", 1, 4, 1, uid=5)
    found = sort_out([theirs, small, large, known], {theirs, known}, used=set(), uid=5)
    assert found == Leftovers(removed=(known,), unclaimed=(large, small))


def test_caveats_name_three_and_count_an_object_with_two_names_once() -> None:
    """168 MiB in two objects of which one has two names, and two empty ones."""
    sizes = (("a", 1, 160 * 2**20), ("b", 2, 8 * 2**20), ("b2", 2, 8 * 2**20), ("lock", 3, 0))
    (told,) = caveats(Leftovers(unclaimed=tuple(Segment(name, 1, inode, size) for name, inode, size in sizes)))
    assert (told.kind, told.line) == ("shared memory left", None)
    assert told.message == (
        "shared memory of 168 MiB (4 objects: a, b, b2, ...) in /dev/shm appeared while the server ran and is used by "
        "no process: it may be the server's or another program's, and was not removed"
    )


@contextlib.contextmanager
def running_reader(path: Path) -> Iterator[int]:
    """A process that has the file mapped."""
    script = (
        f"import mmap; file = open({str(path)!r}, 'r+b'); kept = mmap.mmap(file.fileno(), 0); "
        "print('up', flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", script], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()
