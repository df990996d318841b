"""A read-only log with `memory_bytes` keeps the newest records, reads the others from the disk, and writes nothing."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import Limits, MultiRecordLog, ReadOnlyLog, RecordsOnDiskError, readonly
from mrecordlog_async.format import gathered
from mrecordlog_async.model import TICK_NS, Record, time_of_tick
from mrecordlog_async.recovery import gathered_reader
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import segment_name
from mrecordlog_async.support.clock import Clock
from tests import damage
from tests.clocks import opening

MIB = 1 << 20
TICK = 17_000_000_000
LIMITS = Limits(memory_bytes=MIB, beyond_memory="disk")


def payload(position: int) -> bytes:
    """Return the payload of the record at *position*."""
    return position.to_bytes(4, "little") * 500


async def append(log: MultiRecordLog, queue: str, records: int) -> None:
    """Append records of 2,000 bytes."""
    for _ in range(0, records, 20):
        at = log.next_position(queue)
        await log.append_records(queue, at, [payload(each) for each in range(at, at + 20)])


def expected(start: int, stop: int) -> list[Record]:
    """Return what `append` has stored."""
    return [Record(position, payload(position)) for position in range(start, stop)]


@pytest.fixture
async def log(directory: Path) -> AsyncIterator[MultiRecordLog]:
    """A log of 6 MB in two queues, a tenth of a second for every record, of which 1 MiB is in memory."""
    found: list[MultiRecordLog] = []

    def now() -> int:
        return (TICK + (found[0].next_position("q") if found else 0)) * TICK_NS

    async with opening(directory, Clock(wall_ns=now), limits=LIMITS, segment_bytes=4 * 32_768) as opened:
        for queue in ("r", "q"):
            await opened.create_queue(queue)
        found.append(opened)
        await append(opened, "r", 1_000)
        await append(opened, "q", 2_000)
        while opened.resource_usage().memory_bytes > MIB:
            await asyncio.sleep(0.01)
        yield opened


def files(directory: Path) -> dict[str, int]:
    """Return the files of a log, and when each was changed last."""
    return {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}


@pytest.mark.parametrize("gathered", ["there", "missing", "damaged"])
async def test_it_reads_everything_in_little_memory(log: MultiRecordLog, directory: Path, gathered: str) -> None:
    """With the gathered files of the writer or without; the directory is left as it is."""
    for file in directory.glob("*.runs"):
        if gathered == "missing":
            file.unlink()
        elif gathered == "damaged":
            damage.flip_byte(file, file.stat().st_size // 2)
    await asyncio.to_thread(check_reads, directory)


def check_reads(directory: Path) -> None:
    """Read the log in all ways. Blocking, as everything here is."""
    before = files(directory)
    with ReadOnlyLog.open(directory, memory_bytes=MIB) as reader:
        assert reader.recovered.queues.memory_bytes < 2 * MIB
        assert list(reader.read("q")) == expected(0, 2_000)
        assert list(reader.read("r")) == expected(0, 1_000)
        assert list(reader.read("q", 1_234, 1_300)) == expected(1_234, 1_300)
        assert list(reader.read("q", 1_990)) == list(reader.range("q", 1_990)) == expected(1_990, 2_000)
        for tick in range(0, 2_000, 170):
            since = next(reader.read("q", time_of_tick(TICK + tick)))
            assert TICK + since.position - since.position % 20 >= TICK + tick
        with pytest.raises(RecordsOnDiskError):
            reader.range("q")
    assert files(directory) == before


async def test_the_writers_files_are_read_on_a_read_only_file_system(log: MultiRecordLog, directory: Path) -> None:
    """They are opened for writing where that is allowed, to pass the page cache; no segment is read instead of them."""

    class ReadOnly(OsFileSystem):
        def open(self, path: str, *, write: bool = True) -> int:
            if write:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
            return super().open(path, write=write)

    def check() -> None:
        with ReadOnlyLog.open(directory, memory_bytes=MIB, filesystem=ReadOnly()) as reader:
            assert list(reader.read("q")) == expected(0, 2_000)
            assert reader._gathered.has_files

    await asyncio.to_thread(check)


async def test_few_files_stay_open_however_many_segments_are_read(
    log: MultiRecordLog, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a reader nor an open log runs out of descriptors, which the next segment needs, too."""
    monkeypatch.setattr(gathered_reader, "FILES_MAX", 3, raising=False)
    assert len(list(directory.glob("*.runs"))) > 20

    def check() -> None:
        with ReadOnlyLog.open(directory, memory_bytes=1) as reader:
            before = len(os.listdir("/proc/self/fd"))
            assert list(reader.read("q")) == expected(0, 2_000)
            assert len(os.listdir("/proc/self/fd")) <= before + 3

    await asyncio.to_thread(check)
    before = len(os.listdir("/proc/self/fd"))
    assert [record async for record in log.read("q")] == expected(0, 2_000)
    assert len(os.listdir("/proc/self/fd")) <= before + 3


async def test_without_a_bound_it_keeps_everything(log: MultiRecordLog, directory: Path) -> None:
    """As before there were logs beyond memory: `range` reads it all, and so does `read`."""

    def check() -> None:
        with ReadOnlyLog.open(directory) as reader:
            assert list(reader.range("q")) == list(reader.read("q")) == expected(0, 2_000)

    await asyncio.to_thread(check)


async def test_a_follower_stays_within_its_memory(log: MultiRecordLog, directory: Path) -> None:
    """What a writer appends between two looks pushes older records out; what it truncates gives descriptors back."""
    handles = len(os.listdir("/proc/self/fd"))
    reader = await asyncio.to_thread(ReadOnlyLog.open, directory, memory_bytes=MIB)

    def check(start: int, stop: int) -> None:
        assert reader.refresh()
        assert reader.recovered.queues.memory_bytes < 2 * MIB
        assert list(reader.read("q")) == expected(start, stop)

    for stop in (3_000, 4_000, 5_000):
        await append(log, "q", 1_000)
        await asyncio.to_thread(check, 0, stop)
    await log.truncate("q", 4_989)
    await log.truncate("r", 999)
    await log.sync()
    await asyncio.to_thread(check, 4_990, 5_000)
    assert not reader._gathered.open_segments()
    reader.close()
    assert len(os.listdir("/proc/self/fd")) <= handles + 1  # the writer's next segment


async def test_the_writers_files_are_read_by_their_own_places(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the very state that was read may have other places: its writer joins runs, and truncates, meanwhile."""
    monkeypatch.setattr(gathered, "PLACE_BYTES", 5_000)
    async with MultiRecordLog.open(directory, limits=LIMITS, segment_bytes=4 * 32_768) as log:
        await log.create_queues(["a", "q", "z"])
        found = await asyncio.to_thread(ReadOnlyLog.open, directory, memory_bytes=1)
        while log.memory_first("q") < 200:
            for queue in ("a", "q", "z"):
                at = log.next_position(queue)
                await log.append_records(queue, at, [queue.encode() + payload(each) for each in range(at, at + 20)])
            while log._engine.spill is not None and log._engine.spill._task is not None:
                await asyncio.sleep(0.001)  # so a file is of the state of the first batch after its segment
        stored = log.next_position("q")
        monkeypatch.setattr(gathered, "PLACE_BYTES", 500_000)
        looks = count()

        def bounded(*arguments: Any) -> Any:
            assert next(looks) < 1_000, "the reader finds no end"
            return gathered_reader.wanted_runs(*arguments)

        monkeypatch.setattr(readonly, "wanted_runs", bounded)
        with found:
            await asyncio.to_thread(found.refresh)
            heads = {index.head for index in found.recovered.queues.pins.gathered.values()}
            assert heads & {index.head for index in log._engine.queues.pins.gathered.values()}
            for queue in ("a", "q", "z"):
                wanted = [Record(at, queue.encode() + payload(at)) for at in range(stored)]
                assert await asyncio.to_thread(list, found.read(queue)) == wanted


async def test_a_segment_that_is_removed_before_it_is_gathered_counts_for_nothing(directory: Path) -> None:
    """Its records leave memory before those of later segments, as ever: they are truncated further on in the log."""
    async with MultiRecordLog.open(directory, segment_bytes=4 * 32_768) as log:
        await log.create_queue("q")
        with await asyncio.to_thread(ReadOnlyLog.open, directory, memory_bytes=1) as reader:
            while log._engine.opened.journal.space.current == 0:
                await asyncio.to_thread(reader.refresh)
                await append(log, "q", 20)
            await append(log, "q", 200)
            await log.truncate("q", log.next_position("q") - 210)
            await log.sync()
            while (directory / segment_name(0)).exists():
                await asyncio.sleep(0.001)
            await asyncio.to_thread(reader.refresh)
            assert reader.queue_summary("q").records == log.queue_summary("q").records
            assert await asyncio.to_thread(list, reader.read("q")) == list(log.range("q"))


async def test_a_segment_whose_file_is_used_again_while_it_is_read_is_no_damage(
    log: MultiRecordLog, directory: Path
) -> None:
    """Its writer truncated its records, and its bytes are those of another segment: the caller is told to refresh."""
    for file in directory.glob("*.runs"):
        file.unlink()
    first = directory / segment_name(0)

    class Reused(OsFileSystem):
        turns = 0

        def read(self, handle: int, length: int, offset: int) -> bytes:
            if first.exists() and os.path.samestat(os.fstat(handle), first.stat()):
                self.turns -= 1
                if not self.turns:
                    damage.zero(first.rename(first.with_suffix(".tmp")), 0, 4 * 32_768)
            return super().read(handle, length, offset)

    def check() -> None:
        files = Reused()
        with ReadOnlyLog.open(directory, memory_bytes=MIB, filesystem=files) as reader:
            for turn in (1, 2, 3):
                files.turns = turn
                with pytest.raises(FileNotFoundError, match=first.name):
                    list(reader.read("r"))
                reader._gathered.failed.clear()
                damage.write_at(first.with_suffix(".tmp"), 0, whole)
                first.with_suffix(".tmp").rename(first)

    whole = first.read_bytes()
    await asyncio.to_thread(check)
