"""A scan reads a segment past damage: damaged ranges, what is readable in them, and what their headers show."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog, PersistPolicy
from mrecordlog_async.cli.files import describe
from mrecordlog_async.format.frame import BLOCK_BYTES, FIRST, FRAME_HEADER_BYTES, LAST
from mrecordlog_async.format.parse import ParsedBatch
from mrecordlog_async.format.record import Append
from mrecordlog_async.format.table import Table
from mrecordlog_async.maintenance.damage import Damage, DamagedRange, LostRun
from mrecordlog_async.maintenance.headers import read_headers
from mrecordlog_async.maintenance.scan import SegmentScan
from mrecordlog_async.storage.directory import LogDirectory
from tests import damage

SEGMENT = "wal-00000000000000000000"


def lost_in(damaged: DamagedRange) -> list[LostRun]:
    """Return what is known of appends that could not be read."""
    return [item for item in damaged.found if isinstance(item, LostRun)]


def build(directory: Path, fill: Callable[[MultiRecordLog], Awaitable[object]]) -> Path:
    """Create and close a log of one segment with a queue "q"; return the segment's path."""

    async def make() -> None:
        async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never()) as log:
            await log.create_queue("q")
            await fill(log)

    asyncio.run(make())
    return directory / SEGMENT


def scan(directory: Path) -> tuple[SegmentScan, list[Table | ParsedBatch | DamagedRange]]:
    scanned = read_headers(LogDirectory.at(directory), [0]).scan(0)
    return scanned, list(scanned.items())


def damaged_ranges(directory: Path) -> list[DamagedRange]:
    return [item for item in scan(directory)[1] if isinstance(item, DamagedRange)]


async def three_records(log: MultiRecordLog) -> None:
    for payload in (b"one", b"two", b"three"):
        await log.append_record("q", None, payload)


def find(path: Path, payload: bytes) -> int:
    found = path.read_bytes().find(payload)
    assert found > 0
    return found


def test_a_healthy_segment_is_its_table_and_its_batches(directory: Path) -> None:
    """A scan yields the table and the batches in order, and nothing else."""
    path = build(directory, three_records)
    scanned, items = scan(directory)
    assert [type(item) for item in items] == [Table, *[ParsedBatch] * (len(items) - 1)]
    assert (scanned.end, scanned.torn_bytes) == (damage.batch_ends(path)[-1], 0)


def test_a_damaged_batch_is_a_damaged_range_and_the_scan_continues_after_it(directory: Path) -> None:
    """The range is exactly that batch, and its number is known."""
    path = build(directory, three_records)
    damage.flip_byte(path, find(path, b"two"))
    _, items = scan(directory)
    (damaged,) = [item for item in items if isinstance(item, DamagedRange)]
    ends = damage.batch_ends(path)  # up to the damage
    assert damaged.offset == ends[-1]
    assert damaged.first_batch == damaged.last_batch == len(ends) + 1
    next_batch = items[items.index(damaged) + 1]
    assert isinstance(next_batch, ParsedBatch)
    assert (next_batch.commit.batch_offset, next_batch.commit.batch) == (damaged.end, len(ends) + 2)


def test_other_records_of_a_damaged_batch_are_rescued(directory: Path) -> None:
    """A batch of several runs loses only the damaged one."""
    payloads = [bytes([number]) * 20_000 for number in range(1, 7)]
    path = build(directory, lambda log: log.append_records("q", None, payloads))
    damage.flip_byte(path, find(path, payloads[2]) + 5)
    (damaged,) = damaged_ranges(directory)
    runs = [record.run for record in damaged.records if type(record) is Append]
    rescued = [payload for run in runs for payload in run.payloads()]
    assert rescued == [payload for payload in payloads if payload != payloads[2]]


def test_a_record_whose_first_frame_is_whole_tells_its_positions_for_certain(directory: Path) -> None:
    """The header of a large record is readable if only the rest is damaged."""
    path = build(directory, lambda log: log.append_record("q", 7, bytes(100_000)))
    (last,) = [offset for offset, _, kind, _ in damage.frames(path) if kind == LAST]
    damage.flip_byte(path, last + 10)
    (damaged,) = damaged_ranges(directory)
    assert [(lost.first_position, lost.records, lost.certain) for lost in lost_in(damaged)] == [(7, 1, True)]


def test_a_damaged_frame_tells_its_positions_on_its_own_word(directory: Path) -> None:
    """Its header is probably correct if the damage is after it, but nothing proves this."""
    path = build(directory, lambda log: log.append_records("q", 7, [b"abc", b"defghi"]))
    damage.flip_byte(path, find(path, b"abcdefghi") + 4)
    (damaged,) = damaged_ranges(directory)
    assert [(lost.first_position, lost.records, lost.certain) for lost in lost_in(damaged)] == [(7, 2, False)]


def test_a_tail_that_was_never_acknowledged_is_not_a_damaged_range(directory: Path) -> None:
    """Without CLOSED and without a later COMMIT it is a batch whose write was interrupted."""
    path = build(directory, three_records)
    (directory / "CLOSED").unlink()
    torn = damage.half_a_batch(path)
    scanned, items = scan(directory)
    assert not [item for item in items if isinstance(item, DamagedRange)]
    assert scanned.torn_bytes == torn


def test_the_same_behind_a_clean_close_is_not_looked_at(directory: Path) -> None:
    """CLOSED shows where the log ends; nothing after that belongs to it."""
    path = build(directory, three_records)
    damage.write_at(path, damage.batch_ends(path)[-1], b"junk")
    scanned, items = scan(directory)
    assert (scanned.torn_bytes, [item for item in items if isinstance(item, DamagedRange)]) == (0, [])


def test_a_file_cut_short_is_a_damaged_range_up_to_where_it_ended(directory: Path) -> None:
    """CLOSED, or the next segment, shows how much is missing."""
    path = build(directory, three_records)
    ends = damage.batch_ends(path)
    damage.cut(path, ends[-2] + 10)
    (damaged,) = damaged_ranges(directory)
    assert (damaged.offset, damaged.end, damaged.reason) == (ends[-2], ends[-1], "the file is cut short")
    assert damaged.first_batch == damaged.last_batch


@pytest.mark.parametrize("where", [0, 70], ids=["header", "table"])
def test_the_beginning_of_a_segment_can_be_lost(directory: Path, where: int) -> None:
    """Batches are found by their COMMITs; the log's id comes from CLOSED."""
    path = build(directory, three_records)
    whole = [item for item in scan(directory)[1] if isinstance(item, ParsedBatch)]
    damage.flip_byte(path, where)
    batches = [item for item in scan(directory)[1] if isinstance(item, ParsedBatch)]
    assert batches == whole
    assert damaged_ranges(directory)


def test_many_frames_of_a_record_are_joined_again(directory: Path) -> None:
    """A large record in a damaged batch is rescued whole."""
    large = bytes(range(256)) * 400

    async def fill(log: MultiRecordLog) -> None:
        await asyncio.gather(log.append_record("q", 0, large), log.append_records("q", 1, [b"abc" * 20]))

    path = build(directory, fill)
    assert any(kind == FIRST for _, _, kind, _ in damage.frames(path))
    damage.flip_byte(path, find(path, b"abc" * 20))
    (damaged,) = damaged_ranges(directory)
    assert [record.run.payload for record in damaged.records if type(record) is Append] == [large]


def test_frames_of_two_records_are_never_joined_into_one(directory: Path) -> None:
    """A block of zeros over the end of one record and the beginning of the next does not create a third record."""
    head_bytes, last_bytes = 29, 10_000  # of an append of one record; the part of each in its LAST frame

    def payload(byte: bytes, offset: int) -> bytes:
        first_bytes = BLOCK_BYTES - offset % BLOCK_BYTES - FRAME_HEADER_BYTES
        return byte * (first_bytes + last_bytes - head_bytes)

    async def fill(log: MultiRecordLog) -> None:
        first = payload(b"a", damage.batch_ends(directory / SEGMENT)[-1])
        second = payload(b"b", FRAME_HEADER_BYTES + last_bytes)
        await log.append_records("q", None, [first, second])

    path = build(directory, fill)
    large = [(kind, len(body)) for _, _, kind, body in damage.frames(path) if kind in (FIRST, LAST)]
    assert large[1] == large[3] == (LAST, last_bytes)
    damage.zero(path, BLOCK_BYTES, BLOCK_BYTES)
    (damaged,) = damaged_ranges(directory)
    assert [record for record in damaged.records if type(record) is Append] == []
    assert [(lost.first_position, lost.certain) for lost in lost_in(damaged)] == [(0, True)]


def build_several(directory: Path) -> Path:
    """Create and close a log of several segments; return the path of the first one."""

    async def fill() -> None:
        async with MultiRecordLog.open(directory, segment_bytes=2 * BLOCK_BYTES) as log:
            await log.create_queue("q")
            for _ in range(4):
                await log.append_record("q", None, bytes(BLOCK_BYTES // 2))

    asyncio.run(fill())
    return directory / SEGMENT


def test_the_next_segment_says_which_batches_a_damaged_end_held(directory: Path) -> None:
    """The header of the next segment shows the number of this segment's last batch."""
    path = build_several(directory)
    assert len(list(directory.glob("wal-*"))) > 1
    ends = damage.batch_ends(path)
    damage.flip_byte(path, ends[-2] + FRAME_HEADER_BYTES + 1)
    (damaged,) = damaged_ranges(directory)
    assert (damaged.offset, damaged.first_batch, damaged.last_batch) == (ends[-2], len(ends), len(ends))


def test_no_first_batch_is_named_where_nothing_shows_it(directory: Path) -> None:
    """Of a segment whose every byte is lost, only the last batch is known. There is no batch 0."""
    path = build_several(directory)
    last = len(damage.batch_ends(path))
    damage.zero(path, 0, path.stat().st_size)
    numbers = range(len(list(directory.glob("wal-*"))))
    scanned = read_headers(LogDirectory.at(directory), list(numbers)).scan(0)
    header, rest = (item for item in scanned.items() if isinstance(item, DamagedRange))
    assert (header.first_batch, header.last_batch) == (None, None)
    assert (rest.first_batch, rest.last_batch) == (None, last)
    found = Damage(SEGMENT, rest.offset, rest.bytes, rest.reason, rest.first_batch, rest.last_batch)
    assert f"; batches up to {last} affected, 0 records of it still readable" in describe(found)
