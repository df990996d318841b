"""Gathered files of real segments: one pass finds what replay finds, and a file is known for what it is."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError, MultiRecordLog, ReadOnlyLog
from mrecordlog_async.format.gathered import GatheredIndex, Gathering
from mrecordlog_async.memory.collected import CollectedRuns, held_run
from mrecordlog_async.model import POSITION_MAX, Record, Times
from mrecordlog_async.recovery.gathering import SegmentParts, identify, write_collected
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.gathered_files import GatheredFile, gathered_path
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests import damage

BLOCK = 32_768
MIB = 1 << 20


async def build(directory: Path, seed: int = 0, segments: int = 5) -> None:
    """Write a log of all kinds of appends: runs, single records of many queues, gaps, large records."""
    rng = random.Random(seed)
    async with MultiRecordLog.open(directory, segment_bytes=2 * BLOCK, recycle=False) as log:
        names = [f"q{at}" for at in range(40)]
        await asyncio.gather(*map(log.create_queue, names))
        while log.resource_usage().segments < segments:
            singles = [rng.choice(names) for _ in range(50)]
            await asyncio.gather(*(log.append(name, rng.randbytes(rng.randrange(40))) for name in singles))
            name = rng.choice(names)
            position = log.next_position(name) + rng.choice([0, 0, 1, 100])
            await log.append_records(name, position, [rng.randbytes(rng.choice([5, 500])) for _ in range(20)])
            await log.append(rng.choice(names), rng.randbytes(17_000))


def read_all(directory: Path, index: GatheredIndex) -> dict[int, list[Record]]:
    """Return the records of a gathered file by queue id."""
    file = GatheredFile(OsFileSystem(), gathered_path(str(directory), index.head.segment))
    assert file.index.columns() == index.columns()
    found: dict[int, list[Record]] = {}
    for queue_id in index.ids:
        for place in range(*index.bounds(queue_id)):
            data = file.read(index.offsets[place], index.lengths[place])
            runs, times = index.decode(data, range(place, place + 1), 0, POSITION_MAX + 1)
            found.setdefault(queue_id, []).extend(record for run in runs for record in held_run(run).records())
            assert len(times.ticks) > 0
    file.close()
    return found


@pytest.mark.parametrize("seed", range(3))
def test_one_pass_over_each_segment_finds_what_replay_finds(directory: Path, seed: int) -> None:
    """The files of all complete segments, and the records of the last one, are the records of the log, in order."""
    asyncio.run(build(directory, seed))
    at = LogDirectory.at(directory)
    log = ReadOnlyLog.open(directory)
    ids = {summary.id: name for name, summary in log.summary().items()}
    found: dict[int, list[Record]] = {}
    segments = at.list().segments
    for number in segments[:-1]:
        gathering = Gathering(identify(at, number))
        index = gathering.index
        size, error = write_collected(at, gathering, SegmentParts(at, index.head, MIB))
        assert error is None
        assert size == (directory / Path(gathered_path("", number)).name).stat().st_size
        for queue_id, records in read_all(directory, index).items():
            found.setdefault(queue_id, []).extend(records)
    for queue_id, name in ids.items():
        records = found.get(queue_id, [])
        assert list(log.range(name))[: len(records)] == records
    newest = sum(len(list(log.range(name))) for name in ids.values()) - sum(map(len, found.values()))
    assert 0 <= newest < sum(map(len, found.values()))


@pytest.mark.parametrize("part_bytes", [1_000, 10_000, 40_000])
def test_a_segment_in_parts_is_the_segment_as_a_whole(directory: Path, part_bytes: int) -> None:
    """However little is collected at a time, the file has the same records, and a part has those that a read wants."""
    asyncio.run(build(directory, segments=3))
    at = LogDirectory.at(directory)
    head = identify(at, at.list().segments[0])
    at_once, in_parts = Gathering(head), Gathering(head)
    write_collected(at, at_once, SegmentParts(at, head, MIB))
    whole = read_all(directory, at_once.index)
    parts = SegmentParts(at, head, part_bytes)
    assert len(list(parts)) > 1
    write_collected(at, in_parts, parts)
    assert in_parts.index.ids == at_once.index.ids
    assert read_all(directory, in_parts.index) == whole
    for queue_id, records in whole.items():
        position, stop, found = records[0].position, records[-1].position + 1, list[Record]()
        while position < stop:
            runs, times = parts.runs(queue_id, position, stop)
            assert times.ticks
            found += (record for run in runs for record in run.records())
            position = runs[-1].next_position
        assert found == records
        assert parts.runs(queue_id, stop, stop + 1) == ([], Times.none())


def test_a_segment_is_known_by_its_log_its_end_and_its_tables(directory: Path) -> None:
    """A copy of another log, or another segment, has another head; damage to a table is noticed."""
    asyncio.run(build(directory))
    at = LogDirectory.at(directory)
    first, *_ = segments = at.list().segments
    heads = {identify(at, number) for number in segments[:-1]}
    assert len(heads) == len(segments) - 1
    assert identify(at, first) == identify(at, first)
    with pytest.raises(FileNotFoundError):
        identify(at, segments[-1])  # the log continues in it
    other = directory.with_name("other")
    asyncio.run(build(other))
    assert identify(LogDirectory.at(other), first) not in heads
    shutil.copy(at.path_of(first), other)
    with pytest.raises(CorruptionError, match="another log"):
        identify(LogDirectory.at(other), first)
    damage.flip_byte(Path(at.path_of(first)), 80)
    with pytest.raises(CorruptionError, match="table"):
        identify(at, first)


def test_a_segment_that_is_damaged_is_not_gathered(directory: Path) -> None:
    """One pass finds the damage; nothing of the segment is taken."""
    asyncio.run(build(directory))
    at = LogDirectory.at(directory)
    first = at.list().segments[0]
    head = identify(at, first)
    damage.flip_byte(Path(at.path_of(first)), head.end - 200)
    for part_bytes in (MIB, 4_096):
        with pytest.raises(CorruptionError, match="damaged"):
            list(SegmentParts(at, head, part_bytes))


class FullDisk(OsFileSystem):
    """A disk without space."""

    def reserve(self, handle: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "no space")


def test_the_index_is_whole_even_if_the_disk_refuses_the_file(directory: Path) -> None:
    """The places are known, so that the file can be made later, and nothing of it is left on the disk."""
    asyncio.run(build(directory))
    at = LogDirectory.at(directory)
    first = at.list().segments[0]
    head = identify(at, first)
    full = LogDirectory(FullDisk(), at.path)
    gathering, again = Gathering(head), Gathering(head)
    size, error = write_collected(full, gathering, SegmentParts(at, head, MIB))
    assert (size, error is not None and error.errno) == (0, errno.ENOSPC)
    assert not [name for name in at.list().others if ".runs" in name]
    write_collected(at, again, SegmentParts(at, head, MIB))
    assert again.index.columns() == gathering.index.columns()


def test_a_part_that_cannot_be_read_makes_no_index(directory: Path) -> None:
    """Only a file that the disk refuses is made later: an index that lacks records would be believed."""
    asyncio.run(build(directory))
    at = LogDirectory.at(directory)
    head = identify(at, at.list().segments[0])

    def parts() -> Iterator[CollectedRuns]:
        yield next(iter(SegmentParts(at, head, MIB)))
        raise OSError(errno.EIO, "bad sector")

    with pytest.raises(OSError, match="bad sector"):
        write_collected(at, Gathering(head), parts())
    assert not [name for name in at.list().others if ".runs" in name]
