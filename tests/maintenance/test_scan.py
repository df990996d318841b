"""Walking a segment around damage: gaps, what can be read in them, and what their heads still tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog, PersistPolicy
from mrecordlog_async.format.frame import BLOCK_BYTES, FIRST, FRAME_HEADER_BYTES, LAST
from mrecordlog_async.format.parse import Batch
from mrecordlog_async.format.record import Append, Table
from mrecordlog_async.maintenance.damage import Gap
from mrecordlog_async.maintenance.layout import read_layout
from mrecordlog_async.maintenance.scan import SegmentWalk
from mrecordlog_async.storage.filesystem import OsFileSystem
from tests import damage

SEGMENT = "wal-00000000000000000000"


def build(directory: Path, fill: Callable[[MultiRecordLog], Awaitable[object]]) -> Path:
    """Make a log of one segment with a queue "q", closed; return the segment's path."""

    async def make() -> None:
        async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never()) as log:
            await log.create_queue("q")
            await fill(log)

    asyncio.run(make())
    return directory / SEGMENT


def walk(directory: Path) -> tuple[SegmentWalk, list[Table | Batch | Gap]]:
    walked = read_layout(OsFileSystem(), str(directory), [0]).walk(0)
    return walked, list(walked.items())


def gaps(directory: Path) -> list[Gap]:
    return [item for item in walk(directory)[1] if isinstance(item, Gap)]


async def three_records(log: MultiRecordLog) -> None:
    for payload in (b"one", b"two", b"three"):
        await log.append_record("q", None, payload)


def find(path: Path, payload: bytes) -> int:
    found = path.read_bytes().find(payload)
    assert found > 0
    return found


def test_a_healthy_segment_is_its_table_and_its_batches(directory: Path) -> None:
    """Nothing else, in order, up to the end."""
    path = build(directory, three_records)
    walked, items = walk(directory)
    assert [type(item) for item in items] == [Table, *[Batch] * (len(items) - 1)]
    assert (walked.end, walked.tail) == (damage.batch_ends(path)[-1], 0)


def test_a_damaged_batch_is_a_gap_and_walking_goes_on_behind_it(directory: Path) -> None:
    """The gap is that batch exactly, and its number is known."""
    path = build(directory, three_records)
    damage.flip_byte(path, find(path, b"two"))
    _, items = walk(directory)
    (gap,) = [item for item in items if isinstance(item, Gap)]
    ends = damage.batch_ends(path)  # up to the damage
    assert gap.offset == ends[-1]
    assert gap.first_batch == gap.last_batch == len(ends) + 1
    behind = items[items.index(gap) + 1]
    assert isinstance(behind, Batch)
    assert (behind.commit.batch_offset, behind.commit.batch) == (gap.end, len(ends) + 2)


def test_other_records_of_a_damaged_batch_are_rescued(directory: Path) -> None:
    """A batch of several runs loses the one that is hit."""
    payloads = [bytes([number]) * 20_000 for number in range(1, 7)]
    path = build(directory, lambda log: log.append_records("q", None, payloads))
    damage.flip_byte(path, find(path, payloads[2]) + 5)
    (gap,) = gaps(directory)
    runs = [record.run for record in gap.records if type(record) is Append]
    rescued = [payload for run in runs for payload in run.payloads()]
    assert rescued == [payload for payload in payloads if payload != payloads[2]]


def test_a_record_whose_first_frame_is_whole_tells_its_positions_for_certain(directory: Path) -> None:
    """The head of a large record survives damage to its rest."""
    path = build(directory, lambda log: log.append_record("q", 7, bytes(100_000)))
    (last,) = [offset for offset, _, kind, _ in damage.frames(path) if kind == LAST]
    damage.flip_byte(path, last + 10)
    (gap,) = gaps(directory)
    assert [(lost.first_position, lost.records, lost.certain) for lost in gap.lost] == [(7, 1, True)]


def test_a_damaged_frame_tells_its_positions_on_its_own_word(directory: Path) -> None:
    """Its head is likely right where the damage lies behind it, but nothing proves it."""
    path = build(directory, lambda log: log.append_records("q", 7, [b"abc", b"defghi"]))
    damage.flip_byte(path, find(path, b"abcdefghi") + 4)
    (gap,) = gaps(directory)
    assert [(lost.first_position, lost.records, lost.certain) for lost in gap.lost] == [(7, 2, False)]


def test_a_tail_that_nobody_was_promised_is_no_gap(directory: Path) -> None:
    """Without CLOSED and without a later COMMIT it is a batch that was being written."""
    path = build(directory, three_records)
    (directory / "CLOSED").unlink()
    damage.write_at(path, damage.batch_ends(path)[-1], b"half a batch")
    walked, items = walk(directory)
    assert not [item for item in items if isinstance(item, Gap)]
    assert walked.tail == len(b"half a batch")


def test_the_same_behind_a_clean_close_is_not_looked_at(directory: Path) -> None:
    """CLOSED says where the log ends; nothing behind belongs to it."""
    path = build(directory, three_records)
    damage.write_at(path, damage.batch_ends(path)[-1], b"junk")
    walked, items = walk(directory)
    assert (walked.tail, [item for item in items if isinstance(item, Gap)]) == (0, [])


def test_a_file_cut_short_is_a_gap_up_to_where_it_ended(directory: Path) -> None:
    """CLOSED, or the next segment, knows how much is missing."""
    path = build(directory, three_records)
    ends = damage.batch_ends(path)
    damage.cut(path, ends[-2] + 10)
    (gap,) = gaps(directory)
    assert (gap.offset, gap.end, gap.reason) == (ends[-2], ends[-1], "the file is cut short")
    assert gap.first_batch == gap.last_batch


@pytest.mark.parametrize("where", [0, 70], ids=["header", "table"])
def test_the_beginning_of_a_segment_can_be_lost(directory: Path, where: int) -> None:
    """Batches are found by their COMMITs; the log's id comes from CLOSED."""
    path = build(directory, three_records)
    whole = [item for item in walk(directory)[1] if isinstance(item, Batch)]
    damage.flip_byte(path, where)
    batches = [item for item in walk(directory)[1] if isinstance(item, Batch)]
    assert batches == whole
    assert gaps(directory)


def test_many_frames_of_a_record_are_joined_again(directory: Path) -> None:
    """A large record in a damaged batch is rescued whole."""
    large = bytes(range(256)) * 400

    async def fill(log: MultiRecordLog) -> None:
        await asyncio.gather(log.append_record("q", 0, large), log.append_records("q", 1, [b"abc" * 20]))

    path = build(directory, fill)
    assert any(kind == FIRST for _, _, kind, _ in damage.frames(path))
    damage.flip_byte(path, find(path, b"abc" * 20))
    (gap,) = gaps(directory)
    assert [record.run.payload for record in gap.records if type(record) is Append] == [large]


def test_frames_of_two_records_are_never_joined_into_one(directory: Path) -> None:
    """A block of zeros that took the end of one record and the beginning of the next makes no third one."""
    head_bytes, last_bytes = 29, 10_000  # of an append of one record; what of each lies in its LAST frame

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
    (gap,) = gaps(directory)
    assert [record for record in gap.records if type(record) is Append] == []
    assert [(lost.first_position, lost.certain) for lost in gap.lost] == [(0, True)]


def test_the_next_segment_says_which_batches_a_damaged_end_held(directory: Path) -> None:
    """The last batch of a segment that is not the last is known by number from the header that follows."""

    async def fill() -> None:
        async with MultiRecordLog.open(directory, segment_bytes=2 * BLOCK_BYTES) as log:
            await log.create_queue("q")
            for _ in range(4):
                await log.append_record("q", None, bytes(BLOCK_BYTES // 2))

    asyncio.run(fill())
    path = directory / SEGMENT
    assert len(list(directory.glob("wal-*"))) > 1
    ends = damage.batch_ends(path)
    damage.flip_byte(path, ends[-2] + FRAME_HEADER_BYTES + 1)
    (gap,) = gaps(directory)
    assert (gap.offset, gap.first_batch, gap.last_batch) == (ends[-2], len(ends), len(ends))
