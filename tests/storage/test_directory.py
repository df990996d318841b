"""`LogDirectory`: which files a log has, and reading them while a writer moves them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError
from mrecordlog_async.cli.main import main
from mrecordlog_async.format.header import Closed, HeaderError, SegmentHeader, encode_closed, encode_header
from mrecordlog_async.storage.directory import ATTEMPTS_MAX, Listing, LogDirectory, make_directories
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import segment_name

LOG_ID = bytes(range(16))


def put(directory: Path, *numbers: int) -> None:
    for number in numbers:
        header = SegmentHeader(LOG_ID, number, 1, 0, 0)
        (directory / segment_name(number)).write_bytes(encode_header(header))


def test_a_log_is_its_segments_and_its_note_of_the_end(tmp_path: Path) -> None:
    """Other files are not part of it."""
    put(tmp_path, 7, 3)
    for name in ("LOCK", "wal-00000000000000000008.tmp", "notes.txt"):
        (tmp_path / name).touch()
    log = LogDirectory.at(tmp_path)
    assert log.list() == Listing((3, 7), False)
    (tmp_path / "CLOSED").touch()
    assert log.list_log() == Listing((3, 7), True)
    assert log.path_of(7) == str(tmp_path / "wal-00000000000000000007")


def test_a_directory_without_a_log_says_so(tmp_path: Path) -> None:
    """The error names the directory."""
    with pytest.raises(FileNotFoundError, match="there is no log in this directory") as caught:
        LogDirectory.at(tmp_path).list_log()
    assert caught.value.filename == str(tmp_path)


def test_a_note_of_the_end_without_segments_is_damage(tmp_path: Path) -> None:
    """A log was here: it is not taken for an empty directory."""
    (tmp_path / "CLOSED").touch()
    with pytest.raises(CorruptionError, match="all its segments are missing"):
        LogDirectory.at(tmp_path).list_log()


@pytest.mark.parametrize("left", [[], ["CLOSED"]], ids=["empty", "only CLOSED"])
@pytest.mark.parametrize(
    "command",
    [
        ["verify", "{log}"],
        ["repair", "{log}"],
        ["snapshot", "{log}", "{log}.copy"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_ends_alike_where_there_is_no_log(
    tmp_path: Path, command: list[str], left: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Failed (1) in a directory without a log, damage (3) where all segments of one are missing."""
    log = tmp_path / "wal"
    log.mkdir()
    for name in left:
        (log / name).touch()
    code = main([argument.format(log=log) for argument in command])
    text = capsys.readouterr()
    assert code == (3 if left else 1)
    assert left or "there is no log in this directory" in text.err
    assert [path.name for path in tmp_path.iterdir()] == ["wal"]


def test_a_header_of_another_number_is_refused(tmp_path: Path) -> None:
    """A renamed segment is not taken for another one."""
    put(tmp_path, 3)
    log = LogDirectory.at(tmp_path)
    assert log.header_of(3).segment == 3
    (tmp_path / segment_name(3)).rename(tmp_path / segment_name(4))
    with pytest.raises(HeaderError, match="the file holds segment 3"):
        log.header_of(4)


def test_the_note_of_the_end_is_read(tmp_path: Path) -> None:
    """None without one, HeaderError for one that cannot be read."""
    log = LogDirectory.at(tmp_path)
    assert log.closed() is None
    closed = Closed(LOG_ID, 3, 90, 5)
    (tmp_path / "CLOSED").write_bytes(encode_closed(closed))
    assert log.closed() == closed
    (tmp_path / "CLOSED").write_bytes(encode_closed(closed)[:-1])
    with pytest.raises(HeaderError):
        log.closed()


def missing(log: LogDirectory) -> Callable[[Listing], str]:
    def read(listing: Listing) -> str:
        raise log.removed(listing.segments[0])

    return read


def test_a_file_that_is_missing_from_a_quiet_directory_is_an_error_at_once(tmp_path: Path) -> None:
    """Nothing moves, so reading again would not help."""
    put(tmp_path, 3)
    log = LogDirectory.at(tmp_path)
    with pytest.raises(FileNotFoundError, match="was removed while it was read"):
        log.read_while_it_moves(missing(log))


def test_reading_begins_again_while_segments_come_and_go(tmp_path: Path) -> None:
    """What was missing, damaged or unsettled counts only where the files are the same afterwards."""
    put(tmp_path, 0)
    log, seen = LogDirectory.at(tmp_path), list[Listing]()

    def read(listing: Listing) -> int:
        seen.append(listing)
        number = listing.segments[-1]
        if number < 3:
            put(tmp_path, number + 1)
            (tmp_path / segment_name(number)).unlink()
        if number == 0:
            raise log.removed(number)
        if number == 1:
            raise CorruptionError(segment_name(number), 0, "half of it was given back")
        return number

    assert log.read_while_it_moves(read, lambda number: number == 3) == 3
    assert [listing.segments for listing in seen] == [(0,), (1,), (2,), (3,)]


def test_reading_ends_however_fast_the_writer_is(tmp_path: Path) -> None:
    """After this many attempts the last error is raised."""
    put(tmp_path, 0)
    log, reads = LogDirectory.at(tmp_path), list[int]()

    def read(listing: Listing) -> None:
        reads.append(listing.segments[-1])
        put(tmp_path, listing.segments[-1] + 1)
        raise log.removed(0)

    with pytest.raises(FileNotFoundError):
        log.read_while_it_moves(read)
    assert reads == list(range(ATTEMPTS_MAX))


def test_directories_are_made_with_their_parents(tmp_path: Path) -> None:
    """And each is synced in its own parent; one that exists is left alone."""
    path = tmp_path / "a" / "b"
    for _ in range(2):
        make_directories(OsFileSystem(), str(path))
        assert path.is_dir()


class Hurried(OsFileSystem):
    """A file system in which another process creates each directory just before this one does."""

    def make_directory(self, path: str) -> None:
        super().make_directory(path)
        if path.endswith("/wal"):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def test_a_directory_that_another_process_makes_meanwhile_is_used(tmp_path: Path) -> None:
    """Two programs that open a log in directories which neither finds do not fail because of that."""
    make_directories(Hurried(), str(tmp_path / "data" / "wal"))
    assert (tmp_path / "data" / "wal").is_dir()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO])
def test_a_name_is_synced_in_a_parent_that_may_be_read(tmp_path: Path, number: int) -> None:
    """A parent of another user does not keep a log from being opened; an error of the disk does."""

    class Refusing(OsFileSystem):
        def open_directory(self, path: str) -> int:
            assert tmp_path.is_relative_to(path)
            raise OSError(number, os.strerror(number), path)

    log = LogDirectory.at(tmp_path / "wal", Refusing())
    with pytest.raises(OSError, match=os.strerror(number)) if number == errno.EIO else nullcontext():
        log.sync_name()
