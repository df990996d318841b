"""Two logs get the same calls: one with little memory, one that holds everything. All that they return is compared.

The small one has tiny places, pieces and windows, other ones in each history; its gathered files are removed,
exchanged, damaged and refused; it is opened again with other limits; copies of it are opened in several ways, and a
follower reads it while it is written. A history is chosen by its seed.

`python -m tests.deep.beyond_memory --seconds 600 --seed 1` runs histories until the time is over and prints what each
did. What differs is printed with the seed, and the exit code is then 1. `--cycles 1000` fills, reads and truncates a
log this many times instead: nothing may pile up.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mrecordlog_async import (
    Limits,
    LogClosedError,
    MultiRecordLog,
    QueueNotFoundError,
    QueueOptions,
    ReadOnlyLog,
    RecordLogError,
    RecordsOnDiskError,
    RecordTruncatedError,
)
from mrecordlog_async.engine.spilling import disk_reads, spill
from mrecordlog_async.format import gathered
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.model import TICK_NS, Record, time_of_tick
from mrecordlog_async.recovery import gathered_reader
from mrecordlog_async.storage import gathered_pieces
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.support.clock import Clock
from tests.clocks import opening

KIB, MIB = 1 << 10, 1 << 20
BLOB = random.Random(0).randbytes(MIB)
END = 1 << 63
TICK = 17_000_000_000
OPTIONS = [
    QueueOptions(),
    QueueOptions(max_records=20_000),
    QueueOptions(max_bytes=2_000_000),
    QueueOptions(keep="until_acknowledged"),
]


@contextmanager
def tiny(chance: random.Random) -> Iterator[None]:
    """Make everything small that a read on the disk is divided by: a segment has many places of a queue then."""
    place = chance.choice([2_000, 10_000, 40_000, 256 * KIB])
    at_once = chance.choice([3, 8]) * place
    sizes: dict[Any, dict[str, Any]] = {
        gathered: {"PLACE_BYTES": place},
        gathered_pieces: {"PIECE_BYTES": chance.choice([8 * KIB, 32 * KIB, MIB])},
        gathered_reader: {
            "PASS_BYTES": chance.choice([16 * KIB, 64 * KIB, 64 * MIB]),
            "FILES_MAX": chance.choice([1, 2, 32]),
            "FAILED_SECONDS": chance.choice([0.0, 0.05]),
        },
        spill: {"WORK_SECONDS": chance.choice([0.0, 0.001]), "REST_SECONDS": chance.choice([0.0, 0.002])},
        disk_reads: {
            "BYTES_AT_ONCE": at_once,
            "JOB": disk_reads.LoadLimits(1_000, bytes=at_once - place),
            "LOADED_AT_ONCE": chance.choice([1, 4, 16]) * at_once,
            "JOBS_BYTES": chance.choice([1, 2, 16]) * at_once,
            "NEXT_BYTES": chance.choice([1, 2, 16]) * at_once,
            "AHEAD_BYTES": chance.choice([1, 2, 16]) * at_once,
            "NEXT_SECONDS": chance.choice([0.0, 0.01, 5.0]),
        },
    }
    with ExitStack() as stack:
        for room, names in sizes.items():
            stack.enter_context(patch.multiple(room, **names))
        yield


class RefusingDisk(OsFileSystem):
    """A disk that has no space for gathered files while `is_full` is set."""

    is_full = False

    def create(self, path: str) -> int:
        if self.is_full and ".runs" in path:
            raise OSError(errno.ENOSPC, "no space")
        return super().create(path)


@dataclass
class Stored:
    """Everything that was ever stored in a queue, by position."""

    payloads: dict[int, bytes] = field(default_factory=dict)

    def add(self, first: int, payloads: list[bytes]) -> None:
        """Note an append."""
        for position, payload in enumerate(payloads, first):
            assert self.payloads.setdefault(position, payload) == payload, f"position {position} was taken"


class History:
    """One run: calls chosen at random, made to both logs.

    small: the log beyond its memory. whole: the one in memory, which says what is right.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.directory, self.other, self.copy = (directory / name for name in ("small", "whole", "copy"))
        self.disk = RefusingDisk()
        self.now = TICK
        self.rests = self.rng.random() < 0.5  # after each step, until nothing is about to leave memory
        self.queues: dict[str, Stored] = {}
        self.readers: set[asyncio.Task[None]] = set()
        self.follower: ReadOnlyLog | None = None
        self.calls, self.failures = Counter[str](), list[BaseException]()
        self.on_disk = 0
        self.small: MultiRecordLog
        self.whole: MultiRecordLog

    async def run(self, steps: int, go_on: Callable[[], bool] = lambda: True) -> None:
        """Take *steps* steps, and compare everything at the end."""
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.failures.append(RuntimeError(context)))
        with tiny(self.rng):
            await self.open()
            try:
                for _ in range(8):
                    await self.create()
                for _ in range(steps):
                    if not go_on():
                        break
                    await self.step()
                await self.end_readers()
                self.check_sums()
                for queue in self.queues:
                    self.compare_state(queue)
                    found, wanted = [record async for record in self.small.read(queue)], self.expected(queue)
                    assert found == wanted, f"at the end, {queue}: {differences(found, wanted)}"
            finally:
                await self.end_readers()
                await self.close()
                if self.follower is not None:
                    await asyncio.to_thread(self.follower.close)

    async def step(self) -> None:
        """Make one call, or several at a time."""
        call = self.rng.choices(STEPS, WEIGHTS)[0]
        self.calls[call.__name__] += 1
        await call(self)
        while self.rests and (rest := self.small._engine.spill) is not None and rest._task is not None:
            await asyncio.sleep(0)
        if self.failures:
            raise self.failures[0]

    def check_sums(self) -> None:
        """Check that the counts of the log are the sums over its queues, and that records still leave memory."""
        engine = self.small._engine
        pins = engine.queues.pins
        assert engine.spill is not None and not engine.spill._stopped, "records leave memory no more"
        shares = [
            queue._share(index, place, queue.first_position, queue.memory_first)[1]
            for queue in engine.queues
            for index, place in queue.places(queue.first_position, queue.memory_first)
        ]
        assert sum(shares) == pins.disk_only_bytes, "bytes of records on the disk are counted wrongly"
        indexes = sum(index.memory_bytes for index in pins.gathered.values())
        assert indexes == pins.gathered_bytes, "bytes of indexes are counted wrongly"

    # Both logs.

    def limits(self) -> Limits:
        """Return limits beyond which most records are on the disk."""
        memory_bytes = self.rng.choice([256 * KIB, 256 * KIB, 512 * KIB])
        return Limits(memory_bytes=memory_bytes, disk_bytes=1 << 30, beyond_memory="disk", on_full="wait")

    async def open(self) -> None:
        """Open both logs, or open them again."""
        clock = Clock(lambda: self.now * TICK_NS)
        segment_bytes, limits = self.rng.choice([64 * KIB, 64 * KIB, 256 * KIB]), self.limits()
        self.small = await opening(
            self.directory,
            clock,
            limits=limits,
            segment_bytes=segment_bytes,
            filesystem=self.disk,
            retention=False,
        )
        self.whole = await opening(self.other, clock, limits=Limits(memory_bytes=1 << 30), retention=False)

    async def close(self) -> None:
        """Close both."""
        await self.small.close()
        await self.whole.close()

    async def reopen(self) -> None:
        """Close the logs and open them again, with other limits."""
        await self.end_readers()
        await self.close()
        await self.open()
        for queue in self.queues:
            self.compare_state(queue)

    async def both(self, call: Callable[[MultiRecordLog], Awaitable[Any]]) -> Any:
        """Make a call to both logs, and return what both return; None if both raise the same error."""
        self.now += self.rng.choice([0, 0, 0, 1, 3] if self.rng.random() > 0.02 else [-500, -20, 5_000])
        results: list[Any] = []
        for log in (self.small, self.whole):
            try:
                results.append(await call(log))
            except (RecordLogError, ValueError) as error:
                results.append(type(error))
        assert results[0] == results[1], f"results differ: {results}"
        return None if isinstance(results[0], type) else results[0]

    def pick(self) -> str:
        """Return a queue."""
        return self.rng.choice(list(self.queues))

    def bounds(self, queue: str) -> tuple[int, int]:
        """Return the first position of a queue and the next one."""
        return self.whole.first_position(queue), self.whole.next_position(queue)

    def retained(self, queue: str) -> list[int]:
        """Return the positions of its records."""
        return [record.position for record in self.whole.range(queue)]

    def expected(self, queue: str, start: int = 0, stop: int = END) -> list[Record]:
        """Return the records that must be read from a queue."""
        return list(self.whole.range(queue, start, stop))

    # Steps that change something.

    def payloads(self) -> list[bytes]:
        """Return payloads for one append."""
        size, count = self.rng.choice([(0, 5), (10, 300), (100, 50), (300, 200), (1_000, 30), (20_000, 3), (90_000, 1)])
        starts = [self.rng.randrange(MIB - size) for _ in range(self.rng.choice([1, count, count]))]
        return [BLOB[start : start + size] for start in starts]

    async def create(self) -> None:
        """Create a queue."""
        name, options = f"q{self.rng.randrange(30)}", self.rng.choice([None, *OPTIONS])
        if await self.both(lambda log: log.create_queue(name, options=options)) is not None:
            self.queues[name] = Stored()

    async def append_run(self) -> None:
        """Append some records, maybe after a gap."""
        queue, payloads = self.pick(), self.payloads()
        gap = self.rng.choice([0, 0, 0, 1, 1_000, 1 << 31, 1 << 40]) if self.rng.random() < 0.5 else 0
        position = self.rng.choice([None, self.bounds(queue)[1] + gap])
        last = await self.both(lambda log: log.append_records(queue, position, payloads))
        if last is not None:
            self.queues[queue].add(last - len(payloads) + 1, payloads)

    async def append_singles(self) -> None:
        """Append many single records to many queues at a time."""
        queues = [self.pick() for _ in range(self.rng.choice([1, 3, 30, 100]))]
        payloads = [BLOB[at : at + self.rng.choice([0, 10, 100, 1_000])] for at in range(len(queues))]

        async def append(log: MultiRecordLog) -> list[int | None]:
            found = await asyncio.gather(*map(log.append, queues, payloads), return_exceptions=True)
            return [each if isinstance(each, int) else None for each in found]

        for queue, payload, position in zip(queues, payloads, await self.both(append), strict=True):
            if position is not None:
                self.queues[queue].add(position, [payload])

    async def append_cancelled(self) -> None:
        """Cancel an append at some step: all of it is stored, or nothing."""
        queue, payloads = self.pick(), self.payloads()
        before = self.bounds(queue)[1]
        task = asyncio.create_task(self.small.append_records(queue, self.rng.choice([None, before]), payloads))
        for _ in range(self.rng.randrange(12)):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError, RecordLogError):
            await task
        await self.small.sync()
        if self.small.next_position(queue) != before:
            assert await self.whole.append_records(queue, before, payloads) == self.small.next_position(queue) - 1
            self.queues[queue].add(before, payloads)

    async def repeat(self) -> None:
        """Append stored records again: nothing is stored; other records at their positions are refused."""
        queue = self.pick()
        if not (stored := self.retained(queue)):
            return
        first = self.rng.choice(stored)
        run = [self.queues[queue].payloads[at] for at in takewhile(set(stored).__contains__, range(first, first + 50))]
        run = run[: self.rng.choice([1, 5, 50])]
        if self.rng.random() < 0.3:
            run[-1] += b"other"
        last = await self.both(lambda log: log.append_records(queue, first, run))
        if last is not None:
            self.queues[queue].add(last - len(run) + 1, run)

    async def truncate(self) -> None:
        """Truncate at some record, past the end, or where nothing is."""
        queue = self.pick()
        first, end = self.bounds(queue)
        stored = self.retained(queue) or [first]
        positions = [end - 1, end + 5, first, *(self.rng.choice(stored) for _ in range(12))]
        positions += [stored[len(stored) // 4]] * 4
        position = max(self.rng.choice(positions), 0)
        await self.both(lambda log: log.truncate(queue, position, past_consumers=True))

    async def delete(self) -> None:
        """Delete a queue, and maybe create it again at once."""
        queue = self.pick()
        await self.both(lambda log: log.delete_queue(queue, past_consumers=True))
        del self.queues[queue]
        if self.rng.random() < 0.6:
            await self.both(lambda log: log.create_queue(queue))
            self.queues[queue] = Stored()
        while len(self.queues) < 4:
            await self.create()

    async def seal_or_configure(self) -> None:
        """Seal a queue now and then; set options otherwise."""
        queue, options = self.pick(), self.rng.choice(OPTIONS)
        if self.rng.random() < 0.1:
            await self.both(lambda log: log.seal_queue(queue))
        else:
            await self.both(lambda log: log.configure_queue(queue, options))

    async def move_consumer(self) -> None:
        """Create, delete, seek or acknowledge a consumer."""
        queue, consumer = self.pick(), f"c{self.rng.randrange(3)}"
        first, end = self.bounds(queue)
        start: Any = self.rng.choice([first, end, self.rng.randint(first, end), self.a_time()])
        skip = self.rng.choice([0, 5, 200, 5_000])

        async def acknowledge(log: MultiRecordLog) -> Any:
            if consumer not in log.consumers(queue):
                return None
            held = await log.inspection.attach_consumer(queue, consumer)
            position = min(max(held.position, first) + skip, end - 1)
            if position < held.position:
                return None
            return await log.inspection.acknowledge(queue, consumer, position, queue_id=held.queue_id, epoch=held.epoch)

        await self.both(
            self.rng.choice(
                [
                    acknowledge,
                    lambda log: log.create_consumer(queue, consumer, start=start, exist_ok=True),
                    lambda log: log.seek_consumer(queue, consumer, start),
                    lambda log: log.delete_consumer(queue, consumer),
                ]
            )
        )

    async def harm_files(self) -> None:
        """Harm gathered files, which the log then has to look at again."""
        await asyncio.to_thread(self.harm)
        reader = self.small._engine.disk_reads.reader
        for segment in reader.open_segments():
            reader.close(segment)

    def harm(self) -> None:
        """Remove, exchange or damage gathered files, or have the disk refuse them from now on, or no more."""
        files, way, part = sorted(self.directory.glob("*.runs")), self.rng.randrange(5), self.directory.parent / "part"
        if way == 0 or not files:
            self.disk.is_full = not self.disk.is_full
            return
        with suppress(FileNotFoundError):  # the log removes its files, too
            file, source = self.rng.choice(files), self.rng.choice(files)
            content = bytearray((source if way == 2 else file).read_bytes())
            if way == 3:
                content[self.rng.randrange(len(content))] ^= 1
            part.write_bytes(content)
            for each in files if way == 1 else [file]:
                each.unlink()
            if way in (2, 3):
                part.rename(file)

    # Steps that compare.

    async def compare(self) -> None:
        """Compare what the logs say about one queue, and what is read of another one, in one of many ways."""
        self.compare_state(self.pick())
        queue = self.pick()
        first, end = self.bounds(queue)
        stored = self.retained(queue) or [first]
        near = self.rng.choice(stored) + self.rng.choice([-1, 0, 1])
        start = max(self.rng.choice([0, 0, first, end, near]), 0)
        stop = self.rng.choice([end, end, max(near, start), self.rng.choice(stored) + 1])
        self.on_disk += max(start, first) < self.small.memory_first(queue)
        way = self.rng.choice([self.read, self.fetch, self.load, self.tail, self.read_located])
        wanted = self.expected(queue, start, stop) if start < stop else []
        found = [record async for record in way(queue, start, stop)]
        assert found == wanted, f"{way.__name__} {queue} {start} {stop}: {differences(found, wanted)}"
        self.compare_memory(queue)
        await self.compare_times(queue)

    def compare_state(self, queue: str) -> None:
        """Compare numbers of a queue; bytes of a place that is cut are estimated."""
        small, whole = self.small.queue_summary(queue), self.whole.queue_summary(queue)
        for name in ("first_position", "next_position", "records", "began", "sealed"):
            assert getattr(small, name) == getattr(whole, name), f"{name}: {small} instead of {whole}"
        slack = 3 * gathered.PLACE_BYTES + 300_000
        assert whole.bytes <= small.bytes <= whole.bytes + slack, f"bytes: {small} instead of {whole}"
        assert self.small.queue_options(queue) == self.whole.queue_options(queue), queue
        consumers, others = self.small.consumers(queue), self.whole.consumers(queue)
        assert {name: one.position for name, one in consumers.items()} == {
            name: one.position for name, one in others.items()
        }
        for name, one in consumers.items():
            assert others[name].records <= one.records <= small.records, f"{one} instead of {others[name]}"

    def compare_memory(self, queue: str) -> None:
        """What is in memory is read without waiting; what is not is refused."""
        first = self.small.memory_first(queue)
        found, wanted = list(self.small.range(queue, first)), self.expected(queue, first)
        assert found == wanted, f"in memory, {queue} from {first}: {differences(found, wanted)}"
        if first > self.small.first_position(queue):
            try:
                self.small.range(queue)
            except RecordsOnDiskError as error:
                assert error.memory_first == first
            else:
                raise AssertionError("records that are on the disk were not missed")

    def a_time(self) -> Any:
        """Return a time at which something may have been stored."""
        return time_of_tick(self.now - self.rng.choice([-1, 0, 5, 50, 500, 5_000]))

    async def compare_times(self, queue: str) -> None:
        """Compare which position begins at a time: no record may be between the two that are found."""
        stored = self.retained(queue)
        for _ in range(3):
            moment = self.a_time()
            found, wanted = (
                await self.small.inspection.position_at(queue, moment),
                self.whole.position_at(queue, moment),
            )
            between = [at for at in stored if min(found, wanted) <= at < max(found, wanted)]
            assert not between, f"{queue} at {moment}: {found} instead of {wanted}"

    async def read(self, queue: str, start: int, stop: int) -> AsyncIterator[Record]:
        """Read with `read`."""
        async for record in self.small.read(queue, start, max(stop, start)):
            yield record

    async def fetch(self, queue: str, start: int, stop: int) -> AsyncIterator[Record]:
        """Read with `fetch`, in pieces of any size."""
        size, most = self.rng.choice([1, 5_000, MIB]), self.rng.choice([1, 7, 5_000])
        while start < stop and (batch := await self.small.fetch(queue, start, max_records=most, max_bytes=size)):
            assert batch.bytes <= size or len(batch) == 1
            for record in batch:
                if record.position < stop:
                    yield record
            start = batch.next_position

    async def load(self, queue: str, start: int, stop: int) -> AsyncIterator[Record]:
        """Read as the service does, in pieces of any size, with the times."""
        most, size, inspection = (
            self.rng.choice([1, 7, 10_000]),
            self.rng.choice([1, 5_000, MIB]),
            self.small.inspection,
        )
        while start < stop and (
            held := (loaded := await inspection.load(queue, start, stop, runs_max=most, bytes_max=size)).held
        ):
            positions = list(loaded.times.positions)
            assert positions == sorted(set(positions))
            times = self.whole.inspection.times(queue, held[0].first_position, held[-1].next_position)
            for number, record in enumerate(record for run in held for record in run.records()):
                if number % 7 == 0:
                    assert loaded.times.time_at(record.position) == times.time_at(record.position)
                yield record
            start = held[-1].next_position

    async def tail(self, queue: str, start: int, stop: int) -> AsyncIterator[Record]:
        """Read with a tail, in batches."""
        tail, left = self.small.tail(queue, start), len(self.expected(queue, start))
        while left > 0:
            batch = await tail.batch(max_records=self.rng.choice([10, 1_000]), max_wait=0)
            if batch is None:  # it is sealed, and was truncated meanwhile
                return
            left -= len(batch)
            for record in batch:
                if record.position < stop:
                    yield record

    async def read_located(self, queue: str, start: int, stop: int) -> AsyncIterator[Record]:
        """Read as a fetch does, next to parts of other queues."""
        size, inspection = self.rng.choice([1, 100_000, MIB]), self.small.inspection
        while start < min(stop, self.bounds(queue)[1]):
            wanted = [
                (queue, start, stop),
                *((other, *self.bounds(other)) for other in self.rng.sample(list(self.queues), 3)),
            ]
            located = [inspection.locate(*one, runs_max=250, bytes_max=size) for one in wanted]
            loaded = await inspection.read_located(located)
            for (name, first, end), place, part in zip(wanted, located, loaded, strict=True):
                records = [record for run in part.held for record in run.records() if first <= record.position < end]
                assert records == (self.expected(name, first, min(place.next_position, end)) if first < end else [])
                if place is located[0]:
                    for record in records:
                        yield record
            start = located[0].next_position

    # Readers that go on while other calls are made.

    async def begin_reader(self) -> None:
        """Begin to read a queue from some record on; or cancel readers if there are many."""
        if len(self.readers) > 5:
            for reader in list(self.readers)[::2]:
                reader.cancel()
            return
        reader = asyncio.create_task(self.go_on_reading(self.pick()))
        self.readers.add(reader)
        reader.add_done_callback(self.end_reader)

    def end_reader(self, reader: asyncio.Task[None]) -> None:
        """Note how a reader ended."""
        self.readers.discard(reader)
        if not reader.cancelled() and (error := reader.exception()) is not None:
            self.failures.append(error)

    async def end_readers(self) -> None:
        """Cancel all."""
        for reader in (readers := list(self.readers)):
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    async def go_on_reading(self, queue: str) -> None:
        """Read to the end: every record is found that is retained before and after, and no other payload."""
        log, stored, before = self.small, self.queues[queue], self.retained(queue)
        start = self.rng.choice(before or [0])
        way = self.rng.choice([self.read, self.fetch, self.tail])
        found: list[Record] = []
        with suppress(QueueNotFoundError, RecordTruncatedError, LogClosedError):
            found += [record async for record in way(queue, start, END)]
            if self.queues.get(queue) is stored and log is self.small:
                assert [record.position for record in found] == sorted({record.position for record in found})
                assert all(stored.payloads.get(at, payload) == payload for at, payload in found)
                first = max(start, self.small.first_position(queue), self.bounds(queue)[0])
                lost = {at for at in before if at >= first} - {record.position for record in found}
                assert not lost, (
                    f"{way.__name__} {queue} from {start}: {len(lost)} records were not read, from {min(lost)} on"
                )

    # Other readers of the files.

    async def open_copy(self) -> None:
        """Copy the open log, as a dead process leaves it, or as a snapshot; open the copy in one of many ways."""
        await self.small.sync()
        way = self.rng.randrange(3)
        await asyncio.to_thread(snapshot if way == 0 else copy_files, self.directory, self.copy)
        if way == 1:
            await asyncio.to_thread(self.read_copy, self.rng.random() < 0.5)
        else:
            limits = self.rng.choice([self.limits(), Limits(memory_bytes=1 << 30), Limits(memory_bytes=200 * KIB)])
            clock = Clock(lambda: self.now * TICK_NS)
            async with opening(self.copy, clock, limits=limits, segment_bytes=64 * KIB, retention=False) as log:
                for queue in self.queues:
                    found, wanted = [record async for record in log.read(queue)], self.expected(queue)
                    assert found == wanted, f"copy with {limits}, {queue}: {differences(found, wanted)}"
                    assert log.queue_summary(queue).records == len(wanted)
        await asyncio.to_thread(shutil.rmtree, self.copy)

    def read_copy(self, keep_records: bool) -> None:
        """Read the copy without writing anything."""
        with ReadOnlyLog.open(self.copy, keep_records=keep_records) as reader:
            for queue in self.queues:
                found, wanted = list(reader.read(queue)), self.expected(queue)
                assert found == wanted, f"copy, {keep_records=}, {queue}: {differences(found, wanted)}"

    async def follow(self) -> None:
        """Open a reader next to the log, or refresh and compare the one that is open."""
        if self.follower is None:
            self.follower = await asyncio.to_thread(ReadOnlyLog.open, self.directory, keep_records=False)
        elif self.rng.random() < 0.2:
            await asyncio.to_thread(self.follower.close)
            self.follower = None
        else:
            await self.small.sync()
            await asyncio.to_thread(self.compare_follower, self.follower)

    def compare_follower(self, follower: ReadOnlyLog) -> None:
        """Refresh a follower, and compare all of it."""
        follower.refresh()
        assert follower.list_queues() == sorted(self.queues)
        for queue in self.queues:
            summary, wanted = follower.queue_summary(queue), self.expected(queue)
            found = []
            for record in follower.read(queue):
                found.append(record)
                assert len(found) <= len(wanted), f"follower, {queue}: {differences(found, wanted)}"
            assert found == wanted, f"follower, {queue}: {differences(found, wanted)}"
            assert (summary.first_position, summary.next_position) == self.bounds(queue)
            assert summary.records == len(wanted), f"follower, {queue}: {summary} of {len(wanted)} records"
            moment = self.a_time()
            since = self.expected(queue, self.whole.position_at(queue, moment))
            assert next(follower.read(queue, moment), None) == next(iter(since), None), f"{queue} at {moment}"


TABLE: dict[Callable[[History], Awaitable[None]], int] = {
    History.append_run: 30,
    History.append_singles: 15,
    History.append_cancelled: 6,
    History.truncate: 12,
    History.delete: 2,
    History.create: 1,
    History.seal_or_configure: 3,
    History.move_consumer: 8,
    History.repeat: 6,
    History.compare: 25,
    History.begin_reader: 10,
    History.harm_files: 4,
    History.reopen: 1,
    History.open_copy: 1,
    History.follow: 10,
}
STEPS, WEIGHTS = list(TABLE), list(TABLE.values())


def differences(found: list[Record], wanted: list[Record]) -> str:
    """Describe where two lists of records differ first."""
    at = next((at for at, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other), -1)
    near = slice(max(at - 1, 0), at + 3)
    positions = [[record.position for record in records[near]] for records in (found, wanted)]
    return f"{len(found)} instead of {len(wanted)} records; from record {at} on, positions {positions}"


def copy_files(directory: Path, copy: Path) -> None:
    """Copy all files; again if one is removed meanwhile."""
    while True:
        try:
            shutil.copytree(directory, copy)
            return
        except shutil.Error:
            shutil.rmtree(copy)


async def cycles(directory: Path, count: int) -> None:
    """Fill a log, read it in any way and truncate it, *count* times: descriptors, memory and the disk come back."""
    limits = Limits(memory_bytes=MIB, disk_bytes=1 << 30, beyond_memory="disk", on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits, segment_bytes=64 << 10) as log:
        await log.create_queue("q")
        seen = list[tuple[int, int]]()
        for cycle in range(count):
            for _ in range(14):
                await log.append_records("q", None, [bytes(4_000)] * 25)
            first, end = log.first_position("q"), log.next_position("q")
            if cycle % 3 == 0:
                loaded = await log.inspection.load("q", first, end, runs_max=10_000)
                assert loaded.held[-1].next_position == end
            elif cycle % 3 == 1:
                await log.inspection.read_located([log.inspection.locate("q", first, end, runs_max=250, bytes_max=MIB)])
            else:
                await anext(log.tail("q"))
            await log.truncate("q", end - 1)
            if cycle % 15 == 14:
                await log.sync()
                while list(directory.glob("*.runs")):
                    await asyncio.sleep(0.01)
                usage = log.resource_usage()
                assert usage.disk_bytes < MIB
                seen.append((len(os.listdir("/proc/self/fd")), usage.memory_bytes))
        descriptors, memory = zip(*seen, strict=True)
    assert max(descriptors) <= descriptors[0] + 1  # a segment may be about to be deleted
    assert max(memory) <= memory[0]


STEPS_OF_HISTORY = 3_000


def main() -> int:
    """Run histories until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--directory", type=Path, help="where the logs are: a new temporary directory, if not given")
    parser.add_argument("--cycles", type=int, metavar="N", help="fill, read and truncate a log N times instead")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as found:
        directory = Path(found)
        if arguments.cycles:
            asyncio.run(cycles(directory / "cycles", arguments.cycles))
            return 0
        until, seed = time.monotonic() + arguments.seconds, arguments.seed
        while time.monotonic() < until:
            history = History(directory / str(seed), seed)
            (directory / str(seed)).mkdir()
            try:
                asyncio.run(history.run(STEPS_OF_HISTORY, lambda: time.monotonic() < until))
            except Exception:
                traceback.print_exc()
                print(f"seed {seed} fails after {sum(history.calls.values())} steps: {dict(history.calls)}")
                return 1
            shutil.rmtree(directory / str(seed))
            print(f"seed {seed}: {history.on_disk} reads began on the disk; {dict(history.calls)}", flush=True)
            seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
