"""Opening a log with less memory than one of its segments takes: memory stays bounded, and every record is read."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from mrecordlog_async import LastEnd, Limits, MultiRecordLog, PersistPolicy
from mrecordlog_async.format.gathered import GatheredIndex
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.recovery import beyond_memory
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests import damage

MIB = 1 << 20
MEMORY = 8 * MIB
SLACK = 64 * MIB
RECORD = bytes(range(256)) * 4

OPEN = """
import asyncio, sys
from mrecordlog_async import Limits, MultiRecordLog

def peak():  # not getrusage: there, a child begins with what its parent took
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024

async def main(directory, memory_bytes, beyond_memory):
    limits = Limits(memory_bytes=int(memory_bytes), beyond_memory=beyond_memory)
    before = peak()
    async with MultiRecordLog.open(directory, limits=limits, create=False) as log:
        took = peak() - before
        records, position = 0, 0
        async for record in log.read("q"):
            assert record.position == records and record.payload[:8] == records.to_bytes(8, "little"), record.position
            records += 1
        print(took, peak() - before, records, log.memory_first("q"))

asyncio.run(main(*sys.argv[1:]))
"""


async def write(directory: Path, segment_bytes: int, size: int, queues: int = 1) -> int:
    """Write records of *size* bytes in all, to queues in turn; return the number of records of each queue."""
    names = ["q", *(f"q{at}" for at in range(1, queues))]
    position, step = 0, max(500 // queues, 10)
    async with MultiRecordLog.open(directory, segment_bytes=segment_bytes, persist_policy=PersistPolicy.never()) as log:
        await log.create_queues(names)
        while position * queues * len(RECORD) < size:
            payloads = [at.to_bytes(8, "little") + RECORD for at in range(position, position + step)]
            await asyncio.gather(*(log.append_records(name, position, payloads) for name in names))
            position += step
    return position


def open_and_read(directory: Path, beyond_memory: str) -> tuple[int, int, int, int]:
    """Open a log and read queue "q" in a separate process.

    Returns:
        The memory that opening took at most, that of both, the number of records, and the first one in memory.
    """
    command = [sys.executable, "-c", OPEN, str(directory), str(MEMORY), beyond_memory]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    opening, everything, records, memory_first = map(int, printed.split())
    return opening, everything, records, memory_first


@pytest.mark.parametrize(
    ("beyond_memory", "segment_bytes", "queues"),
    [("refuse", 110 * MIB, 1), ("disk", 110 * MIB, 1_000), ("refuse", 400 * MIB, 1_000), ("disk", 400 * MIB, 1)],
)
async def test_a_segment_larger_than_memory_is_opened_in_little_memory(
    directory: Path, beyond_memory: str, segment_bytes: int, queues: int
) -> None:
    """Opening takes at most memory_bytes and 64 MiB, however large a segment is; then everything is read."""
    written = await write(directory, segment_bytes, 115 * MIB, queues)
    opening, everything, records, memory_first = open_and_read(directory, beyond_memory)
    assert records == written
    assert 0 < memory_first <= written
    assert opening <= MEMORY + SLACK
    assert everything <= MEMORY + 2 * SLACK


async def test_a_queue_leaves_memory_before_the_tail_of_the_next_one_is_sealed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a log that memory has no room for seals the tail of one queue at a time: it is there twice meanwhile."""
    await write(directory, 4 * MIB, 12 * MIB, queues=20)
    steps: list[tuple[str, int]] = []
    seal, leave = Queue.seal, Queue.leave

    def sealed(queue: Queue) -> int:
        steps.append(("sealed", queue.id))
        return seal(queue)

    def left(queue: Queue, index: GatheredIndex, place: int) -> int:
        steps.append(("left", queue.id))
        return leave(queue, index, place)

    monkeypatch.setattr(Queue, "seal", sealed)
    monkeypatch.setattr(Queue, "leave", left)
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=2 * MIB)):
        pass
    steps = [step for step, _ in groupby(steps)]
    assert len(steps) > 2 * 20
    assert steps[::2] == [("sealed", queue_id) for _, queue_id in steps[::2]]
    assert steps[1::2] == [("left", queue_id) for _, queue_id in steps[::2]]


async def test_what_fitted_while_the_log_was_open_stays_in_memory(directory: Path) -> None:
    """A segment that is larger than memory is replayed if what is retained of it always fits."""
    limits = Limits(memory_bytes=MEMORY)
    async with MultiRecordLog.open(directory, limits=limits, persist_policy=PersistPolicy.never()) as log:
        await log.create_queue("q")
        for position in range(0, 50_000, 500):
            await log.append_records("q", position, [RECORD] * 500)
            await log.truncate("q", max(position - 1, 0))
    async with MultiRecordLog.open(directory, limits=limits) as log:
        assert len(list(log.range("q"))) == 500
        assert log.resource_usage().segments == 1
    assert not list(directory.glob("*.runs"))


async def test_a_last_segment_a_little_larger_than_memory_stays_in_it(directory: Path) -> None:
    """Opened with lower limits than it was written with, `range` returns what is in its only segment."""
    written = await write(directory, 400 * MIB, 12 * MIB)
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=MIB)) as log:
        assert len(list(log.range("q"))) == written


@pytest.mark.parametrize("torn", [False, True])
async def test_a_last_segment_that_is_completed_keeps_how_the_log_ended(
    directory: Path, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed log is opened as a closed one, a torn tail is reported once, and appends continue."""
    monkeypatch.setattr(beyond_memory, "SLACK_BYTES_MAX", 0)
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        for position in range(0, 2_000, 100):
            await log.append_records("q", position, [RECORD] * 100)
    if torn:
        (directory / "CLOSED").unlink()
        path = damage.last_segment(directory)
        damage.zero(path, damage.batch_ends(path)[-1] - 20, 20)
    limits, stored = Limits(memory_bytes=64 << 10), 1_900 if torn else 2_000
    async with MultiRecordLog.open(directory, limits=limits) as log:
        report = log.recovery_report
        assert (report.last_end, report.clean) == (LastEnd.UNCLOSED if torn else LastEnd.CLOSED, not torn)
        assert (report.dropped_bytes > 100 * 1_024) == torn
        assert log.memory_first("q") == stored
        assert await log.truncate("q", 1_799) == 1_800
        assert await log.append("q", b"more") == stored
        assert [record.position async for record in log.read("q")] == list(range(1_800, stored + 1))
    async with MultiRecordLog.open(directory) as log:
        assert log.recovery_report.clean
        assert [record.position for record in log.range("q")] == list(range(1_800, stored + 1))


async def test_a_full_disk_keeps_no_log_from_opening(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last segment cannot be completed, opening takes the memory that it needs."""
    monkeypatch.setattr(beyond_memory, "SLACK_BYTES_MAX", 0)
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        for position in range(0, 2_000, 100):
            await log.append_records("q", position, [RECORD] * 100)
    limits = Limits(memory_bytes=64 << 10)
    async with MultiRecordLog.open(directory, limits=limits, filesystem=FullFileSystem()) as log:
        assert log.recovery_report.last_end == LastEnd.CLOSED
        assert len(list(log.range("q"))) == 2_000


class FullFileSystem(OsFileSystem):
    """A file system without space."""

    def reserve(self, handle: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")
