"""Segment files: names, reservation, short writes."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from mrecordlog_async.storage.filesystem import Buffer, read_exact, write_all
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import SegmentFile, list_segments, read_pieces, segment_name, segment_number


def test_names() -> None:
    """Twenty digits, and nothing that only looks alike."""
    assert segment_name(7) == "wal-00000000000000000007"
    assert segment_number("wal-00000000000000000007") == 7
    for name in (
        "wal-7",
        "wal-000000000000000000007",
        "wal-00000000000000000007.tmp",
        "LOCK",
        "wal-0000000000000000000x",
    ):
        assert segment_number(name) is None
    assert list_segments([segment_name(3), "LOCK", segment_name(1)]) == [1, 3]


class ShortWrites(OsFileSystem):
    """A disk that takes at most 7 bytes at a time."""

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        return super().write(handle, [b"".join(buffers)[:7]], offset)


class ShortReads(OsFileSystem):
    """A disk that gives at most 7 bytes at a time."""

    def read(self, handle: int, length: int, offset: int) -> bytes:
        return super().read(handle, min(length, 7), offset)


class NoSpace(OsFileSystem):
    """A disk with room for 2 MiB a file, which keeps what a failed reservation got."""

    def reserve(self, handle: int, offset: int, length: int) -> None:
        if offset + length > 2 << 20:
            super().reserve(handle, offset, (2 << 20) - offset)
            raise OSError(errno.ENOSPC, "no space")
        super().reserve(handle, offset, length)


class Silent(OsFileSystem):
    """A disk that accepts nothing and does not say why."""

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        return 0


def test_short_reads_are_continued(tmp_path: Path) -> None:
    """Whatever the disk gives at a time, all of it is read, up to the file's end."""
    (tmp_path / "f").write_bytes(bytes(range(200)))
    files = ShortReads()
    handle = files.open(str(tmp_path / "f"), write=False)
    assert read_exact(files, handle, 100, 30) == bytes(range(30, 130))
    assert read_exact(files, handle, 100, 150) == bytes(range(150, 200))
    assert read_exact(files, handle, 3, 200) == b""
    files.close(handle)


def test_short_writes_are_continued(tmp_path: Path) -> None:
    """Whatever the disk takes at a time, all arrives, in order."""
    files = ShortWrites()
    handle = files.create(str(tmp_path / "f"))
    buffers = [b"%d," % n for n in range(3000)]
    write_all(files, handle, buffers, 5)
    files.close(handle)
    assert (tmp_path / "f").read_bytes() == bytes(5) + b"".join(buffers)


def test_disk_that_accepts_nothing_is_an_error(tmp_path: Path) -> None:
    """No endless loop: EIO."""
    files = Silent()
    handle = files.create(str(tmp_path / "f"))
    with pytest.raises(OSError, match="accepts no bytes"):
        write_all(files, handle, [b"x"], 0)
    files.close(handle)


def test_reservation_grows_in_steps_and_falls_back_to_what_is_needed(tmp_path: Path) -> None:
    """A larger step is tried first; if it does not fit, the need in whole blocks. A failure gives back what it got."""
    files = NoSpace()
    segment = SegmentFile(files, str(tmp_path / "f"), files.create(str(tmp_path / "f")), 0)
    segment.reserve(1000, 1 << 30)
    assert segment.reserved_bytes == 1 << 20
    segment.reserve((1 << 20) + 1, 1 << 30)
    assert segment.reserved_bytes == (1 << 20) + 4_096
    with pytest.raises(OSError, match="no space"):
        segment.reserve(3 << 20, 1 << 30)
    assert files.size(segment.handle) == segment.reserved_bytes == (1 << 20) + 4_096
    segment.close()


def test_pieces_begin_at_blocks(tmp_path: Path) -> None:
    """Reading from any offset yields whole blocks from the one that holds it."""
    files = OsFileSystem()
    handle = files.create(str(tmp_path / "f"))
    data = bytes(range(256)) * 400
    write_all(files, handle, [data], 0)
    pieces = list(read_pieces(files, handle, 40_000, len(data)))
    assert pieces[0][0] == 32_768
    assert b"".join(piece for _, piece in pieces) == data[32_768:]
    files.close(handle)


class FullAndBlind(NoSpace):
    """A full disk that cannot report how many names a file has, while *is_blind*."""

    is_blind = True

    def links(self, handle: int) -> int:
        if self.is_blind:
            raise OSError(errno.EIO, "no report")
        return super().links(handle)


def test_a_report_that_fails_during_a_reservation_does_not_make_a_segment_shared(tmp_path: Path) -> None:
    """A full disk must not make the log roll: a file is taken for shared later only if it is reported to be."""
    disk = FullAndBlind()
    file = SegmentFile(disk, str(tmp_path / "file"), disk.create(str(tmp_path / "file")), 0)
    with pytest.raises(OSError, match="no space"):
        file.reserve(3 << 20, 3 << 20)
    assert not file.is_known_unshared()
    disk.is_blind = False
    assert file.is_known_unshared()
    assert not file.is_shared()
    file.close()
