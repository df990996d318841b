"""`SegmentFiles`: segments of a log that is being read, with the lock or without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError
from mrecordlog_async.format.header import SegmentHeader, encode_header
from mrecordlog_async.recovery.segment_files import SegmentFiles, SegmentRemovedError
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.segment import segment_name

LOG_ID = bytes(range(16))


def put(directory: Path, number: int, data: bytes | None = None) -> Path:
    path = directory / segment_name(number)
    path.write_bytes(encode_header(SegmentHeader(LOG_ID, number, 1, 0, 0)) if data is None else data)
    return path


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_missing_segment_was_removed_only_if_a_writer_may_run(tmp_path: Path, has_lock: bool) -> None:
    """With the lock nobody removes segments, so it is an error of the files."""
    files = SegmentFiles(LogDirectory.at(tmp_path), has_lock)
    with pytest.raises(FileNotFoundError if has_lock else SegmentRemovedError), files.opened(3):
        pass


@pytest.mark.parametrize("has_lock", [True, False])
def test_damage_in_a_file_without_a_name_is_a_removed_segment(tmp_path: Path, has_lock: bool) -> None:
    """Its space is being freed. With the lock it stays damage, and so does damage in a file that is still there."""
    files = SegmentFiles(LogDirectory.at(tmp_path), has_lock)
    path = put(tmp_path, 3)
    with pytest.raises(CorruptionError), files.opened(3):
        raise CorruptionError(path.name, 0, "half of it is zeros")
    with pytest.raises(CorruptionError if has_lock else SegmentRemovedError), files.opened(3):
        path.unlink()
        raise CorruptionError(path.name, 0, "half of it is zeros")


def test_a_header_that_does_not_fit_is_damage_at_the_start(tmp_path: Path) -> None:
    """Damaged, of another segment, or of another log."""
    files = SegmentFiles(LogDirectory.at(tmp_path), has_lock=True)
    put(tmp_path, 3)
    assert files.header_of(3, LOG_ID).segment == 3
    put(tmp_path, 4, (tmp_path / segment_name(3)).read_bytes())
    put(tmp_path, 5, b"")
    for number, log_id in ((3, bytes(16)), (4, LOG_ID), (5, LOG_ID)):
        with pytest.raises(CorruptionError) as caught:
            files.header_of(number, log_id)
        assert (caught.value.segment, caught.value.offset) == (segment_name(number), 0)


def test_a_note_of_the_end_that_was_removed_since_does_not_count(tmp_path: Path) -> None:
    """The log was opened for writing meanwhile; one that cannot be read is damage."""
    files = SegmentFiles(LogDirectory.at(tmp_path), has_lock=False)
    assert files.closed() is None
    (tmp_path / "CLOSED").write_bytes(b"not this")
    with pytest.raises(CorruptionError):
        files.closed()
