"""The rows that keep one log open: appends, reading, creating queues. `ROWS` is the table of all rows."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from mrecordlog_async.bench.drive import Append, drive, payloads
from tests.benchmarks.compare.contenders import Contender
from tests.benchmarks.compare.figures import Figures
from tests.benchmarks.log_api import LogApi

QUEUE = "bench"
BATCH_RECORDS = 1_000
AT_ONCE = 1_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """What a running row is given.

    Attributes:
        directory: its own empty directory.
        at_most: a bound on the records or queues that a row prepares, for tests.
    """

    contender: Contender
    directory: str
    runner: asyncio.Runner
    at_most: int

    def path(self, name: str) -> str:
        """Return the path of *name* in the directory."""
        return os.path.join(self.directory, name)


class Running(Protocol):
    """A row in a contestant's process."""

    def prepare(self) -> None:
        """Do what is not measured, once."""

    def round(self, seconds: float) -> Figures:
        """Measure once; *seconds* is the length of rows that do not set their length."""

    def finish(self) -> None:
        """Close, and raise unless all acknowledged records can be read from the files."""


class Appends:
    """Callers that append, wait and append again."""

    def __init__(
        self, place: Place, *, callers: int, size: int = 100, records: int = 1, queues: int = 1, truncate: bool = False
    ) -> None:
        self._place = place
        self._texts = payloads(callers * records, size)
        self._records = records
        self._queues = [QUEUE] if queues == 1 else [f"queue-{n:06d}" for n in range(min(queues, place.at_most))]
        self._truncate = truncate
        self._stored: Counter[bytes] = Counter()
        self._last = -1
        self._log: LogApi

    def prepare(self) -> None:
        """Open the log and create the queues."""
        self._place.runner.run(self._prepare())

    def round(self, seconds: float) -> Figures:
        """Run the callers."""
        return self._place.runner.run(self._round(seconds))

    def finish(self) -> None:
        """See `Running`."""
        reading = self._place.contender.close_and_read(self._log, self._place.path("log"), self._queues)
        found, stored = self._place.runner.run(_wait(reading)), +self._stored
        if found != stored:
            raise AssertionError(f"{stored.total()} records were acknowledged, {found.total()} are in the files")

    async def _prepare(self) -> None:
        self._log = await self._place.contender.open(self._place.path("log"))
        await asyncio.gather(*map(self._log.create_queue, self._queues))

    async def _round(self, seconds: float) -> Figures:
        if self._last >= 0:
            # Before the round, not after it: what the last round stored is left for reading back.
            await self._log.truncate(QUEUE, self._last)
            self._stored.clear()
        written = self._place.contender.written
        marks = []
        found = await drive(
            self._calls(),
            seconds,
            lambda: marks.append(written(self._log)),
            lambda: marks.append(written(self._log)),
        )
        for index, calls in enumerate(found.acknowledged):
            for payload in self._part(index):
                self._stored[payload] += calls
        return Figures(
            records=found.calls * self._records,
            seconds=found.seconds,
            cpu_seconds=found.cpu_seconds,
            latencies=found.latencies,
            commits=marks[1].commits - marks[0].commits,
            written_bytes=marks[1].bytes - marks[0].bytes,
        )

    def _part(self, index: int) -> Sequence[bytes]:
        return self._texts[index * self._records : (index + 1) * self._records]

    def _calls(self) -> list[Append]:
        parts = map(self._part, range(len(self._texts) // self._records))
        if self._truncate:
            return [partial(self._append_noting, part) for part in parts]
        if self._records > 1:
            return [partial(self._log.append_records, QUEUE, None, part) for part in parts]
        if len(self._queues) == 1:
            return [partial(self._log.append_record, QUEUE, None, part[0]) for part in parts]
        in_turn = itertools.cycle(self._queues).__next__
        append = self._log.append_record
        return [partial(_append_to_next, append, in_turn, part[0]) for part in parts]

    async def _append_noting(self, part: Sequence[bytes]) -> None:
        """Append large payloads, and note the last position for the truncation before the next round."""
        if len(part) == 1:
            position = await self._log.append_record(QUEUE, None, part[0])
        else:
            position = await self._log.append_records(QUEUE, None, part)
        # Stores without positions forget everything, whatever the position.
        self._last = max(self._last, position if isinstance(position, int) else 0)


class Range:
    """Reading a queue record by record."""

    def __init__(self, place: Place, *, records: int, size: int) -> None:
        self._place = place
        self._records = min(records, place.at_most)
        self._size = size
        self._log: LogApi

    def prepare(self) -> None:
        """Fill the queue."""
        self._place.runner.run(self._prepare())

    def round(self, seconds: float) -> Figures:
        """Read the whole queue once."""
        # on the loop, as a program does it
        return self._place.runner.run(self._round())

    def finish(self) -> None:
        """Close."""
        self._place.runner.run(_wait(self._place.contender.close(self._log)))

    async def _prepare(self) -> None:
        self._log = await self._place.contender.open(self._place.path("log"))
        await fill(self._log, self._records, self._size)

    async def _round(self) -> Figures:
        seen, cpu, begun = 0, time.process_time(), time.perf_counter()
        for _position, _payload in self._log.range(QUEUE):
            seen += 1
        taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
        if seen != self._records:
            raise AssertionError(f"{self._records} records were appended, range returned {seen}")
        return Figures(records=seen, seconds=taken, cpu_seconds=cpu)


class CreateQueues:
    """Creating many queues at once, each round in a new log: *together*, by one call, or with a call for each."""

    def __init__(self, place: Place, *, queues: int, together: bool = False) -> None:
        self._place, self._together = place, together
        self._names = [f"queue-{number:06d}" for number in range(min(queues, place.at_most))]

    def prepare(self) -> None:
        """Prepare nothing."""

    def round(self, seconds: float) -> Figures:
        """Open a log, create the queues, close it."""
        return self._place.runner.run(self._round())

    def finish(self) -> None:
        """See `Running`; every round closes its own log."""

    async def _round(self) -> Figures:
        directory = self._place.path("log")
        log = await self._place.contender.open(directory)
        cpu, begun = time.process_time(), time.perf_counter()
        if self._together and hasattr(log, "create_queues"):  # 0.2.0 has a call for each only
            await log.create_queues(self._names)
        else:
            await asyncio.gather(*map(log.create_queue, self._names))
        taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
        written = self._place.contender.written(log)
        await self._place.contender.close(log)
        shutil.rmtree(directory)
        return Figures(
            records=len(self._names),
            seconds=taken,
            cpu_seconds=cpu,
            commits=written.commits,
            written_bytes=written.bytes,
        )


async def fill(log: LogApi, records: int, size: int) -> None:
    """Create the queue and append *records* payloads of *size* in batches."""
    await log.create_queue(QUEUE)
    part = payloads(min(BATCH_RECORDS, records), size)
    for done in range(0, records, BATCH_RECORDS):
        await log.append_records(QUEUE, None, part[: records - done])


async def fill_in_turn(log: LogApi, records: int, queues: int) -> None:
    """Create *queues* and append single records of 100 B to each in turn, from a thousand callers."""
    names = [f"queue-{number:06d}" for number in range(queues)]
    await asyncio.gather(*map(log.create_queue, names))
    in_turn = itertools.cycle(names).__next__
    left = iter(range(records))

    async def caller(payload: bytes) -> None:
        for _ in left:
            await log.append_record(in_turn(), None, payload)

    await asyncio.gather(*map(caller, payloads(AT_ONCE, 100)))


def _append_to_next(
    append: Callable[..., Awaitable[object]], in_turn: Callable[[], str], payload: bytes
) -> Awaitable[object]:
    return append(in_turn(), None, payload)


async def _wait(awaitable: Awaitable[T]) -> T:
    return await awaitable
