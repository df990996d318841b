"""What the log refuses by itself, a client refuses with the same class and sentence, before it sends anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from mrecordlog_async import QueueNotFoundError, QueueOptions
from mrecordlog_async.client import BlockingRecordLogClient, RecordLogClient
from tests.served import Served

LogOrClient = Any
"""Both have the methods under test, with arguments that their types refuse."""

Call = Callable[[LogOrClient], Awaitable[object]]


async def _enter(consumer: Any) -> None:
    async with consumer:
        pass


async def _first(records: Any) -> None:
    if hasattr(records, "__anext__"):
        await anext(records, None)


CALLS: dict[str, Call] = {
    "append a text": lambda it: it.append("q", "a"),
    "append None": lambda it: it.append("q", None),
    "append a number, which is no number of zeros": lambda it: it.append("q", 5),
    "append_records of a number": lambda it: it.append_records("q", None, [b"a", 5]),
    "append_records of one payload": lambda it: it.append_records("q", None, b"abc"),
    "append_records without payloads": lambda it: it.append_records("q", [b"a"], None),
    "append at -1": lambda it: it.append("q", b"a", -1),
    "append at a text": lambda it: it.append("q", b"a", "1"),
    "append_record at 2**63": lambda it: it.append_record("q", 2**63, b"a"),
    "append_records at True": lambda it: it.append_records("q", True, [b"a"]),
    "append_records to a number": lambda it: it.append_records(5, None, [b"a", b"b"]),
    "append_records to what has no UTF-8": lambda it: it.append_records("\ud800", None, [b"a", b"b"]),
    "truncate to -1": lambda it: it.truncate("q", -1),
    "truncate to a float": lambda it: it.truncate("q", 1.0),
    "tail from -1": lambda it: _first(it.tail("q", -1)),
    "tail from a text": lambda it: _first(it.tail("q", "0")),
    "wait_for None": lambda it: it.wait_for("q", None),
    "create_consumer at -1": lambda it: it.create_consumer("q", "c", start=-1),
    "create_consumer at a text": lambda it: it.create_consumer("q", "c", start="first"),
    "consumer that starts at -1": lambda it: _enter(it.consumer("q", "c", start=-1)),
    "consumer of an owner without a UUID": lambda it: _enter(it.consumer("q", "c", owner="me")),
    "consumer of the owner of zeros": lambda it: _enter(it.consumer("q", "c", owner="0" * 32)),
    "consumer idle for -1": lambda it: _enter(it.consumer("q", "c", if_idle_for=-1)),
    "consumer idle for NaN": lambda it: _enter(it.consumer("q", "c", if_idle_for=float("nan"))),
    "consumer idle for ever": lambda it: _enter(it.consumer("q", "c", if_idle_for=float("inf"))),
    "consumer idle for a text": lambda it: _enter(it.consumer("q", "c", if_idle_for="10")),
    "seek_consumer to a float": lambda it: it.seek_consumer("q", "c", 0.5),
    "position_at a text": lambda it: it.position_at("q", "2026-11-22T09:30:00Z"),
    "range from a text": lambda it: _first(it.range("q", "0")),
    "range to a float": lambda it: _first(it.range("q", 0, 1.0)),
    "limit -1": lambda it: _first(it.range("q", limit=-1)),
    "limit 1.0": lambda it: _first(it.range("q", limit=1.0)),
    "limit True": lambda it: _first(it.runs("q", limit=True)),
    "time_of a text": lambda it: it.time_of("q", "1"),
    "wait_acknowledged for NaN": lambda it: it.wait_acknowledged("q", 0, "c", timeout=float("nan")),
    "wait_acknowledged for -1": lambda it: it.wait_acknowledged("q", 0, "c", timeout=-1),
    "wait_acknowledged for True": lambda it: it.wait_acknowledged("q", 0, "c", timeout=True),
    "wait_acknowledged for a text": lambda it: it.wait_acknowledged("q", 0, "c", timeout="1"),
    "create_queue with a dict": lambda it: it.create_queue("r", options={"max_records": 1}),
    "configure_queue with a dict": lambda it: it.configure_queue("q", {"max_records": 1}),
    "configure_queue with None": lambda it: it.configure_queue("q", None),
}


@pytest.fixture
async def client(served: Served) -> AsyncIterator[RecordLogClient]:
    async with RecordLogClient(served.url) as client:
        yield client


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_wrong_argument_is_refused_as_by_the_log(served: Served, client: RecordLogClient, call: Call) -> None:
    """The class is that of the log, so the same code handles it; nothing changes in the service."""
    with pytest.raises((TypeError, ValueError)) as by_log:
        await call(served.log)
    async with asyncio.timeout(60):
        with pytest.raises(by_log.type) as by_client:
            await call(client)
    assert str(by_client.value) == str(by_log.value)
    assert served.log.list_queues() == ["q"] and not served.log.consumers("q")
    assert served.log.queue_options("q") == QueueOptions() and served.log.next_position("q") == 0


@pytest.mark.parametrize("queue_id", [float("nan"), float("inf"), -1, 1.5, "1", 2**63, 10**400])
async def test_what_is_not_an_id_is_that_of_no_queue(served: Served, client: RecordLogClient, queue_id: Any) -> None:
    """A call for one incarnation changes no other, whatever JSON would make of its id."""
    await served.log.append("q", b"a")
    for it in (served.log, client):
        with pytest.raises(QueueNotFoundError):
            await it.truncate("q", 0, queue_id=queue_id)
        with pytest.raises(QueueNotFoundError):
            await it.seal_queue("q", queue_id=queue_id)
        with pytest.raises(QueueNotFoundError):
            await it.delete_queue("q", queue_id=queue_id)
    summary = served.log.queue_summary("q")
    assert summary.records == 1 and not summary.sealed


@pytest.mark.parametrize("queue", ["", ".", "\ud800", "x" * 300, "x" * 70_000, "\0", 5, None, b"q", ["q"]])
async def test_what_cannot_be_a_name_is_that_of_no_queue(served: Served, client: RecordLogClient, queue: Any) -> None:
    """`queue_exists` returns False, from the log and from its clients."""
    assert served.log.queue_exists(queue) is False
    assert await client.queue_exists(queue) is False
    with BlockingRecordLogClient(served.url) as blocking:
        assert await asyncio.to_thread(blocking.queue_exists, queue) is False


async def test_a_stop_may_be_a_bool(served: Served, client: RecordLogClient) -> None:
    """It is the int that Python takes it for."""
    await served.log.append_records("q", None, [b"a", b"b"])
    assert [record.position async for record in client.range("q", 0, True)] == [0]


@pytest.mark.parametrize("position", [-1, 2**63, True, "1"])
async def test_a_holder_refuses_what_is_not_a_position(served: Served, client: RecordLogClient, position: Any) -> None:
    """Acknowledging and seeking raise what the holder of the log raises, and it goes on as before."""
    await served.log.append("q", b"a")
    async with served.log.consumer("q", "here") as here, client.consumer("q", "there") as there:
        for name in ("acknowledge", "seek"):
            if (name, position) == ("seek", 2**63):
                continue  # the next position of a full queue
            with pytest.raises((TypeError, ValueError)) as by_log:
                await getattr(here, name)(position)
            with pytest.raises(by_log.type) as by_client:
                await getattr(there, name)(position)
            assert str(by_client.value) == str(by_log.value)
        assert await there.acknowledge(0) == 1
