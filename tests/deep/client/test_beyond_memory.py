"""Clients read what left the memory of a service as they read the rest, and know damage from everything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from time import monotonic

import pytest

from mrecordlog_async import CorruptionError, Limits, QueueOptions, Record
from mrecordlog_async.client import BlockingRecordLogClient, RecordLogClient
from tests import damage
from tests.served import Served, serving

MIB = 1 << 20
COUNT = 3_000


def payload(position: int) -> bytes:
    """Return a record of two kilobytes."""
    return b"%d:" % position + bytes(2_000)


EVERYTHING = [Record(position, payload(position)) for position in range(COUNT)]


@pytest.fixture
async def served(directory: Path) -> AsyncIterator[Served]:
    """Serve a log with 1 MiB of memory: two thirds of the queue `q` are on the disk alone; `r` has one record."""
    limits = Limits(memory_bytes=MIB, beyond_memory="disk")
    async with serving(directory, limits=limits) as found:
        await found.log.create_queue("q", options=QueueOptions(keep="until_acknowledged"))
        await found.log.create_consumer("q", "c")
        for at in range(0, COUNT, 20):
            await found.log.append_records("q", at, list(map(payload, range(at, at + 20))))
        await found.log.append("r", b"in memory", create=True)
        while found.log.resource_usage().memory_bytes > MIB:
            await asyncio.sleep(0.01)
        assert found.log.memory_first("q") > 2 * COUNT // 3
        yield found


async def first(records: AsyncIterator[Record]) -> list[Record]:
    """Return as many records as there are."""
    found = []
    async for record in records:
        found.append(record)
        if len(found) == COUNT:
            break
    return found


async def test_every_way_to_read_is_the_same(served: Served) -> None:
    """Ranges, tails, consumers and times of the client for asyncio."""
    async with RecordLogClient(served.url) as client:
        assert [record async for record in client.range("q")] == EVERYTHING
        assert [record async for record in client.range("q", 1_234, 1_240)] == EVERYTHING[1_234:1_240]
        async with aclosing(client.tail("q", 0)) as tail:
            assert await first(tail) == EVERYTHING
        stored = await client.time_of("q", 10)
        assert stored is not None
        at_that_time = [record.position async for record in client.range("q", stored)]
        assert at_that_time[0] <= 10
        async with client.consumer("q", "c") as consumer:
            assert await first(consumer) == EVERYTHING
            await consumer.acknowledge(COUNT - 1)
    assert served.log.resource_usage().disk_only_bytes == 0


async def test_every_way_to_read_in_threads_is_the_same(served: Served) -> None:
    """Ranges, tails and consumers of the blocking client."""

    def read() -> None:
        with BlockingRecordLogClient(served.url) as client:
            assert [*client.range("q")] == EVERYTHING
            assert [*islice(client.tail("q", 0), COUNT)] == EVERYTHING
            with client.consumer("q", "c") as consumer:
                assert [*islice(consumer, COUNT)] == EVERYTHING
                consumer.acknowledge(COUNT - 1)

    await asyncio.to_thread(read)
    assert served.log.resource_usage().disk_only_bytes == 0


async def test_a_repeat_of_an_append_that_is_on_the_disk_is_recognized(served: Served) -> None:
    """A producer that lost a response sends the same records at the same position again."""
    async with RecordLogClient(served.url) as client:
        assert await client.append_records("q", 100, list(map(payload, range(100, 120)))) is None
    assert served.log.next_position("q") == COUNT


async def test_damage_is_an_error_at_once_and_of_its_reader_alone(served: Served, directory: Path) -> None:
    """No client waits for it to pass. What does not need the damaged records is read, and a consumer can go past it."""
    file = min(directory.glob("*.runs"))
    damage.flip_byte(file, 5_000)
    damage.flip_byte(directory / file.name.removesuffix(".runs"), 30_000)
    begun = monotonic()

    def read() -> None:
        with BlockingRecordLogClient(served.url, retry_seconds=600) as blocking, pytest.raises(CorruptionError):
            _ = [*blocking.range("q")]

    await asyncio.to_thread(read)
    async with RecordLogClient(served.url, retry_seconds=600) as client:
        with pytest.raises(CorruptionError, match=r"^wal-"):
            _ = [record async for record in client.range("q")]
        async with aclosing(client.tail("q", 0)) as tail:
            with pytest.raises(CorruptionError, match=r"^wal-"):
                await tail.batch()
        assert [record async for record in client.range("q", COUNT - 900)] == EVERYTHING[-900:]
        assert [record.payload async for record in client.range("r")] == [b"in memory"]
        await client.append("q", b"more")
        async with client.consumer("q", "c") as consumer:
            with pytest.raises(CorruptionError, match=r"^wal-"):
                await consumer.batch()
            await consumer.seek(COUNT - 900)
            batch = await consumer.batch()
            assert batch is not None and batch.first_position == COUNT - 900
    assert monotonic() - begun < 300
