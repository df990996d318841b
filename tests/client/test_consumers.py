"""Consumers through the client: the class that the log has, over HTTP, with the same errors."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mrecordlog_async import (
    ConsumerBehindError,
    ConsumerExistsError,
    ConsumerFencedError,
    ConsumerNotFoundError,
    ConsumerOwnedError,
    MultiRecordLog,
    PositionAheadError,
    PositionTruncatedError,
    QueueNotFoundError,
    QueueOptions,
    QueueSealedError,
    RecordLog,
)
from mrecordlog_async.client import Consumer, RecordLogClient
from mrecordlog_async.engine.consumer import Consumer as ConsumerOfLog
from mrecordlog_async.service.options import ServiceOptions
from tests.served import Served, serving
from tests.serving import Process

KEEP = QueueOptions(keep="until_acknowledged")


def test_it_has_the_shape_of_the_consumer_of_the_log() -> None:
    """The same public methods and properties, with parameters of the same names."""
    for name, member in inspect.getmembers(ConsumerOfLog):
        if not name.startswith("_"):
            other = getattr(Consumer, name)
            if callable(member):
                assert inspect.signature(other).parameters.keys() == inspect.signature(member).parameters.keys(), name


async def test_batches_are_taken_acknowledged_and_go_on_after_a_restart(served: Served) -> None:
    """What is acknowledged is removed and does not come again; what is not comes again."""
    async with RecordLogClient(served.url) as client:
        await client.create_queue("orders", options=KEEP)
        await client.append_records("orders", None, [b"%d" % n for n in range(10)])
        async with client.consumer("orders", "billing") as c:
            first = await c.batch(max_records=4)
            assert first is not None
            assert first.payloads() == [b"0", b"1", b"2", b"3"]
            assert await c.acknowledge(first) == 4
            assert await c.acknowledge(0) == 4  # never back
            assert (await anext(c)).position == 4
            assert c.position == 5
        assert await client.first_position("orders") == 4
        async with client.consumer("orders", "billing") as c:
            rest = await c.batch(max_wait=0)
            assert rest is not None
            assert (rest.first_position, rest.last_position) == (4, 9)
            assert await c.seek(6) == 6
            assert (await anext(c)).position == 6
        summary = (await client.consumers("orders"))["billing"]
        assert (summary.position, summary.records) == (6, 4)
        assert served.log.consumers("orders")["billing"].epoch == summary.epoch


async def test_a_consumer_begins_at_a_time_and_seeks_one(served: Served) -> None:
    """As in the log; the service says which position a time is."""
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    async with RecordLogClient(served.url) as client:
        await client.append_records("q", None, [b"a", b"b"])
        async with client.consumer("q", "c", start=long_ago) as c:
            assert c.position == 0
            await c.acknowledge(1)
            assert await c.seek(long_ago) == 0
            assert (await anext(c)).payload == b"a"
        assert await client.create_consumer("q", "d", start=long_ago)
        assert await client.seek_consumer("q", "d", long_ago) == 0


async def test_a_cancelled_wait_loses_nothing(served: Served) -> None:
    """A timeout around a read is harmless."""
    async with RecordLogClient(served.url) as client, client.consumer("q", "c") as c:
        for number in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(c.batch(), 0.05)
            await client.append("q", b"%d" % number)
            batch = await c.batch(max_wait=0)
            assert batch is not None
            assert batch.payloads() == [b"%d" % number]


async def test_a_cancelled_seek_is_made_again(served: Served) -> None:
    """The request may have been carried out or not; what is handed out next is as before until the next seek."""
    async with RecordLogClient(served.url) as client, client.consumer("q", "c") as c:
        await client.append_records("q", None, [b"%d" % n for n in range(10)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(c.seek(7), 0)
        assert served.log.consumers("q")["c"].position in (0, 7) and c.position == 0
        assert await c.seek(7) == served.log.consumers("q")["c"].position == c.position == 7


async def test_a_consumer_ends_with_its_queue(served: Served) -> None:
    """After the last record of a sealed queue, or once the queue is deleted."""
    async with RecordLogClient(served.url) as client:
        await client.append("q", b"last")
        async with client.consumer("q", "c") as c:
            waiting = asyncio.create_task(_payloads(c))
            assert await client.seal_queue("q") == 1
            assert await waiting == [b"last"]
        tail = client.tail("q")
        assert [record.payload async for record in tail] == [b"last"]
        with pytest.raises(QueueSealedError):
            await client.append("q", b"more")
        await client.create_queue("other")
        async with client.consumer("other", "c") as c:
            waiting = asyncio.create_task(_payloads(c))
            await asyncio.sleep(0)
            await client.delete_queue("other")
            assert await waiting == []


@pytest.mark.parametrize("rule", ["", "q*"])
async def test_a_consumer_ends_with_its_queue_also_if_that_is_recreated(served: Served, rule: str) -> None:
    """Between two requests, and whether the new queue has a consumer of the name or not: nobody fenced this holder."""
    async with RecordLogClient(served.url) as client:
        if rule:
            await client.create_consumer(rule, "c")
        await client.append("q", b"old", create=True)
        async with client.consumer("q", "c") as c:
            assert await c.batch(max_wait=0) is not None
            await client.delete_queue("q", past_consumers=True)
            await client.append("q", b"new", create=True)
            (ended,) = await asyncio.gather(c.batch(max_wait=0), return_exceptions=True)
            assert ended is None
            with pytest.raises(QueueNotFoundError):
                await c.acknowledge(0)


async def _payloads(consumer: Consumer) -> list[bytes]:
    return [payload async for batch in consumer.batches() for payload in batch.payloads()]


async def test_a_second_holder_fences_the_first(served: Served) -> None:
    """Even while the first one waits for a record; with an owner nobody else attaches."""
    async with RecordLogClient(served.url) as client, client.consumer("q", "c") as old:
        waiting = asyncio.create_task(old.batch())
        await asyncio.sleep(0)
        async with client.consumer("q", "c", owner=(owner := uuid.uuid4())) as new:
            await client.append("q", b"a")
            with pytest.raises(ConsumerFencedError):
                await waiting
            with pytest.raises(ConsumerFencedError):
                await old.acknowledge(0)
            assert await new.acknowledge(await anext(new)) == 1
        with pytest.raises(ConsumerOwnedError):
            await client.consumer("q", "c").__aenter__()
        async with client.consumer("q", "c", owner=owner), client.consumer("q", "c", take_over=True):
            pass


async def test_errors_of_consumers_are_those_of_the_log(served: Served) -> None:
    """With their facts, so that handlers can decide without parsing text."""
    async with RecordLogClient(served.url) as client:
        assert await client.create_consumer("q", "c") is True
        assert await client.create_consumer("q", "c", exist_ok=True) is False
        with pytest.raises(ConsumerExistsError):
            await client.create_consumer("q", "c")
        with pytest.raises(ConsumerNotFoundError):
            await client.consumer("q", "other", create=False).__aenter__()
        await client.append_records("q", None, [b"a", b"b"])
        async with client.consumer("q", "c") as c:
            with pytest.raises(PositionAheadError) as ahead:
                await c.acknowledge(7)
            assert (ahead.value.position, ahead.value.next_position) == (7, 2)
            with pytest.raises(ConsumerBehindError):
                await client.truncate("q", 0)
            with pytest.raises(ConsumerBehindError):
                await client.delete_queue("q")
            assert await client.truncate("q", 0, past_consumers=True) == 1
            with pytest.raises(PositionTruncatedError):
                await c.seek(0)
            assert await client.seek_consumer("q", "c", 2) == 2
            with pytest.raises(ConsumerFencedError):
                await c.batch()
        await client.configure_queue("q", KEEP)
        assert await client.queue_options("q") == KEEP
        await client.delete_consumer("q", "c")
        assert await client.consumers("q") == {}
        await client.delete_queue("q", past_consumers=True)
        with pytest.raises(RuntimeError, match="not attached"):
            await c.batch()


async def test_code_for_a_record_log_works_with_both(served: Served) -> None:
    """A function that takes a `RecordLog` does the same in the process of the log and over HTTP."""

    async def work(log: RecordLog, queue: str) -> tuple[int, list[bytes], bool]:
        await log.create_queue(queue, options=KEEP)
        position = await log.append(queue, b"a")
        await log.append_records(queue, None, [b"b", b"c"])
        await log.create_consumer(queue, "c")
        async with log.consumer(queue, "c") as consumer:
            batch = await consumer.batch(max_records=2)
            assert batch is not None
            await consumer.acknowledge(batch)
        waiting = asyncio.ensure_future(log.wait_for(queue, 3))
        await asyncio.sleep(0)
        await log.append_record(queue, None, b"d")
        assert await waiting
        await log.seal_queue(queue)
        return position, [record.payload async for record in log.tail(queue)], await log.wait_for(queue, 4)

    async with RecordLogClient(served.url) as client:
        assert await work(client, "remote") == await work(served.log, "local") == (0, [b"c", b"d"], False)


async def test_a_consumer_survives_a_restart_of_the_service(directory: Path) -> None:
    """Its epoch is durable: it goes on without attaching again."""
    async with MultiRecordLog.open(directory, queues=["q"]) as log:
        await log.append_records("q", None, [b"a", b"b"])
    with Process(directory) as service:
        async with RecordLogClient(service.address) as client, client.consumer("q", "c") as c:
            assert await c.acknowledge(await anext(c)) == 1
            service.kill()
            waiting = asyncio.create_task(c.batch(max_wait=0))
            await asyncio.to_thread(service.start)
            batch = await waiting
            assert batch is not None
            assert batch.payloads() == [b"b"]
            assert await c.acknowledge(batch) == 2


@pytest.mark.parametrize("kind", ["consumer", "tail"])
async def test_a_reader_without_a_place_to_wait_reads_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A service admits a limited number of clients that wait: others ask now and then, and end with no error."""
    monkeypatch.setattr("mrecordlog_async.client.sender.POLL_SECONDS", 0.01)
    monkeypatch.setattr("mrecordlog_async.client.tail.PAUSE_SECONDS", 0.01)
    async with (
        serving(tmp_path, ServiceOptions(tails=1)) as served,
        RecordLogClient(served.url, retry_seconds=0.0) as client,
    ):
        await client.create_queue("taken")
        await client.create_queue("q")
        waiting = asyncio.create_task(anext(client.tail("taken")))
        while not served.service.tails:
            await asyncio.sleep(0.01)
        async with client.consumer("q", "worker") as consumer:
            reader = consumer if kind == "consumer" else client.tail("q")
            reading = asyncio.create_task(reader.batch())
            requests = served.service.requests
            while served.service.requests < requests + 6 and not reading.done():
                await asyncio.sleep(0.01)
            await client.append("q", b"a")
            batch = await reading
            assert batch is not None and batch.payloads() == [b"a"]
        waiting.cancel()
