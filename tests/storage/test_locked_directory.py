"""`LockedDirectory`: what only the lock's holder does in a log's directory."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mrecordlog_async import LogLockedError
from mrecordlog_async.format.header import Closed
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.end_note import EndNote
from mrecordlog_async.storage.locked_directory import LockedDirectory
from mrecordlog_async.storage.os_filesystem import OsFileSystem

CLOSED = Closed(bytes(range(16)), 3, 90, 5)


class Watched(OsFileSystem):
    """Knows which handles are open; one call fails."""

    def __init__(self, failing: str = "") -> None:
        self.open_handles: set[int] = set()
        self._failing = failing

    def open_directory(self, path: str) -> int:
        self.open_handles.add(handle := super().open_directory(path))
        return handle

    def lock(self, path: str) -> int:
        self._fail("lock")
        self.open_handles.add(handle := super().lock(path))
        return handle

    def space_of(self, handle: int) -> tuple[int, int]:
        self._fail("space_of")
        return super().space_of(handle)

    def create(self, path: str) -> int:
        self._fail("create")
        return super().create(path)

    def sync(self, handle: int) -> None:
        self._fail("sync")
        super().sync(handle)

    def rename(self, old: str, new: str) -> None:
        self._fail("rename")
        super().rename(old, new)

    def close(self, handle: int) -> None:
        self.open_handles.discard(handle)
        super().close(handle)

    def _fail(self, call: str) -> None:
        if call == self._failing:
            raise OSError(errno.EIO, "the disk says no")


def test_a_directory_has_one_holder_at_a_time(tmp_path: Path) -> None:
    """The second is refused until the first closes, and holds nothing open then."""
    first = LockedDirectory.take(LogDirectory.at(tmp_path))
    files = Watched()
    with pytest.raises(LogLockedError):
        LockedDirectory.take(LogDirectory.at(tmp_path, files))
    assert not files.open_handles
    first.close()
    second = LockedDirectory.take(LogDirectory.at(tmp_path, files))
    assert files.open_handles == set(second.handles())
    second.close()
    assert not files.open_handles


def test_a_lock_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    """Whatever the system says."""
    files = Watched("lock")
    with pytest.raises(OSError, match="the disk says no"):
        LockedDirectory.take(LogDirectory.at(tmp_path, files))
    assert not files.open_handles


def test_the_end_of_the_log_is_written_and_removed(tmp_path: Path) -> None:
    """It appears under its name only, and a reader finds what was written."""
    directory = LockedDirectory.take(LogDirectory.at(tmp_path))
    assert directory.write_closed(CLOSED)
    assert directory.log.closed() == CLOSED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CLOSED", "LOCK"]
    directory.remove_closed()
    assert directory.log.closed() is None
    directory.close()


@pytest.mark.parametrize(("call", "may_exist"), [("create", False), ("sync", False), ("rename", True)])
def test_an_end_that_cannot_be_written_is_left_out(tmp_path: Path, call: str, may_exist: bool) -> None:
    """Closing a log does not fail for it. A rename that fails may have been done."""
    directory = LockedDirectory.take(LogDirectory.at(tmp_path, Watched(call)))
    assert directory.write_closed(CLOSED) is may_exist
    assert directory.log.closed() is None
    directory.close()


def test_a_temporary_file_replaces_what_a_crash_left(tmp_path: Path) -> None:
    """The new one is empty."""
    directory = LockedDirectory.take(LogDirectory.at(tmp_path))
    (tmp_path / "wal-00000000000000000004.tmp").write_bytes(b"half of a segment")
    path, handle = directory.create_temporary(directory.path_of(4))
    assert path == directory.path_of(4) + ".tmp"
    assert directory.files.size(handle) == 0
    directory.files.close(handle)
    directory.close()


def test_a_file_system_without_a_size_has_none(tmp_path: Path) -> None:
    """0 stands for unknown, and an error does not prevent opening."""
    directory = LockedDirectory.take(LogDirectory.at(tmp_path, Watched("space_of")))
    assert directory.capacity_bytes() == 0
    directory.close()


def test_a_closed_directory_takes_no_note(tmp_path: Path) -> None:
    """A log whose directory was released notes its failure later: its handle's number is another file's by then."""
    for name in "ab":
        (tmp_path / name).mkdir()
    files = OsFileSystem()
    directory = LockedDirectory.take(LogDirectory(files, str(tmp_path / "a")))
    numbers = set(directory.handles())
    directory.close()
    others = [files.open_directory(str(tmp_path / "b")) for _ in numbers]
    assert numbers == set(others)
    directory.note_end(EndNote(1, "failed"))
    directory.close()
    assert [files.size(handle) > 0 for handle in others] == [True, True]
    for handle in others:
        files.close(handle)
    assert not [*tmp_path.glob("*/LAST_END")]
