"""A log that is read without keeping its records shows what one shows that keeps them, and writes nothing."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest

from mrecordlog_async import (
    CorruptionError,
    Limits,
    MultiRecordLog,
    PersistPolicy,
    QueueNotFoundError,
    ReadOnlyLog,
    Record,
    RecordsOnDiskError,
)
from mrecordlog_async.maintenance.verify import verify
from mrecordlog_async.model import TICK_NS, time_of_tick
from mrecordlog_async.options import MIB
from mrecordlog_async.recovery import positions, segment_reader
from mrecordlog_async.recovery.segment_files import LogReplacedError
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import segment_name
from mrecordlog_async.support.clock import Clock
from tests import damage
from tests.cli import running
from tests.clocks import opening
from tests.conftest import contents
from tests.readonly.overtaking import BLOCK, Interrupted, build

State = dict[str, tuple[int, int, list[tuple[int, bytes]]]]


def from_the_disk(directory: Path, filesystem: FileSystem | None = None) -> ReadOnlyLog:
    return ReadOnlyLog.open(directory, keep_records=False, filesystem=filesystem)


def shown(log: ReadOnlyLog) -> State:
    """Return what `contents` returns for a log in memory."""
    return {
        name: (first, stop, [(position, payload) for run in runs for position, payload in run.records()])
        for name, first, stop, runs in log.contents()
    }


def in_memory(directory: Path) -> State:
    with ReadOnlyLog.open(directory) as log:
        return contents(log)


async def change(log: MultiRecordLog, dice: random.Random) -> None:
    """Make one random call."""
    names = log.list_queues()
    if not names or dice.random() < 0.05:
        await log.create_queue(f"q{dice.randrange(10**9)}")
        return
    queue = dice.choice(names)
    next_position = log.next_position(queue)
    match dice.randrange(12):
        case 0:
            await log.truncate(queue, next_position + dice.randrange(3))
        case 1 | 2:
            await log.truncate(
                queue, dice.randint(log.first_position(queue), max(next_position - 1, log.first_position(queue)))
            )
        case 3 if len(names) > 2:
            await log.delete_queue(queue)
        case 4:
            await log.append_record(queue, next_position + dice.randrange(1, 9), b"after a gap")
        case 5:
            await log.append_records(queue, None, [bytes(dice.randrange(9_000)) for _ in range(20)])
        case _:
            await log.append_records(queue, None, [b"%d" % n for n in range(dice.randint(1, 9))])


@pytest.fixture(params=[None, 300])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of places and groups, and such small ones that every log has several."""
    if request.param is not None:
        monkeypatch.setattr(positions, "PLACE_BYTES", request.param)
        monkeypatch.setattr(positions, "UNDIGESTED_BYTES_MAX", request.param)
        monkeypatch.setattr(segment_reader, "GROUP_BYTES", 100 * request.param)


async def test_an_older_copy_in_the_place_of_the_log_is_not_read_for_it(directory: Path) -> None:
    """Records of equal size are at the same places there: reading them is refused until a refresh."""

    async def store(letter: str) -> None:
        async with MultiRecordLog.open(directory, queues=["q", "r"]) as log:
            for number in range(3):
                await log.append("q", b"%s%d" % (letter.encode() * 4, number))
                await log.append("r", b"small")

    async with MultiRecordLog.open(directory, queues=["q", "r"]):
        pass
    copy = Path(shutil.copytree(directory, directory.parent / "copy"))
    await store("A")
    stored = await asyncio.to_thread(from_the_disk, directory)
    before = await asyncio.to_thread(shown, stored)
    shutil.rmtree(directory)
    copy.rename(directory)
    await store("B")
    for read in (lambda: list(stored.read_runs("q")), lambda: shown(stored)):
        with pytest.raises(LogReplacedError, match="an older copy took the place"):
            await asyncio.to_thread(read)
    assert await asyncio.to_thread(stored.refresh)
    assert stored.went_back
    after = await asyncio.to_thread(shown, stored)
    assert after == await asyncio.to_thread(in_memory, directory)
    assert after != before


def test_an_empty_range_has_no_records(directory: Path) -> None:
    """A range whose end is before its beginning is empty, even where both are inside one run."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("q")
        await log.append_records("q", None, [b"x"] * 9)

    with from_the_disk(running.build(directory, fill)) as log:
        assert list(log.read_runs("q", 5, 3)) == []


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("seed", range(6))
def test_it_shows_what_a_log_in_memory_shows(directory: Path, seed: int) -> None:
    """Positions, records, sizes, times, ranges and the report are the same for any history, even after a refresh."""
    dice = random.Random(seed)
    moments = count(10**18, TICK_NS)  # no two batches have the same time

    async def make() -> ReadOnlyLog:
        async with MultiRecordLog.open(directory, segment_bytes=2 * BLOCK, persist_policy=PersistPolicy.never()) as log:
            for _ in range(150):
                await change(log, dice)
            await log.sync()
            followed = await asyncio.to_thread(from_the_disk, directory)
            await asyncio.to_thread(followed.summary)
            for _ in range(50):
                await change(log, dice)
            await log.sync()
        return followed

    with patch("mrecordlog_async.support.clock.SYSTEM", Clock(moments.__next__)):
        followed = asyncio.run(make())
    with ReadOnlyLog.open(directory) as expected, from_the_disk(directory) as found:
        followed.refresh()
        for stored in (found, followed):
            assert stored.summary() == expected.summary()
            assert shown(stored) == contents(expected)
        assert found.recovery_report.records == expected.recovery_report.records
        for queue in expected.list_queues():
            middle = (expected.first_position(queue) + expected.next_position(queue)) // 2
            for start, stop in ((None, middle), (middle, None), (middle, middle + 3), (0, 10**9)):
                records = [record for run in found.read_runs(queue, start, stop) for record in run.records()]
                assert records == list(expected.range(queue, start, stop))


def test_the_contents_of_no_queue_are_nothing(directory: Path) -> None:
    """An empty selection is not the default, which is all queues."""
    running.build(directory, running.three_queues)
    with from_the_disk(directory) as log:
        assert list(log.contents([])) == []
        assert [found.name for found in log.contents()] == log.list_queues()


def test_a_queue_that_does_not_exist_is_named(directory: Path) -> None:
    """The error is that of a log in memory."""
    running.build(directory, running.three_queues)
    with from_the_disk(directory) as log, pytest.raises(QueueNotFoundError):
        log.read_runs("absent")


@pytest.mark.parametrize("read", [shown, ReadOnlyLog.summary], ids=["records", "sizes"])
def test_what_a_writer_removes_meanwhile_is_truncated(
    tmp_path: Path, directory: Path, read: Callable[[ReadOnlyLog], object]
) -> None:
    """A segment that was removed since the log was opened is not an error: the records that remain are shown."""
    stages = asyncio.run(build(tmp_path, count=2, each=3, kept=6))
    directory.mkdir()
    stages.put(0, directory)
    files = Interrupted()
    with from_the_disk(directory, filesystem=files) as log:
        stages.put(1, directory)
        read(log)
        left = shown(log)
    before, after = stages.states[0]["q"][2], stages.states[1]["q"][2]
    assert left["idle"] == stages.states[0]["idle"]
    assert left["q"][1] == stages.states[0]["q"][1]
    assert left["q"][2] == [record for record in before if record[0] >= left["q"][2][0][0]]
    assert left["q"][2][-1] == before[-1]
    assert left["q"][2][0][0] <= after[0][0]


def test_damage_that_comes_later_is_damage(directory: Path) -> None:
    """Bytes that were intact when the log was opened and cannot be read now, in a file that exists, are an error."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("q")
        for _ in range(6):
            await log.append_record("q", None, bytes(30_000))

    running.build(directory, fill, blocks=2)
    segment = damage.segments(directory)[1]
    with from_the_disk(directory) as stored:
        damage.flip_byte(segment, BLOCK + 5_000)
        with pytest.raises(CorruptionError, match=segment_name(1)):
            list(stored.read_runs("q"))


def test_memory_does_not_grow_with_the_log(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of 48 MiB is listed, verified, and read to its end in 24 MiB, a large queue and many small ones alike."""
    monkeypatch.setattr(segment_reader, "GROUP_BYTES", 2 * MIB)

    async def fill(log: MultiRecordLog) -> None:
        names = [f"q{number}" for number in range(24)]
        for name in ("large", *names):
            await log.create_queue(name)
        for number in range(24):
            await log.append_records("large", None, [bytes(10_000)] * 100)
            await log.append_records(names[number], None, [bytes(1_000)] * 1_000)
        await log.truncate("large", 149)

    running.build(directory, fill, blocks=512)
    tracemalloc.start()
    try:
        with from_the_disk(directory) as stored:
            assert sum(summary.bytes for summary in stored.summary().values()) > 46_000_000
            assert sum(run.record_count for each in stored.contents() for run in each.runs) == 26_250
        assert verify(directory).ok
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * MIB


def payload(position: int) -> bytes:
    return position.to_bytes(4, "little") * 500


@pytest.mark.parametrize("gathered", ["there", "missing", "damaged"])
async def test_it_reads_everything_next_to_gathered_files(directory: Path, gathered: str) -> None:
    """Those of a writer whose log is larger than its memory are neither used nor changed: only segments count."""
    limits, found = Limits(memory_bytes=MIB, beyond_memory="disk"), list[MultiRecordLog]()
    clock = Clock(lambda: (17_000_000_000 + (found[0].next_position("q") if found else 0)) * TICK_NS)
    async with opening(directory, clock, limits=limits, segment_bytes=4 * BLOCK) as log:
        await log.create_queues(["q", "r"])
        found.append(log)
        for at in range(0, 2_000, 20):
            for queue in ("q", "r"):
                await log.append_records(queue, at, [payload(each) for each in range(at, at + 20)])
        while log.resource_usage().memory_bytes > MIB:
            await asyncio.sleep(0.01)
        for file in directory.glob("*.runs"):
            if gathered == "missing":
                file.unlink()
            elif gathered == "damaged":
                damage.flip_byte(file, file.stat().st_size // 2)
        await asyncio.to_thread(check_reads, directory)


def check_reads(directory: Path) -> None:
    """Read the log in all ways; the directory stays as it is."""
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    records = [Record(at, payload(at)) for at in range(2_000)]
    with from_the_disk(directory) as reader:
        assert reader.recovered.queues.memory_bytes < MIB // 2
        assert list(reader.read("q")) == list(reader.read("r")) == records
        assert list(reader.read("q", 1_234, 1_300)) == records[1_234:1_300]
        assert list(reader.read("q", 1_234, limit=5)) == records[1_234:1_239]
        for tick in range(0, 2_000, 170):
            since = next(reader.read("q", time_of_tick(17_000_000_000 + tick)))
            assert tick <= since.position < tick + 20
        for refused in (reader.range, reader.runs, reader.consumers):
            with pytest.raises(RecordsOnDiskError):
                refused("q")
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


async def test_a_follower_keeps_no_records_and_no_file(directory: Path) -> None:
    """What a writer appends between two looks is read from the disk, and what it truncates is not."""
    async with MultiRecordLog.open(directory, segment_bytes=4 * BLOCK, queues=["q"]) as log:
        reader = await asyncio.to_thread(from_the_disk, directory)
        handles = len(os.listdir("/proc/self/fd"))
        for stop in range(0, 3_000, 20):
            await log.append_records("q", stop, [payload(each) for each in range(stop, stop + 20)])
            if stop % 300 == 0:
                await log.truncate("q", stop - 100) if stop else None
                assert await asyncio.to_thread(reader.refresh)
                assert await asyncio.to_thread(list, reader.read("q")) == list(log.range("q"))
                assert reader.queue_summary("q") == log.queue_summary("q")
        assert reader.recovered.queues.memory_bytes < MIB // 2
        assert len(os.listdir("/proc/self/fd")) <= handles + 1  # the writer's next segment
        reader.close()


async def test_a_segment_whose_file_is_used_again_while_it_is_read_is_no_damage(directory: Path) -> None:
    """Its writer truncated its records, and its bytes are those of another segment: the later records are read."""
    async with MultiRecordLog.open(directory, segment_bytes=4 * BLOCK, queues=["q"]) as log:
        for at in range(0, 200, 20):
            await log.append_records("q", at, [payload(each) for each in range(at, at + 20)])
    first = directory / segment_name(0)
    whole = first.read_bytes()

    class Reused(OsFileSystem):
        turns = 0

        def read(self, handle: int, length: int, offset: int) -> bytes:
            if first.exists() and os.path.samestat(os.fstat(handle), first.stat()):
                self.turns -= 1
                if not self.turns:
                    damage.zero(first.rename(first.with_suffix(".tmp")), 0, 4 * BLOCK)
            return super().read(handle, length, offset)

    def check() -> None:
        files = Reused()
        with from_the_disk(directory, files) as reader:
            files.turns = 1
            left = list(reader.read("q"))
            damage.write_at(first.with_suffix(".tmp"), 0, whole)
        assert 0 < left[0].position < 100
        assert left == [Record(at, payload(at)) for at in range(left[0].position, 200)]

    await asyncio.to_thread(check)
