"""A log with `beyond_memory="disk"`: what left memory is read again, and everything else is as before."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Literal

import pytest

from mrecordlog_async import (
    CorruptionError,
    Limits,
    LogClosedError,
    LogFailedError,
    LogFullError,
    MultiRecordLog,
    PersistPolicy,
    ReadOnlyLog,
    RecordsOnDiskError,
    RecordTooLargeError,
)
from mrecordlog_async.engine.spilling import spill
from mrecordlog_async.engine.spilling.disk_reads import DiskReads
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.memory.collected import CollectedRuns
from mrecordlog_async.memory.cutting import UNLIMITED
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.spilling import collect
from mrecordlog_async.model import TICK_NS, Record, time_of_tick
from mrecordlog_async.options import GIB
from mrecordlog_async.recovery.gathered_reader import GatheredReader, WantedRuns
from mrecordlog_async.recovery.gathering import SegmentParts, unidentified
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.support.clock import Clock
from tests import damage
from tests.cached_files import FailingSyncs
from tests.clocks import opening

MIB = 1 << 20
LIMITS = Limits(memory_bytes=MIB, beyond_memory="disk")
PAYLOAD = random.Random(1).randbytes(2_000)


def payload(position: int) -> bytes:
    """Return the payload of the record at *position* of every queue here."""
    return position.to_bytes(4, "little") + PAYLOAD[position % 500 :]


async def fill(log: MultiRecordLog, queue: str = "q", records: int = 3_000) -> None:
    """Append several times what memory holds, and wait until older records have left it."""
    await log.create_queue(queue, exist_ok=True)
    start = log.next_position(queue)
    for at in range(start, start + records, 20):
        await log.append_records(queue, at, list(map(payload, range(at, at + 20))))
    while log.resource_usage().memory_bytes > MIB:
        await asyncio.sleep(0.01)


async def read_all(log: MultiRecordLog, queue: str = "q") -> list[Record]:
    """Read a queue from its first record on."""
    return [record async for record in log.read(queue)]


def records(start: int, stop: int) -> list[Record]:
    """Return what `fill` has stored."""
    return [Record(position, payload(position)) for position in range(start, stop)]


def gathered(directory: Path) -> list[Path]:
    """Return the gathered files of a log, oldest first."""
    return sorted(directory.glob("*.runs"))


@pytest.fixture
async def log(directory: Path) -> AsyncIterator[MultiRecordLog]:
    """A log of which most records are on the disk."""
    async with MultiRecordLog.open(directory, limits=LIMITS) as opened:
        await fill(opened)
        yield opened


class NoNewFiles(OsFileSystem):
    """A disk that has no space for files whose names contain `part`, while `refuses` is set."""

    part = ""
    refuses = False

    def create(self, path: str) -> int:
        if self.refuses and self.part in path:
            raise OSError(errno.ENOSPC, "no space")
        return super().create(path)


class BadReads(OsFileSystem):
    """A disk of which reads of segments fail while `fails` is set, and of gathered files while `gathered_fail` is."""

    fails = gathered_fail = False

    def read(self, handle: int, length: int, offset: int) -> bytes:
        if self.fails:
            raise OSError(errno.EIO, "bad sector")
        return super().read(handle, length, offset)

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        if self.gathered_fail:
            raise OSError(errno.EIO, "bad sector")
        return super().read_into(handle, buffer, offset)


async def test_no_append_is_refused_while_records_can_leave(directory: Path) -> None:
    """Callers are held up, not refused, however fast they are; memory stays near its limit."""
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        await log.create_queue("q")
        highest = 0
        for _ in range(40):
            await asyncio.gather(*(log.append("q", PAYLOAD) for _ in range(200)))
            highest = max(highest, log.resource_usage().memory_bytes)
        assert not any(log.stats().refused.values())
        assert highest < 2 * MIB
        assert len(await read_all(log)) == 8_000


@pytest.mark.parametrize("on_full", ["raise", "wait"])
async def test_a_large_append_is_not_refused_while_records_can_leave(
    directory: Path, on_full: Literal["raise", "wait"]
) -> None:
    """Where only the current segment has records in memory, the log continues in a new one, and they leave as well."""
    large = [bytes(40_000)] * 23  # of 1 MiB; before it, what a segment takes at most
    limits = Limits(memory_bytes=MIB, beyond_memory="disk", on_full=on_full)
    async with MultiRecordLog.open(directory, limits=limits) as log, asyncio.timeout(60):
        await log.create_queue("q")
        for round in range(3):
            for _ in range(8):
                await log.append_records("q", None, [bytes(1_000)] * 24)
            assert await log.append_records("q", None, large) == round * (192 + 23) + 214
        results = await asyncio.gather(*(log.append_records("q", None, large) for _ in range(4)))
        assert results == [644 + 23 * each for each in range(1, 5)]
        assert not any(log.stats().refused.values())
        assert log.resource_usage().memory_bytes <= MIB
        assert len(await read_all(log)) == 737


async def test_an_append_that_never_fits_is_said_to_be_too_large(log: MultiRecordLog) -> None:
    """It can be stored only if the limit is raised, whatever leaves memory: a truncate would not help."""
    for large in (10_000, 20_000):  # a record each: 40,000 records cost as much as their payloads
        with pytest.raises(RecordTooLargeError, match="memory_bytes"):
            await log.append_records("q", None, [bytes(100)] * large)
    log.inspection.check_memory(2 * MIB)  # nor is its body refused before it is read: that would say "truncate"


class NoNewSegments(NoNewFiles):
    """A disk that has no space for another segment while `refuses` is set."""

    part = ".tmp"


@pytest.mark.parametrize("on_full", ["raise", "wait"])
async def test_a_large_append_waits_for_the_disk_as_others_do(
    directory: Path, on_full: Literal["raise", "wait"]
) -> None:
    """Where the disk has no space for the new segment, it is refused, or waits; it is stored once there is some."""
    files = NoNewSegments()
    limits = Limits(memory_bytes=MIB, beyond_memory="disk", on_full=on_full)
    async with MultiRecordLog.open(directory, limits=limits, filesystem=files) as log, asyncio.timeout(60):
        await log.create_queue("q")
        await log.append_records("q", None, [bytes(1_000)] * 200)
        files.refuses = True
        await asyncio.to_thread(log._engine.opened.journal.space.spare.discard)
        call = asyncio.ensure_future(log.append_records("q", None, [bytes(40_000)] * 23))
        await asyncio.wait([call], timeout=1.5)
        assert call.done() is (on_full == "raise")
        if call.done():
            assert isinstance(call.exception(), LogFullError)
        files.refuses = False
        if on_full == "raise":
            await asyncio.sleep(1)  # the disk is asked once a second
            call = asyncio.ensure_future(log.append_records("q", None, [bytes(40_000)] * 23))
        assert await call == 222


async def test_a_log_closes_while_an_append_waits_for_a_new_segment(directory: Path) -> None:
    """Nothing hangs; the append was not stored."""
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        await log.create_queue("q")
        await log.append_records("q", None, [bytes(1_000)] * 200)
        call = asyncio.ensure_future(log.append_records("q", None, [bytes(40_000)] * 23))
        await asyncio.sleep(0)
    (result,) = await asyncio.gather(call, return_exceptions=True)
    assert isinstance(result, LogClosedError)
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        assert log.next_position("q") == 200


async def test_no_new_segment_is_waited_for_once_the_writer_has_ended(directory: Path) -> None:
    """Records may still be leaving memory when the log fails: closing waits for that."""
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        begun = log._engine.writer.begin_segment()
        assert await begun
    assert log._engine.writer.begin_segment().cancelled()


async def test_what_is_not_in_memory_is_refused_where_nothing_waits(log: MultiRecordLog) -> None:
    """`range` and `runs` raise, and say where memory begins; from there on they read."""
    first = log.memory_first("q")
    assert first > 1_000
    with pytest.raises(RecordsOnDiskError) as caught:
        log.range("q")
    assert (caught.value.position, caught.value.memory_first) == (0, first)
    with pytest.raises(RecordsOnDiskError):
        log.runs("q", 5, 10)
    assert list(log.range("q", first)) == records(first, 3_000)
    assert await read_all(log) == records(0, 3_000)
    batch = await log.fetch("q", 17, max_records=3)
    assert batch is not None
    assert list(batch) == records(17, 20)
    assert await log.fetch("q", 3_000) is None


async def test_truncates_count_and_free_what_is_on_the_disk(directory: Path, log: MultiRecordLog) -> None:
    """A truncate returns the number of records dropped, reads nothing, and gives back the disk and the descriptors."""
    files = len(gathered(directory))
    assert await read_all(log) == records(0, 3_000)
    assert await log.truncate("q", 99) == 100
    assert log.queue_summary("q").records == 2_900
    assert await log.truncate("q", 2_000) == 1_901
    await log.sync()
    while len(gathered(directory)) == files:
        await asyncio.sleep(0.01)
    assert await read_all(log) == records(2_001, 3_000)
    assert await log.truncate("q", 2_999) == 999
    while gathered(directory):
        await asyncio.sleep(0.01)
    assert not [link for link in descriptors() if ".runs" in link]
    assert log.queue_summary("q").bytes == 0


def descriptors() -> list[str]:
    """Return what this process has open."""
    found = []
    for handle in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{handle}"))
        except OSError:
            continue
    return found


async def test_counts_are_exact_where_positions_have_gaps(directory: Path) -> None:
    """The rest of a place that a truncate cuts is read before it is counted: at once, at openings, by readers."""
    rng, positions = random.Random(1), list[int]()
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        await log.create_queue("q")
        for _ in range(150):
            first = log.next_position("q") + rng.choice([0, 1, 1000])
            positions += range(first, first + 20)
            await log.append_records("q", first, list(map(payload, range(first, first + 20))))
        assert log.memory_first("q") > positions[1_500]
        calls = sorted(rng.sample(positions[:1_500], 6))
        dropped = await asyncio.gather(*(log.truncate("q", position) for position in calls))
        assert list(accumulate(dropped)) == [positions.index(position) + 1 for position in calls]
        left = positions[sum(dropped) :]
        expected = len(left), sum(len(payload(position)) for position in left)
        assert counted(log) == expected
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        assert counted(log) == expected
        reader = await asyncio.to_thread(ReadOnlyLog.open, directory, keep_records=False)
        assert counted(reader) == expected
        assert await log.truncate("q", left[20]) == 21
        assert await asyncio.to_thread(reader.refresh)
        assert counted(reader) == counted(log)
        await asyncio.to_thread(reader.close)


def counted(log: MultiRecordLog | ReadOnlyLog) -> tuple[int, int]:
    """Return the number of records that queue "q" says it has, and their bytes."""
    summary = log.queue_summary("q")
    return summary.records, summary.bytes


async def test_a_truncate_needs_no_disk_that_can_be_read(directory: Path) -> None:
    """A place with gaps that cannot be read counts in full, and is dropped as a whole."""
    files = BadReads()
    async with MultiRecordLog.open(directory, limits=LIMITS, filesystem=files) as log:
        await log.create_queue("q")
        for position in range(0, 6_000, 40):
            await log.append_records("q", position, list(map(payload, range(position, position + 20))))
        files.fails = files.gathered_fail = True
        assert await log.truncate("q", 1_005) < 506
        assert log.first_position("q") == 1_006
        files.fails = files.gathered_fail = False
        assert await log.truncate("q", 6_000) > 2_494
        assert counted(log) == (0, 0)


async def test_tasks_that_share_a_tail_share_its_records_on_the_disk(log: MultiRecordLog) -> None:
    """Reads of the disk overlap, and each record is handed out once."""
    tail = log.tail("q", 0)
    batches = await asyncio.gather(*(tail.batch(max_records=10, max_wait=0) for _ in range(3)))
    assert sorted(record for batch in batches if batch for record in batch) == records(0, 30)


async def test_consumers_go_back_to_the_first_record(log: MultiRecordLog) -> None:
    """A consumer begins on the disk, continues in memory, seeks back, and its lag counts what is on the disk."""
    async with log.consumer("q", "c", create=True) as consumer:
        found: list[Record] = []
        while len(found) < 3_000:
            batch = await consumer.batch(max_records=700)
            assert batch is not None
            found += batch
        assert found == records(0, 3_000)
        assert log.consumers("q")["c"].records == 3_000
        await consumer.acknowledge(found[999])
        assert log.consumers("q")["c"].records == 2_000
        await consumer.seek(1_000)
        assert [await anext(consumer) for _ in range(3)] == records(1_000, 1_003)


async def test_a_repeat_is_compared_with_the_disk(log: MultiRecordLog) -> None:
    """An append at positions on the disk is a repeat if its records are the same, and refused otherwise."""
    before = log.stats().commits
    assert await log.append_records("q", 10, list(map(payload, range(10, 50)))) is None
    same = [log.append_record("q", at, payload(at)) for at in range(0, 100, 7)]
    assert set(await asyncio.gather(*same)) == {None}
    with pytest.raises(Exception, match="already taken"):
        await log.append_record("q", 10, b"another")
    assert log.stats().commits == before


async def test_a_log_that_closes_finishes_its_repeats(directory: Path) -> None:
    """A call that waits for the disk when the log is closed has its result."""
    log = await MultiRecordLog.open(directory, limits=LIMITS)
    await fill(log)
    call = asyncio.ensure_future(log.append_record("q", 10, payload(10)))
    await asyncio.sleep(0)
    await log.close()
    assert await call is None


async def test_a_repeat_ends_with_a_log_that_fails_meanwhile(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that is being compared with the disk is refused like all others if the log has failed by then."""
    disk, load, reads, goes_on = FailingSyncs(), DiskReads.load, asyncio.Event(), asyncio.Event()

    async def load_later(self: DiskReads, *arguments: Any) -> Any:
        reads.set()
        await goes_on.wait()
        return await load(self, *arguments)

    log = await MultiRecordLog.open(directory, limits=LIMITS, filesystem=disk)
    await fill(log)
    monkeypatch.setattr(DiskReads, "load", load_later)
    repeat = asyncio.create_task(log.append_record("q", 0, payload(0)))
    await reads.wait()
    disk.failing = True
    with pytest.raises(LogFailedError):
        await log.append_record("q", None, b"x")
    goes_on.set()
    with pytest.raises(LogFailedError):
        await repeat
    await log.close()


async def test_opening_reads_the_indexes_alone(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records that were on the disk stay there: the segments are not read, unless all of them are to be."""
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        await fill(log)
        first = log.memory_first("q")
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        assert log.recovery_report.records < 1_500
        assert log.memory_first("q") >= first
        assert await read_all(log) == records(0, 3_000)
        await fill(log)
    async with MultiRecordLog.open(directory, limits=LIMITS, verify_all=True) as log:
        assert log.recovery_report.records == 6_000
        assert "do not fit into" not in caplog.text  # nothing is unusual about it
        assert log.resource_usage().memory_bytes < 2 * MIB
        assert await read_all(log) == records(0, 6_000)


@pytest.mark.parametrize("harm", ["missing", "cut", "foreign", "flipped head", "flipped place", "flipped index"])
async def test_a_gathered_file_that_is_not_right_is_made_again(directory: Path, harm: str) -> None:
    """Whatever happens to the files while the log is closed, every record is read."""
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        await fill(log)
    files = gathered(directory)
    for at, file in enumerate(files):
        size = file.stat().st_size
        if harm == "missing" and at % 2:
            file.unlink()
        elif harm == "cut":
            damage.cut(file, size // 2)
        elif harm == "foreign":
            shutil.copy(files[0], file) if at else None
        elif harm.startswith("flipped"):
            damage.flip_byte(file, {"head": 20, "place": 5_000, "index": size - 40}[harm.split()[1]])
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        assert await read_all(log) == records(0, 3_000)
        assert log.resource_usage().memory_bytes < 2 * MIB


async def test_damage_to_file_and_segment_is_an_error_for_the_reader_alone(
    log: MultiRecordLog, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader gets the error, the log goes on, and a truncate past the damage ends it."""
    file = gathered(directory)[0]
    damage.flip_byte(file, 5_000)
    segment = directory / file.name.removesuffix(".runs")
    damage.flip_byte(segment, 30_000)
    with pytest.raises(CorruptionError) as caught:
        await read_all(log)
    assert caught.value.segment == segment.name
    assert "made again" in caplog.text
    with pytest.raises(CorruptionError):
        await read_all(log)
    # Both readers are counted, the file that had to be made again and the line in the log once.
    assert log.stats().damaged == {"segment": 2, "gathered": 1}
    assert caplog.text.count("queue 'q': records from position 0 on cannot be read") == 1
    assert await log.append("q", b"more") == 3_000
    await log.truncate("q", 1_000)
    assert [record.position async for record in log.read("q")] == list(range(1_001, 3_001))


async def test_records_before_damage_are_read_before_the_error(log: MultiRecordLog, directory: Path) -> None:
    """However much is asked for at once: a consumer that goes past the damage has missed nothing before it."""
    file = gathered(directory)[2]
    damage.flip_byte(file, 5_000)
    damage.flip_byte(directory / file.name.removesuffix(".runs"), 30_000)
    batch = await log.fetch("q", max_records=3_000)
    assert batch is not None
    stop = batch.next_position
    assert stop > 100 and [*batch.records()] == records(0, stop)
    assert batch.times is not None
    with pytest.raises(CorruptionError):
        await log.fetch("q", stop)
    async with log.consumer("q", "c", create=True) as consumer:
        first = await consumer.batch(max_records=3_000)
        assert first is not None and first.next_position == stop
        with pytest.raises(CorruptionError):
            await consumer.batch(max_records=3_000)
    with pytest.raises(CorruptionError):  # without a limit, all of them or none
        await log.inspection.load("q", 0, 3_000, runs_max=UNLIMITED)


@pytest.mark.parametrize("for_good", [False, True])
async def test_a_segment_that_cannot_be_identified_leaves_memory_as_others_do(directory: Path, for_good: bool) -> None:
    """Its table is read to name its gathered file. If that fails, no record of it is lost, and none after it."""
    files = BadReads()
    async with MultiRecordLog.open(directory, limits=LIMITS, filesystem=files) as log:
        await fill(log, records=500)
        files.fails = True
        await fill(log, records=500)
        files.fails = for_good
        await fill(log)
        assert log.memory_first("q") > 2_000
        assert await read_all(log) == records(0, 4_000)
        files.fails = False
        for file in gathered(directory):
            await asyncio.to_thread(file.unlink)
        for segment in log._engine.disk_reads.reader.open_segments():
            log._engine.disk_reads.reader.close(segment)
        assert await read_all(log) == records(0, 4_000)
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        assert await read_all(log) == records(0, 4_000)


class NoGatheredFiles(NoNewFiles):
    """A disk that has no space for gathered files while `refuses` is set."""

    part, refuses = ".runs", True


async def test_a_gathered_file_without_space_refuses_no_append(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Records leave memory, and are read by a pass over their segment; their file is made once there is space."""
    files = NoGatheredFiles()
    async with MultiRecordLog.open(directory, limits=LIMITS, filesystem=files) as log:
        await fill(log)
        assert gathered(directory) == []
        assert "was not written" in caplog.text
        assert await read_all(log) == records(0, 3_000)
        assert gathered(directory) == []
        assert "no space" in caplog.text
        files.refuses = False
        log._engine.disk_reads.reader.failed.clear()  # it is tried again after ten seconds
        assert await read_all(log) == records(0, 3_000)
        assert gathered(directory) != []


async def test_gathered_files_are_given_up_before_an_append_is_refused(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest go first. Every record is read meanwhile, and later ones are gathered again."""
    limits = Limits(memory_bytes=MIB, disk_bytes=6 * MIB, beyond_memory="disk")
    seen = list[list[Path]]()
    async with MultiRecordLog.open(directory, limits=limits) as log:
        with pytest.raises(LogFullError):
            while True:
                await fill(log, records=100)
                seen.append(gathered(directory))
        stored = log.next_position("q")
        assert log.queue_summary("q").bytes > 4 * MIB  # without any gathered file; the rest is reserved
        most = max(seen, key=len)
        assert len(most) > 3
        for files in seen[seen.index(most) :]:
            assert files == most[: len(files)]
        assert caplog.text.count("the disk is full") >= len(most)
        assert await read_all(log) == records(0, stored)
        assert log.resource_usage().disk_bytes <= limits.disk_bytes
        assert not [link for link in descriptors() if ".runs" in link]
        await log.truncate("q", stored - 500)
        await fill(log, records=800)
        assert gathered(directory) != []
        assert await read_all(log) == records(stored - 499, stored + 800)


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
async def test_every_record_is_read_where_a_file_has_other_places_than_before(
    directory: Path, gaps: bool, is_refused: bool
) -> None:
    """Made again by a pass, it also has what was truncated before: its places begin elsewhere, and more are needed."""
    files, chance = NoGatheredFiles(), random.Random(8)
    files.refuses = False
    limits = Limits(memory_bytes=8 * MIB, beyond_memory="disk")  # so a segment has several places of a queue
    stored = list[Record]()
    async with MultiRecordLog.open(directory, limits=limits, filesystem=files) as log:
        await log.create_queue("q")
        while not stored or log.memory_first("q") < stored[len(stored) // 4].position:
            at = log.next_position("q") + gaps * chance.choice([0, 0, 300])
            added = [Record(each, payload(each)) for each in range(at, at + 20)]
            await log.append_records("q", at, [each.payload for each in added])
            stored += added
            if len(stored) == 200:
                await log.truncate("q", stored[130].position)
                del stored[:131]
            await asyncio.sleep(0)
        while log._engine.spill is not None and log._engine.spill._task is not None:
            await asyncio.sleep(0.01)
        for file in gathered(directory):
            await asyncio.to_thread(file.unlink)
        files.refuses = is_refused
        log._engine.disk_reads.reader.close_all()
        assert await read_all(log) == stored
        on_disk = [record for record in stored if record.position < log.memory_first("q")]
        for _ in range(20):
            start, stop = sorted(chance.sample(range(on_disk[-1].position), 2))
            loaded = await log.inspection.load("q", start, stop, runs_max=UNLIMITED)
            found = [record for run in loaded.held for record in run.records()]
            assert found == [record for record in stored if start <= record.position < stop]
        cut = on_disk[len(on_disk) // 3].position
        assert await log.truncate("q", cut) == len(on_disk) // 3 + 1
        assert log.queue_summary("q").records == len(stored) - len(on_disk) // 3 - 1
    assert bool(gathered(directory)) is not is_refused


class HeldReads(OsFileSystem):
    """A disk on which reads of gathered files wait until they may go on."""

    def __init__(self) -> None:
        self.go_on, self.begun = threading.Event(), threading.Event()
        self.go_on.set()

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        self.begun.set()
        self.go_on.wait()
        return super().read_into(handle, buffer, offset)


async def test_readers_of_the_disk_end_with_the_log(directory: Path) -> None:
    """Tails and consumers end as they do in memory, and reads raise LogClosedError: they know of no threads."""
    disk = HeldReads()
    log = await MultiRecordLog.open(directory, limits=LIMITS, filesystem=disk)
    await fill(log)

    async def read() -> list[Record]:
        return await read_all(log)

    async def fetch() -> object:
        return await log.fetch("q", max_records=UNLIMITED, max_bytes=UNLIMITED)

    async def tail() -> int:
        return len([record async for record in log.tail("q")])

    async def batches() -> int:
        return sum([len(batch) async for batch in log.tail("q").batches()])

    async def consume() -> int:
        async with log.consumer("q", "c") as consumer:
            return len([record async for record in consumer])

    disk.begun.clear()
    disk.go_on.clear()
    readers = [asyncio.ensure_future(reader()) for reader in (tail, batches, consume, read, fetch)]
    await asyncio.to_thread(disk.begun.wait)
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(log.close())
    while not log._engine.disk_reads._stopped:
        await asyncio.sleep(0)
    disk.go_on.set()
    await closing
    found = await asyncio.gather(*readers, return_exceptions=True)
    assert all(isinstance(count, int) for count in found[:3])
    assert [type(error) for error in found[3:]] == [LogClosedError] * 2


class HeldRenames(OsFileSystem):
    """A disk on which a gathered file gets its name once it may go on."""

    def __init__(self) -> None:
        self.go_on, self.begun = threading.Event(), threading.Event()
        self.go_on.set()

    def rename(self, old: str, new: str) -> None:
        if new.endswith(".runs"):
            self.begun.set()
            self.go_on.wait()
        super().rename(old, new)


async def test_a_file_that_is_made_of_a_segment_that_dies_meanwhile_is_removed(directory: Path) -> None:
    """Who removed the segment did not know of the file, which would keep its space until the next opening."""
    disk = HeldRenames()
    async with MultiRecordLog.open(directory, limits=LIMITS, filesystem=disk, recycle=False) as log:
        await fill(log)
        for file in gathered(directory):
            await asyncio.to_thread(file.unlink)
        segment = directory / "wal-00000000000000000000"
        disk.begun.clear()
        disk.go_on.clear()
        reading = asyncio.ensure_future(log.fetch("q"))
        await asyncio.to_thread(disk.begun.wait)
        await log.truncate("q", 2_999)
        while segment.exists():
            await asyncio.sleep(0.01)
        disk.go_on.set()
        assert await reading is None
        while (directory / f"{segment.name}.runs").exists():
            await asyncio.sleep(0.01)


class SmallReads(OsFileSystem):
    """A disk that refuses larger reads of gathered files than `most`, and opens no file while `has_no_handles`."""

    most = 1 << 30
    has_no_handles = False

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        if len(buffer) > self.most:
            raise OSError(errno.EIO, "bad sector")
        return super().read_into(handle, buffer, offset)

    def open(self, path: str, *, write: bool = True) -> int:
        if self.has_no_handles:
            raise OSError(errno.EMFILE, "too many open files")
        return super().open(path, write=write)


@pytest.mark.parametrize("most", [0, 32_768])
async def test_a_file_that_cannot_be_read_even_made_again_is_not_needed(directory: Path, most: int) -> None:
    """The segment is read instead, if the file cannot be opened, and if its places cannot be read."""
    files = SmallReads()
    async with MultiRecordLog.open(directory, limits=LIMITS, filesystem=files) as log:
        await fill(log)
        files.most = most
        assert await read_all(log) == records(0, 3_000)


async def test_a_read_without_descriptors_fails_once(directory: Path) -> None:
    """The next one is tried at once: nothing was read in vain."""
    files = SmallReads()
    async with MultiRecordLog.open(directory, limits=LIMITS, filesystem=files) as log:
        await fill(log)
        for file in gathered(directory):
            await asyncio.to_thread(file.unlink)
        files.has_no_handles = True
        with pytest.raises(OSError, match="too many"):
            await read_all(log)
        files.has_no_handles = False
        assert await read_all(log) == records(0, 3_000)


async def test_a_segment_that_was_not_identified_is_read_once_for_many_reads(
    log: MultiRecordLog, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next read uses the records that a pass over it has collected."""
    collected, collect_part = list[int](), SegmentParts._collect

    def collect_and_count(parts: SegmentParts, number: int) -> CollectedRuns:
        collected.append(number)
        return collect_part(parts, number)

    monkeypatch.setattr(SegmentParts, "_collect", collect_and_count)
    reader = GatheredReader(await asyncio.to_thread(LogDirectory.at, directory), may_write=lambda size: False)
    queue = log._engine.queues.get("q")
    assert queue is not None
    for first in range(3):
        wanted = WantedRuns(unidentified(0, 0, 0), queue.id, first, 20, MIB)
        (found,) = await asyncio.to_thread(reader.read_many, [wanted])
        assert [each for run in found.runs for each in run.records()] == records(first, 20)
    assert collected == [0]


async def test_all_that_is_wanted_is_read_whatever_the_limit_of_one_read(log: MultiRecordLog, directory: Path) -> None:
    """The limit is of the places where it was located; what is read now may be divided into other ones."""
    reader = GatheredReader(await asyncio.to_thread(LogDirectory.at, directory), may_write=lambda size: False)
    queue = log._engine.queues.get("q")
    assert queue is not None
    wanted = WantedRuns(unidentified(0, 0, 0), queue.id, 0, 100, bytes_max=1)
    (found,) = await asyncio.to_thread(reader.read_many, [wanted])
    assert [each for run in found.runs for each in run.records()] == records(0, 100)


class LastPart(OsFileSystem):
    """A file system of which only the last 4 % are free while `full` is true."""

    full = True

    def space_of(self, handle: int) -> tuple[int, int]:
        return 100 * GIB, (4 if self.full else 50) * GIB


async def test_the_last_space_of_a_file_system_is_kept_for_segments(directory: Path) -> None:
    """Below a twentieth no gathered file is written; above it they are again. Records are read all the same."""
    files = LastPart()
    async with MultiRecordLog.open(directory, limits=LIMITS, filesystem=files) as log:
        await fill(log)
        assert gathered(directory) == []
        assert await read_all(log) == records(0, 3_000)
        files.full = False
        await fill(log)
        assert gathered(directory) != []
        assert await read_all(log) == records(0, 6_000)


class BadPieces(OsFileSystem):
    """A disk on which the pieces of each gathered file cannot be read until the file is written again."""

    def __init__(self) -> None:
        self.paths, self.bad, self.failed = set[str](), set[int](), 0

    def open(self, path: str, *, write: bool = True) -> int:
        handle = super().open(path, write=write)
        self.bad.discard(handle)
        if path.endswith(".runs") and path not in self.paths:
            self.bad.add(handle)
        self.paths.add(path)
        return handle

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        if handle in self.bad and len(buffer) > 64 << 10:
            self.failed += 1
            raise OSError(errno.EIO, "bad sector")
        return super().read_into(handle, buffer, offset)


async def test_an_error_of_the_disk_makes_the_file_again(directory: Path) -> None:
    """A gathered file that cannot be read is only a copy."""
    disk = BadPieces()
    async with MultiRecordLog.open(directory, limits=LIMITS, filesystem=disk) as log:
        await fill(log)
        assert await read_all(log) == records(0, 3_000)
    assert disk.failed > 3


def counting(log: MultiRecordLog, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list to which each job that begins to read adds its bytes."""
    reads, begun = log._engine.disk_reads, list[int]()
    begin = reads._begin

    def count(group: Any) -> Any:
        begun.append(sum(part.bytes_max for _, part in group))
        return begin(group)

    monkeypatch.setattr(reads, "_begin", count)
    return begun


async def test_what_a_reader_wants_next_is_read_before(log: MultiRecordLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page finds its records read; what is on the disk after them is not read twice."""
    begun, inspection, position = counting(log, monkeypatch), log.inspection, 0
    found = list[Record]()
    while position < log.memory_first("q"):
        before = len(begun)
        loaded = await inspection.load("q", position, runs_max=10_000, bytes_max=MIB)
        assert not position or len(begun) - before <= 1  # only where the disk ends
        found += [record for run in loaded.held for record in run.records()]
        position = loaded.held[-1].next_position
        inspection.read_ahead("q", position, None, loaded.bytes)
    assert found == records(0, len(found))
    inspection.read_ahead("q", 0, None, 1_000)  # a small read may be anybody's
    assert not log._engine.disk_reads._next


async def test_what_is_read_before_does_not_grow(log: MultiRecordLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that ends inside of what was read at once reads only that again, however many pages it has."""
    begun, position = counting(log, monkeypatch), 0
    wanted = sum(len(payload(position)) for position in range(log.memory_first("q")))
    while position < log.memory_first("q"):
        batch = await log.fetch("q", position, max_bytes=600_000)
        assert batch is not None
        position = batch.next_position
    assert sum(begun) < 1.6 * wanted


async def test_what_is_read_before_is_bounded_and_dropped(log: MultiRecordLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that stop keep nothing, and those that come while there is no room read for themselves."""
    monkeypatch.setattr("mrecordlog_async.engine.spilling.disk_reads.NEXT_BYTES", 2 * MIB)
    monkeypatch.setattr("mrecordlog_async.engine.spilling.disk_reads.NEXT_SECONDS", 0)
    begun, inspection = counting(log, monkeypatch), log.inspection
    for position in range(10):
        inspection.read_ahead("q", position, None, MIB)
    assert MIB < sum(begun) < 2 * MIB
    await asyncio.sleep(0.01)
    assert not log._engine.disk_reads._next
    inspection.read_ahead("q", 0, None, MIB)
    await log.truncate("q", 100)
    assert await read_all(log) == records(101, 3_000)


async def test_a_log_that_refuses_keeps_what_does_not_fit_on_the_disk(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Opened with less memory than it has records, it warns, and is read with `read`; appends are refused."""
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        await fill(log)
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=MIB)) as log:
        assert "stay on the disk" in caplog.text
        assert log.resource_usage().memory_bytes < MIB + MIB // 8
        with pytest.raises(RecordsOnDiskError):
            log.range("q")
        assert await read_all(log) == records(0, 3_000)
        with pytest.raises(LogFullError):
            await log.append("q", bytes(MIB // 2))
    async with MultiRecordLog.open(directory) as log:
        assert list(log.range("q")) == records(0, 3_000)  # with enough memory all of them are there


async def test_a_file_of_a_state_that_the_log_lost_is_not_believed(directory: Path) -> None:
    """An older copy of the log is restored over a newer one, whose truncates it does not have: nothing is missing."""
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=100 * MIB), segment_bytes=MIB // 4) as log:
        await fill_slowly(log, 1_000)
    older = damage.copy(directory, directory.with_name("older"))
    limits = Limits(memory_bytes=4 * MIB, beyond_memory="disk")
    async with MultiRecordLog.open(directory, limits=limits, segment_bytes=MIB // 4) as log:
        await log.truncate("q", 50)
        await log.append_records("q", 1_000, list(map(payload, range(1_000, 1_600))))
        while len(gathered(directory)) < 4:
            await asyncio.sleep(0.01)
    kept = {file.name: file.read_bytes() for file in gathered(directory)}
    shutil.rmtree(directory)
    older.rename(directory)
    for name, content in kept.items():
        if (directory / name.removesuffix(".runs")).exists():
            (directory / name).write_bytes(content)
    async with MultiRecordLog.open(directory, limits=limits, segment_bytes=MIB // 4) as log:
        assert await read_all(log) == records(0, 1_000)


async def fill_slowly(log: MultiRecordLog, count: int) -> None:
    """Append what memory has room for."""
    await log.create_queue("q")
    for at in range(0, count, 20):
        await log.append_records("q", at, list(map(payload, range(at, at + 20))))


async def test_times_are_found_on_the_disk(directory: Path) -> None:
    """Readers and consumers from a time on begin at the first record that was stored then, wherever it is."""
    ticks = iter(range(17_000_000_000, 18_000_000_000))
    clock = Clock(lambda: next(ticks) * TICK_NS)
    async with opening(directory, clock, limits=LIMITS) as log:
        await fill(log)
        newest = log.time_of("q", 2_999)
        assert newest is not None
        # The positions at which a batch began: each has its own time.
        times = {position: await time_of(log, position) for position in (0, 20, 500, 1_000, 2_980)}
        for position, time in times.items():
            found = await log.fetch("q", time, max_records=1)
            assert found is not None
            assert found.first_position == position
            assert (await anext(log.tail("q", time))).position == position
            await log.create_consumer("q", f"c{position}", start=time)
            assert log.consumers("q")[f"c{position}"].position == position
            assert await log.seek_consumer("q", "c0", time) == position
        with pytest.raises(RecordsOnDiskError):
            log.time_of("q", 500)


async def test_parts_have_the_times_of_the_whole(directory: Path) -> None:
    """Whatever part of a queue is read from the disk, across places or within one, its times are those of the queue."""
    ticks = iter(range(17_000_000_000, 18_000_000_000))
    clock, chance = Clock(lambda: next(ticks) * TICK_NS), random.Random(5)
    limits = Limits(memory_bytes=8 * MIB, beyond_memory="disk")  # so a segment has several places of a queue
    async with opening(directory, clock, limits=limits) as log:
        await log.create_queue("q")
        for at in range(0, 6_000, 20):
            await log.append_records("q", at, list(map(payload, range(at, at + 20))))
        while (end := log.memory_first("q")) < 1_500:
            await asyncio.sleep(0.01)
        load = partial(log.inspection.load, "q", runs_max=UNLIMITED)
        whole = (await load(0, end)).times
        for _ in range(50):
            start, stop = sorted(chance.sample(range(end), 2))
            times = (await load(start, stop)).times
            assert list(times.positions) == sorted(set(times.positions))
            assert list(times.spans(start, stop)) == list(whole.spans(start, stop))


async def time_of(log: MultiRecordLog, position: int) -> datetime:
    """Return when the record at *position* was stored, wherever it is."""
    batch = await log.fetch("q", position, max_records=1)
    assert batch is not None and batch.first_position == position
    [time] = batch.times()
    assert time is not None
    return time


async def test_descriptors_and_disk_are_given_back(directory: Path) -> None:
    """After a hundred cycles of filling, reading and truncating, nothing of the old records is left."""
    async with MultiRecordLog.open(directory, limits=LIMITS, recycle=False) as log:
        await fill(log)
        before = -1
        for cycle in range(30):
            await fill(log, records=500)
            first = log.first_position("q")
            found = await log.fetch("q", first)
            assert found is not None
            await log.truncate("q", first + 499)
            if cycle == 10:
                before = len(descriptors())
        assert len(descriptors()) <= before + 4
        segments = {path.name for path in directory.glob("wal-*") if path.suffix == ""}
        assert {path.name.removesuffix(".runs") for path in gathered(directory)} <= segments
        assert len(log._engine.queues.pins.gathered) <= len(segments)


async def test_a_log_that_is_closed_while_a_segment_is_collected_opens_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No gathered file has a part of its segment: the log would be opened by its index, and lack the rest."""
    monkeypatch.setattr(spill, "WORK_SECONDS", 0)  # a queue in each step
    monkeypatch.setattr(spill, "REST_SECONDS", 0.01)
    names = [f"q{number}" for number in range(40)]
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        await log.create_queues(names)
        for at in range(0, 20, 2):
            await asyncio.gather(*(log.append_records(name, at, [payload(at), payload(at + 1)]) for name in names))
            if any(task.get_name() == "mrecordlog spill" for task in asyncio.all_tasks()):
                break
        stored = log.next_position("q0")
        assert gathered(directory) == []
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        for name in names:
            assert await read_all(log, name) == records(0, stored)


async def test_a_gathered_file_that_lacks_records_keeps_no_log_from_opening(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksums may be right: the segments are what counts."""

    def collect_half(queues: Queues, segment: int, found: CollectedRuns) -> Iterator[None]:
        return islice(collect(queues, segment, found), 5)

    names = [f"q{number}" for number in range(10)]
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        await log.create_queues(names)
        monkeypatch.setattr(spill, "collect", collect_half)
        for at in range(0, 60, 2):
            await asyncio.gather(*(log.append_records(name, at, [payload(at), payload(at + 1)]) for name in names))
        while not gathered(directory):
            await asyncio.sleep(0.01)
    monkeypatch.undo()
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        assert "gathered files are not used" in caplog.text
        for name in names:
            assert await read_all(log, name) == records(0, 60)


async def test_a_weak_policy_spills_as_well(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing about leaving memory depends on syncs."""
    caplog.set_level(logging.INFO)
    async with MultiRecordLog.open(directory, limits=LIMITS, persist_policy=PersistPolicy.never()) as log:
        await fill(log)
        assert await read_all(log) == records(0, 3_000)
    async with MultiRecordLog.open(directory, limits=LIMITS, persist_policy=PersistPolicy.never()) as log:
        assert await read_all(log) == records(0, 3_000)


async def test_a_time_is_found_where_the_clock_went_back_before_a_truncate(directory: Path) -> None:
    """The time that a place begins with is that of a truncated record: a reader begins with a newer record."""
    tick = 17_000_000_000
    ticks = [tick]
    async with opening(directory, Clock(wall_ns=lambda: ticks[-1] * TICK_NS), limits=LIMITS) as log:
        await log.create_queue("q")
        for since in (90, 90, -90, 60):
            ticks.append(tick + since)
            await log.append_records("q", None, [PAYLOAD] * 20)
        await fill(log)
        await log.truncate("q", 39)  # stored at 90; the next 20 at -90
        assert log.memory_first("q") > 60
        found = await log.inspection.position_at("q", time_of_tick(tick + 10))
        assert found == 60
        assert (await anext(log.read("q", time_of_tick(tick + 10)))).position == 60

        def read() -> int:
            with ReadOnlyLog.open(directory, keep_records=False) as reader:
                return next(reader.read("q", time_of_tick(tick + 10))).position

        await log.sync()
        assert await asyncio.to_thread(read) == 60


async def test_no_more_records_wait_for_a_consumer_than_are_retained(directory: Path) -> None:
    """Consumers inside one place with gaps: only a read could count what is after each of them."""
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        await log.create_queue("q")
        while log.memory_first("q") == log.first_position("q"):
            at = log.next_position("q") + 1
            await log.append_records("q", at, [payload(each) for each in range(at, at + 20)])
        await log.create_consumer("q", "a", start=5)
        await log.create_consumer("q", "b", start=9)
        assert [one.records for one in log.consumers("q").values()] == [log.queue_summary("q").records] * 2


def test_a_loop_that_ends_without_a_close_leaves_no_gathered_file_open(directory: Path) -> None:
    """Its descriptors come back with the directory, before the log is opened again."""
    kept = list[MultiRecordLog]()

    async def leave_open() -> None:
        kept.append(await MultiRecordLog.open(directory, limits=LIMITS))
        await fill(kept[0])
        await read_all(kept[0])
        assert [link for link in descriptors() if ".runs" in link]

    async def open_again() -> None:
        async with MultiRecordLog.open(directory, limits=LIMITS) as log:
            assert not [link for link in descriptors() if ".runs" in link]
            assert await read_all(log) == records(0, 3_000)

    asyncio.run(leave_open())
    asyncio.run(open_again())


async def test_a_snapshot_has_no_gathered_files(log: MultiRecordLog, directory: Path) -> None:
    """They are derived: the copy makes them again when it needs them. A copy of all files is opened by its indexes."""
    copies = directory.with_name("snapshot"), directory.with_name("copy")
    await asyncio.to_thread(snapshot, directory, copies[0])
    await asyncio.to_thread(shutil.copytree, directory, copies[1])
    assert gathered(directory)
    assert not gathered(copies[0])
    for copy, replayed in zip(copies, (True, False), strict=True):
        async with MultiRecordLog.open(copy, limits=LIMITS) as opened:
            assert await read_all(opened) == records(0, 3_000)
            assert (opened.recovery_report.records == 3_000) is replayed
