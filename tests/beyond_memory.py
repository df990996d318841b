"""A log with little memory next to a model that has all of it: histories of all calls, and every read compared.

`python -m tests.beyond_memory DIRECTORY SECONDS [SEED]` runs them for as long as wanted, and `python -m
tests.beyond_memory DIRECTORY --cycles 1000` fills, reads and truncates a log so often: nothing may pile up.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mrecordlog_async import (
    CorruptionError,
    Limits,
    MultiRecordLog,
    PositionInPastError,
    ReadOnlyLog,
    RecordsOnDiskError,
)
from mrecordlog_async.model import Record

MIB = 1 << 20
LIMITS = Limits(memory_bytes=MIB, disk_bytes=1 << 30, beyond_memory="disk", on_full="wait")
BLOB = random.Random(0).randbytes(MIB)


@dataclass
class Expected:
    """A queue as it must be: its records, and the first position that is not truncated."""

    records: list[Record] = field(default_factory=list)
    next_position: int = 0

    def truncate(self, position: int) -> int:
        """Drop records up to *position*; return how many."""
        before = len(self.records)
        self.records = [record for record in self.records if record.position > position]
        self.next_position = max(self.next_position, position + 1)
        return before - len(self.records)


class History:
    """One run: calls chosen at random, and what they must have done."""

    def __init__(self, directory: Path, seed: int, *, gaps: bool = True) -> None:
        self.rng = random.Random(seed)
        self.directory = directory
        self.gaps = gaps
        self.model: dict[str, Expected] = {}
        self.log: MultiRecordLog
        self.on_disk = self.reads = self.created = self.reopened = 0

    async def open(self) -> None:
        """Open the log, or open it again."""
        self.log = await MultiRecordLog.open(self.directory, limits=LIMITS, segment_bytes=64 << 10)

    async def run(self, steps: int, go_on: Callable[[], bool] = lambda: True) -> None:
        """Take *steps* steps, and compare everything at the end."""
        await self.open()
        try:
            for _ in range(20):
                await self.create()
            for _ in range(steps):
                if not go_on():
                    break
                await self.step()
            for queue in list(self.model):
                await self.compare(queue)
        finally:
            await self.log.close()

    async def step(self) -> None:
        """Make a call, or several at a time."""
        queue, roll = self.rng.choice(list(self.model)), self.rng.random()
        if roll < 0.25:
            await self.append_run(queue)
        elif roll < 0.65:
            await self.append_singles()
        elif roll < 0.75:
            await self.truncate(queue)
        elif roll < 0.77:
            await self.log.delete_queue(queue)
            del self.model[queue]
            await self.create()
        elif roll < 0.85:
            await self.repeat(queue)
        elif roll < 0.9:
            await asyncio.gather(self.compare(queue), self.append_singles(), self.truncate(self.other(queue)))
        elif roll < 0.995:
            await self.compare(queue)
        else:
            await self.reopen()

    def other(self, queue: str) -> str:
        """Return another queue."""
        return self.rng.choice([each for each in self.model if each != queue])

    async def create(self) -> None:
        """Create a queue."""
        name = f"q{self.created}"
        self.created += 1
        await self.log.create_queue(name)
        self.model[name] = Expected()

    def payload(self, size: int) -> bytes:
        """Return some bytes."""
        start = self.rng.randrange(MIB - size)
        return BLOB[start : start + size]

    async def append_run(self, queue: str) -> None:
        """Append some records, maybe after a gap."""
        size, count = self.rng.choice([(0, 3), (10, 300), (100, 50), (1_000, 30), (20_000, 3), (90_000, 1)])
        payloads = [self.payload(size) for _ in range(count)]
        expected = self.model[queue]
        position = expected.next_position + (self.rng.choice([0, 0, 1, 1000]) if self.gaps else 0)
        assert await self.log.append_records(queue, position, payloads) == position + count - 1
        expected.records += [Record(position + at, payload) for at, payload in enumerate(payloads)]
        expected.next_position = position + count

    async def append_singles(self) -> None:
        """Append many single records to many queues at a time."""
        queues = [self.rng.choice(list(self.model)) for _ in range(100)]
        payloads = [self.payload(self.rng.choice([10, 100, 900])) for _ in queues]
        positions = await asyncio.gather(*map(self.log.append, queues, payloads))
        for queue, position, payload in zip(queues, positions, payloads, strict=True):
            if (expected := self.model.get(queue)) is not None:
                expected.records.append(Record(position, payload))
                expected.next_position = position + 1

    async def truncate(self, queue: str) -> None:
        """Truncate at some record, or past the end."""
        expected = self.model[queue]
        if not expected.records:
            return
        position = self.rng.choice(expected.records).position
        if self.rng.random() < 0.1:
            position = expected.next_position - 1
        dropped = expected.truncate(position)
        found = await self.log.truncate(queue, position)
        assert found == dropped

    async def repeat(self, queue: str) -> None:
        """Append a stored record again: nothing is stored; another record at its position is refused."""
        expected = self.model[queue]
        if not expected.records:
            return
        position, payload = self.rng.choice(expected.records)
        assert await self.log.append_record(queue, position, payload) is None
        try:
            await self.log.append_record(queue, position, payload + b"other")
        except PositionInPastError as error:
            assert not error.outcome_unknown
        else:
            raise AssertionError("another record was taken for a repeat")

    async def reopen(self) -> None:
        """Close the log and open it again."""
        await self.log.close()
        await self.open()
        self.reopened += 1

    async def compare(self, queue: str) -> None:
        """Read a queue in one of many ways, from somewhere on, and compare it with the model."""
        expected = self.model[queue]
        records = list(expected.records)
        first = self.rng.choice([0, 0, self.rng.randrange(expected.next_position + 1)])
        wanted = [record for record in records if record.position >= first]
        summary = self.log.queue_summary(queue)
        assert summary.records == len(records)
        assert summary.next_position == expected.next_position
        self.reads += 1
        self.on_disk += max(first, summary.first_position) < self.log.memory_first(queue)
        self.check_memory(queue, records)
        way = self.rng.randrange(7)
        if way == 0:
            found = [record async for record in self.log.read(queue, first)]
        elif way == 1:
            found = await self.fetch_all(queue, first)
        elif way == 2:
            found = await self.tail_records(queue, first, len(wanted))
        elif way == 3:
            found = await self.load_all(queue, first)
        elif way == 4:
            found = await self.read_located(queue, first)
        elif way == 5:
            found = await asyncio.to_thread(self.read_only, queue, first)
        else:
            found = await self.tail_batches(queue, first, len(wanted))
        assert found[: len(wanted)] == wanted, (queue, first, way, differences(found, wanted))

    def check_memory(self, queue: str, records: list[Record]) -> None:
        """What is in memory is read without waiting; what is not is refused."""
        first = self.log.memory_first(queue)
        assert list(self.log.range(queue, first)) == [record for record in records if record.position >= first]
        if first > self.log.first_position(queue):
            try:
                self.log.range(queue)
            except RecordsOnDiskError as error:
                assert error.memory_first == first
            else:
                raise AssertionError("records that are on the disk were not missed")

    async def fetch_all(self, queue: str, position: int) -> list[Record]:
        """Read with `fetch`, in pieces of any size."""
        found: list[Record] = []
        size = self.rng.choice([1, 5_000, MIB])
        while (batch := await self.log.fetch(queue, position, max_records=5_000, max_bytes=size)) is not None:
            assert batch.bytes <= size or len(batch) == 1
            found += batch
            position = batch.next_position
        return found

    async def load_all(self, queue: str, position: int) -> list[Record]:
        """Read as the service does, in pieces of any size; no time is missing, and none goes back."""
        found: list[Record] = []
        most, size = self.rng.choice([1, 7, 10_000]), self.rng.choice([1, 5_000, MIB])
        while (loaded := await self.log.inspection.load(queue, position, runs_max=most, bytes_max=size)).held:
            found += [record for run in loaded.held for record in run.records()]
            assert loaded.times.positions[0] <= loaded.held[0].first_position
            assert list(loaded.times.positions) == sorted(set(loaded.times.positions))
            position = loaded.held[-1].next_position
        return found

    async def read_located(self, queue: str, position: int) -> list[Record]:
        """Read as a fetch does, next to parts of other queues."""
        found: list[Record] = []
        end, size, inspection = self.log.next_position(queue), self.rng.choice([1, 100_000, MIB]), self.log.inspection
        while position < end:
            others = self.rng.sample(list(self.model), 3)
            bounds = [(other, self.log.first_position(other), self.log.next_position(other)) for other in others]
            wanted = [(queue, position, end), *bounds]
            located = [inspection.locate(*one, runs_max=250, bytes_max=size) for one in wanted]
            try:
                loaded = await inspection.read_located(located)
            except (CorruptionError, OSError):
                if not any(place.wanted and place.queue.first_position > place.wanted[0].start for place in located):
                    raise
                continue  # of others, some was truncated meanwhile, with its segments
            for (other, *_), place, part in zip(wanted, located, loaded, strict=True):
                records = [record for run in part.held for record in run.records()]
                if other == queue and place is located[0]:
                    found += records
                else:
                    # It may be truncated meanwhile, or its newest records may not be in the model yet.
                    expected = [each for each in self.model[other].records if each.position < place.next_position]
                    first = max([self.log.first_position(other), *(each.position for each in expected[:1])])
                    left = [each for each in records if each.position >= first]
                    assert left[: len(expected)] == [each for each in expected if each.position >= first]
            position = located[0].next_position
        return found

    def read_only(self, queue: str, position: int) -> list[Record]:
        """Read without the lock, in little memory."""
        with ReadOnlyLog.open(self.directory, memory_bytes=MIB) as log:
            return list(log.read(queue, position))

    async def tail_records(self, queue: str, position: int, count: int) -> list[Record]:
        """Read with a tail, record by record."""
        tail = self.log.tail(queue, position)
        return [await anext(tail) for _ in range(count)]

    async def tail_batches(self, queue: str, position: int, count: int) -> list[Record]:
        """Read with a tail, in batches."""
        tail, found = self.log.tail(queue, position), list[Record]()
        while len(found) < count:
            batch = await tail.batch(max_records=self.rng.choice([10, 1_000]), max_wait=0)
            assert batch is not None
            found += batch
        return found


def differences(found: list[Record], wanted: list[Record]) -> str:
    """Describe where two lists of records differ first."""
    at = next((at for at, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other), -1)
    near = slice(max(at - 1, 0), at + 3)
    positions = [[record.position for record in records[near]] for records in (found, wanted)]
    return f"{len(found)} instead of {len(wanted)} records; from record {at} on, positions {positions}"


async def cycles(directory: Path, count: int) -> None:
    """Fill a log, read it in any way and truncate it, *count* times: descriptors, memory and the disk come back."""
    async with MultiRecordLog.open(directory, limits=LIMITS, segment_bytes=64 << 10) as log:
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
        assert max(seen) <= (seen[0][0] + 1, seen[0][1])  # a segment may be about to be deleted


def main() -> None:
    """Run histories until the time is over."""
    if "--cycles" in sys.argv:
        asyncio.run(cycles(Path(sys.argv[1]), int(sys.argv[3])))
        return
    directory, seconds = Path(sys.argv[1]), float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        shutil.rmtree(directory, ignore_errors=True)
        history = History(directory, seed, gaps=bool(seed % 2))
        asyncio.run(history.run(3_000, lambda: time.monotonic() < until))
        print(
            f"seed {seed}: {history.reads} reads compared, {history.on_disk} began on the disk, "
            f"opened again {history.reopened} times",
            flush=True,
        )
        seed += 1


if __name__ == "__main__":
    main()
