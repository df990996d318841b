"""Damage made by hand: the reader does what the crate does, and reports all of it."""

from __future__ import annotations

import pytest

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.quickwit.files import file_numbers
from mrecordlog_async.quickwit.frame import BLOCK_BYTES, encode_frames
from mrecordlog_async.quickwit.reader import read
from mrecordlog_async.quickwit.record import APPEND, TOUCH, LogRecord, encode_record
from mrecordlog_async.quickwit.writer import CrateWriter
from tests.quickwit.memory import Memory, retained

FRAME_BYTES = 7 + 12 + 12 + 100
CREATE_BYTES = 7 + 12


def written(records: int = 600, file_bytes: int = 8 * BLOCK_BYTES) -> Memory:
    """Write a queue "q" with records of 100 bytes; `frame_at` returns where those of the first block begin."""
    files = Memory()
    writer = CrateWriter(files, file_bytes=file_bytes)
    writer.create_queue("q")
    for number in range(records):
        writer.append("q", None, [bytes([number % 256]) * 100])
    return files


def frame_at(number: int) -> int:
    return CREATE_BYTES + number * FRAME_BYTES


def positions(files: Memory) -> list[int]:
    return [position for position, _ in retained(files)["q"]]


def test_a_kind_that_does_not_exist_loses_its_block_and_says_how_many_frames() -> None:
    """The crate skips the rest of the block; the readable frames in it are counted."""
    files = written()
    files.write(0, frame_at(10) + 6, b"\x09")
    report = read(files)
    (finding,) = [found for found in report.damage if not found.silent]
    assert (finding.offset, finding.reason) == (frame_at(10), "frame kind 9 does not exist")
    lost = sorted(set(range(600)) - set(positions(files)))
    assert lost[0] == 10
    # The block's last frame belongs to a record that goes on in the next one.
    assert finding.hidden_frames == len(lost) - 1
    assert [found.silent for found in report.findings].count(False) == 1


def test_a_length_beyond_the_block_loses_its_block() -> None:
    """A frame cannot be longer than its block."""
    files = written()
    files.write(0, frame_at(10) + 4, b"\xff\xff")
    (finding,) = [found for found in read(files).damage if not found.silent]
    assert finding.reason == "a frame is longer than its block"


def test_a_bad_kind_in_the_last_frame_is_a_torn_tail() -> None:
    """Nothing readable follows it, so it may be a write that a crash interrupted."""
    files = written(records=20)
    files.write(0, frame_at(19) + 6, b"\x09")
    report = read(files)
    assert [finding.torn for finding in report.findings] == [True]
    assert positions(files) == list(range(19))


def test_an_unfinished_record_at_the_end_is_a_torn_tail_that_the_crate_does_not_mention() -> None:
    """The crate drops a record cut between two frames without a warning; here it is reported."""
    files = written(records=1)
    pieces = list(encode_frames(encode_record(LogRecord(APPEND, "q", 1, ((1, bytes(50_000)),))), frame_at(1)))
    files.write(0, frame_at(1), pieces[0])
    report = read(files)
    assert [(found.torn, found.silent, found.offset) for found in report.findings] == [(True, True, frame_at(1))]


def test_a_position_that_goes_back_is_refused_as_the_crate_refuses_it() -> None:
    """The crate then refuses the whole directory; the error has the place."""
    files = written(records=2)
    body = encode_record(LogRecord(APPEND, "q", 0, ((0, b"again"),)))
    files.write(0, frame_at(2), b"".join(encode_frames(body, frame_at(2))))
    with pytest.raises(CorruptionError) as raised:
        read(files)
    assert (raised.value.segment, raised.value.offset) == ("wal-00000000000000000000", frame_at(2))


def test_a_record_of_an_unknown_kind_is_damage() -> None:
    """The crate skips an unknown record with a warning; a later record shows that the log continues."""
    files = written(records=1)
    frames = b"".join(encode_frames(encode_record(LogRecord(9, "q", 0)), frame_at(1)))
    files.write(0, frame_at(1), frames)
    (finding,) = read(files).damage
    assert finding.reason == "record kind 9 is not known"


def test_a_touch_of_a_queue_with_records_empties_it() -> None:
    """The crate replaces the queue by an empty one at that position."""
    files = written(records=2)
    files.write(0, frame_at(2), b"".join(encode_frames(encode_record(LogRecord(TOUCH, "q", 7)), frame_at(2))))
    queue = read(files).state.queues["q"]
    assert (queue.first_position, queue.next_position, len(queue.positions)) == (7, 7, 0)


def test_a_missing_file_in_the_middle_is_damage() -> None:
    """The crate continues as if nothing were missing."""
    files = written(records=900, file_bytes=BLOCK_BYTES)
    assert len(files.numbers) > 3
    files.unlink(1)
    report = read(files)
    assert "1 file(s) are missing from here on" in [finding.reason for finding in report.damage]


def test_a_first_file_shorter_than_a_block_is_refused() -> None:
    """A crash while the directory is created can leave files that the crate never opens again."""
    with pytest.raises(CorruptionError, match="shorter than a block"):
        read(Memory({0: b""}))


def test_a_block_that_is_there_in_part_is_not_read_but_reported() -> None:
    """The crate reads only whole blocks; records in an incomplete block are reported."""
    files = written(records=400)
    del files.contents[0][BLOCK_BYTES + 5_000 :]
    report = read(files)
    reasons = [finding.reason for finding in report.damage]
    assert "records in a block that the file holds only in part, which the crate does not read" in reasons


def test_no_file_is_no_log() -> None:
    """A directory without files of the crate is not an empty log."""
    with pytest.raises(FileNotFoundError):
        read(Memory())


def test_only_the_names_of_the_crate_count() -> None:
    """A name has 24 characters, and its digits are an unsigned 64-bit number."""
    names = ["wal-00000000000000000007", "wal-7", "LOCK", "wal-99999999999999999999", "wal-0000000000000000000x"]
    assert file_numbers(names) == [7]
