from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import (
    Batch,
    ConsumerNameError,
    Limits,
    LogClosedError,
    LogFullError,
    MultiRecordLog,
    PositionInPastError,
    QueueExistsError,
    QueueNameError,
    QueueNotFoundError,
    QueueOptions,
    QueueOptionsError,
    Record,
    RecordTooLargeError,
)
from mrecordlog_async.client import (
    BlockingRecordLogClient,
    RecordLogClient,
    ServiceError,
    ServiceUnreachableError,
)
from mrecordlog_async.client import reads as client_reads
from mrecordlog_async.client import tail as client_tail
from mrecordlog_async.client.transport import Transport
from mrecordlog_async.service.options import ServiceOptions
from tests.client.faces import Face, faces
from tests.served import Served, serving
from tests.serving import Process


@faces
async def test_the_client_speaks_like_the_log(face: Face, served: Served) -> None:
    """Every method of the log returns the same through the service."""
    log = served.log
    async with face(served.url) as client:
        assert await client.create_queue("a/b ü") is True
        assert await client.create_queue("a/b ü", exist_ok=True) is False
        assert await client.append_record("q", None, b"a") == 0
        assert await client.append_record("q", 0, b"a") is None
        assert await client.append_records("q", None, [b"b", bytearray(b"c")]) == 2
        assert await client.append_records("q", 1, [b"b", b"c"]) is None
        assert await client.append_records("q", None, []) is None
        assert [tuple(record) async for record in client.range("q")] == [tuple(one) for one in log.range("q")]
        assert [tuple(record) async for record in client.range("q", 1, 2)] == [(1, b"b")]
        assert [record.payload async for record in client.range("q", 1)] == [b"b", b"c"]
        assert await client.truncate("q", 0) == 1
        assert [record.position async for record in client.range("q", 0)] == [1, 2]
        assert await client.list_queues() == log.list_queues() == ["a/b ü", "q"]
        assert await client.first_position("q") == 1
        assert await client.next_position("q") == 3
        assert (await client.last_position("q"), await client.last_position("a/b ü")) == (2, None)
        summary = await client.queue_summary("q")
        assert (summary.id, summary.records) == (log.queue_summary("q").id, 2)
        assert (await client.stats()).counters["appended_records"] == 3
        await client.delete_queue("a/b ü")
        assert not await client.queue_exists("a/b ü")


@faces
async def test_the_calls_of_operators_speak_like_the_log(face: Face, served: Served) -> None:
    """Listings in an order and of the first ones, options, and the consumers of all queues with rules."""
    async with face(served.url) as client:
        assert await client.append_json("orders", {"cups": 2}, create=True) == 0
        assert [json.loads(record.payload) async for record in client.range("orders")] == [{"cups": 2}]
        assert list(await client.summary(order="records", limit=1)) == ["orders"]
        assert await client.create_consumer("or*", "lake")
        assert await client.consumer_rules() == [("or*", "lake")]
        assert [(one.queue, one.consumer) for one in await client.all_consumers()] == [("orders", "lake")]
        assert await client.queue_options("q") == QueueOptions()
        await client.wait_ready()
        assert (await client.log_info()).id


@faces
async def test_a_batch_ends_at_its_timeout(face: Face, served: Served) -> None:
    """It is empty then, which is not the end. What is there comes with the first request, however short the time."""
    async with face(served.url) as client:
        tail = client.tail("q")
        batch = await tail.batch(timeout=0.05)
        assert batch is not None and not batch and batch.first_position == 0
        await served.log.append("q", b"a")
        assert (await tail.batch(timeout=0)).payloads() == [b"a"]


@faces
@pytest.mark.parametrize("kind", ["tail", "consumer"])
async def test_what_is_there_is_read_without_waiting(face: Face, served: Served, kind: str) -> None:
    """For a program that runs once: records that arrive after the first batch was asked for are left."""
    await served.log.append_records("q", None, [b"a", b"b"])
    async with face(served.url) as client:
        reader = client.tail("q") if kind == "tail" else await client.consumer("q", "c").__aenter__()
        found = reader.available(max_records=1)
        assert (await anext(found)).payloads() == [b"a"]
        await served.log.append("q", b"later")
        assert (await anext(found)).payloads() == [b"b"]
        with pytest.raises(StopAsyncIteration):
            await anext(found)


async def test_the_limits_of_a_queue_refuse_in_the_same_words(served: Served) -> None:
    """A full queue, and options that contradict what it holds, raise the log's own errors through the client."""
    options = QueueOptions(max_records=2)
    async with RecordLogClient(served.url, retry_seconds=0.0) as client:
        await client.configure_queue("q", options)
        await client.append_records("q", None, [b"a", b"b"])
        for log in (client, served.log):
            with pytest.raises(LogFullError, match="holds 2 of 2 records"):
                await log.append("q", b"c")
            with pytest.raises(QueueOptionsError, match=r"^queue 'q': max_bytes=1 is below the 2 that it holds"):
                await log.configure_queue("q", QueueOptions(max_bytes=1))


async def test_following_ends_after_the_last_record_of_a_sealed_queue(served: Served) -> None:
    """Nothing can come any more, so the client does not ask for it again and again."""
    async with RecordLogClient(served.url) as client:
        await client.append("q", b"a")
        await client.seal_queue("q")
        assert [run.payload async for runs, _ in client.timed_runs("q", follow=True) for run in runs] == [b"a"]
        tail = client.tail("q")
        batch = await asyncio.wait_for(tail.batch(max_wait=None), 60)  # no limit was reached, and none will be
        assert batch is not None and batch.payloads() == [b"a"]
        assert await tail.batch(max_wait=None) is None


@pytest.mark.parametrize("name", ["", "\udcff", b"q", 5], ids=ascii)
async def test_what_cannot_be_a_name_is_refused_as_by_the_log(served: Served, name: Any) -> None:
    """The path of an empty one would be another path; bytes are not taken for the text that they encode."""
    async with RecordLogClient(served.url) as client:
        for log in (client, served.log):
            with pytest.raises(QueueNameError):
                await log.append(name, b"a", create=True)
            with pytest.raises(ConsumerNameError):
                await log.create_consumer("q", name)


@pytest.mark.parametrize("queue", ["...", "%", "%2F", "a?b#c", "/", "{queue}", "+", "a\\b"])
async def test_every_name_reaches_the_service_as_it_is(served: Served, queue: str) -> None:
    """No character of a name is mistaken for a part of the path."""
    async with RecordLogClient(served.url) as client:
        await client.create_queue(queue)
        await client.append_record(queue, None, b"a")
        assert served.log.list_queues() == sorted([queue, "q"])
        assert [record.payload async for record in client.range(queue)] == [b"a"]


async def test_an_append_through_the_client_may_create_its_queue(served: Served) -> None:
    """Each append is one request, whether the queue exists or not, and none counts as refused."""
    async with RecordLogClient(served.url) as client:
        assert await client.append("new", b"a", create=True) == 0
        assert await client.append_records("other", 7, [b"a", b"b"], create=True) == 8
        assert await client.append_record("new", None, b"b", create=True) == 1
        assert await client.append("new", b"b", 1, create=True) is None
        assert served.service.requests == 4
        assert not any((await client.stats()).refused.values())
        assert repr(client) == f"<RecordLogClient {served.url!r}>"


def test_a_wrong_url_is_refused_at_once() -> None:
    """Not at the first request, which would have to say that its outcome is unknown."""
    for client in (RecordLogClient, BlockingRecordLogClient):
        with pytest.raises(ValueError, match="write http://localhost:8080"):
            client("localhost:8080")


async def test_a_password_is_not_shown(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a URL with user and password, as a proxy may want it: in no error, no line of the log and no repr."""
    monkeypatch.setattr("mrecordlog_async.client.outage.SILENT_SECONDS", 0.0)
    url = "http://user:secret@127.0.0.1:1/wal"
    async with RecordLogClient(url, retry_seconds=0.2) as client:
        with pytest.raises(ServiceUnreachableError) as gone:
            await client.summary()
    shown = [repr(client), repr(BlockingRecordLogClient(url)), str(gone.value), caplog.text]
    assert [text for text in shown if "secret" in text or "user" in text] == []
    assert gone.value.address == "http://127.0.0.1:1/wal"
    assert "http://127.0.0.1:1/wal: connection refused; trying again" in caplog.text


@pytest.mark.parametrize(
    ("url", "token", "refusal"),
    [
        ("http://localhost:8080", "0123456789abcdef\n", r"the token .* control character: pass token\.strip\(\)"),
        ("http://u:p@localhost:8080", "0123456789abcdef", "has a user name, and a request cannot have a token as well"),
    ],
)
def test_a_token_that_no_request_can_have_is_refused_at_once(url: str, token: str, refusal: str) -> None:
    """At the first request it would be too late, and the error another one. A file seldom holds the token alone."""
    for client in (RecordLogClient, BlockingRecordLogClient):
        with pytest.raises(ValueError, match=refusal):
            client(url, token=token)


async def test_many_queues_are_created_in_one_request(directory: Path) -> None:
    """The clients create all or none, and return how many; a single name is refused."""
    async with serving(directory) as served, RecordLogClient(served.url) as client:
        assert await client.create_queues(["a", "b"], options=QueueOptions(max_records=3)) == 2
        assert served.log.queue_options("a").max_records == 3
        with pytest.raises(QueueExistsError):
            await client.create_queues(["c", "a"])
        assert await client.create_queues(["c", "a"], exist_ok=True) == 1
        with pytest.raises(TypeError, match="not a single one"):
            await client.create_queues("abc")
        assert served.log.list_queues() == ["a", "b", "c"]


async def test_errors_are_those_of_the_log(directory: Path) -> None:
    """Handlers written for the log work for the client."""
    limits = Limits(record_bytes=1_000, memory_bytes=20_000, pending_bytes=10_000)
    async with serving(directory, limits=limits) as served, RecordLogClient(served.url, retry_seconds=0.1) as client:
        await client.create_queue("q")
        with pytest.raises(QueueExistsError):
            await client.create_queue("q")
        with pytest.raises(QueueNotFoundError):
            await client.append_record("nope", None, b"a")
        with pytest.raises(QueueNameError) as misnamed:
            await client.create_queue("a\0b")
        assert str(misnamed.value) == "queue name 'a\\x00b' contains control characters; remove them"
        with pytest.raises(
            QueueNameError, match=r"^queue name 'a+\.\.\. is 300 bytes long in UTF-8; the limit is 255$"
        ):
            await client.create_queue("a" * 300)
        with pytest.raises(
            ConsumerNameError, match=r"^consumer name 'c+\.\.\. is 300 bytes long in UTF-8; the limit is 255$"
        ):
            await client.create_consumer("q", "c" * 300)
        with pytest.raises(RecordTooLargeError):
            await client.append_record("q", None, bytes(1_001))
        await client.append_record("q", None, b"a")
        with pytest.raises(PositionInPastError) as caught:
            await client.append_record("q", 0, b"b")
        assert caught.value.next_position == 1
        with pytest.raises(ServiceError, match="has not been assigned yet"):
            await client.truncate("q", 5)
        with pytest.raises(LogFullError):
            for _ in range(30):
                await client.append_record("q", None, bytes(1_000))


async def test_large_reads_come_in_pages(served: Served) -> None:
    """What exceeds one response is read in several, in order."""
    records = [b"%d" % number * 100_000 for number in range(200)]
    for start in range(0, 200, 20):
        await served.log.append_records("q", None, records[start : start + 20])
    async with RecordLogClient(served.url) as client:
        assert [record.payload async for record in client.range("q")] == records


@pytest.mark.parametrize("bounds", [(-1,), (True,), (2**70,), (0, 2**70), (None, -1), (-(2**70), 1)])
async def test_a_range_may_begin_and_end_anywhere(served: Served, bounds: tuple[int | None, ...]) -> None:
    """As in the log: there is no record below 0, and none past the end."""
    await served.log.append_records("q", None, [b"a", b"b"])
    async with RecordLogClient(served.url) as client:
        assert [record async for record in client.range("q", *bounds)] == list(served.log.range("q", *bounds))


async def test_a_timeout_does_not_end_a_tail(served: Served) -> None:
    """The usual way to ask for the next record or none loses no record and does not end the tail."""
    async with RecordLogClient(served.url) as client:
        tail = client.tail("q")
        for number in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(tail), 0.05)
            await served.log.append("q", b"%d" % number)
            assert await anext(tail) == (number, b"%d" % number)
        assert tail.position == 3


async def test_batches_by_number_bytes_and_time(served: Served) -> None:
    """A batch ends at the first limit; records and batches of one tail continue each other."""
    await served.log.append_records("q", None, [bytes(100)] * 10)
    async with RecordLogClient(served.url) as client:
        tail = client.tail("q")
        first = await tail.batch(max_records=4, max_wait=None)
        assert first is not None
        assert (first.first_position, first.last_position, len(first)) == (0, 3, 4)
        by_bytes = await tail.batch(max_bytes=250, max_wait=None)
        assert by_bytes is not None
        assert by_bytes.last_position == 5
        assert (await anext(tail)).position == 6
        rest = await tail.batch(max_wait=0.05)
        assert rest is not None
        assert (rest.first_position, rest.last_position) == (7, 9)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tail.batch(), 0.05)
        await served.log.append("q", b"more", 20)
        waiting = asyncio.create_task(tail.batch(max_records=2, max_wait=None))
        await asyncio.sleep(0)
        await served.log.append("q", b"and more")
        more = await waiting
        assert more is not None
        assert [record.position for record in more] == [20, 21]
        await served.log.delete_queue("q")
        assert [batch async for batch in tail.batches()] == []
        with pytest.raises(ValueError, match="max_records must be at least 1"):
            tail.batches(max_records=0)


@pytest.mark.parametrize("max_wait", [None, 3_600.0, inf])
async def test_a_batch_that_several_requests_wait_for_ends_once_it_is_full(
    served: Served, monkeypatch: pytest.MonkeyPatch, max_wait: float | None
) -> None:
    """However long it may wait: its caller gets it with the record that fills it."""
    monkeypatch.setattr(client_tail, "WAIT_SECONDS", 0)
    await served.log.append("q", b"a")
    async with RecordLogClient(served.url) as client, asyncio.timeout(60):
        waiting = asyncio.create_task(client.tail("q").batch(max_records=2, max_wait=max_wait))
        while served.service.requests < 5:
            await asyncio.sleep(0)
        await served.log.append("q", b"b")
        batch = await waiting
        assert batch is not None and batch.payloads() == [b"a", b"b"]


async def test_limits_of_a_batch_may_be_as_large_as_those_of_the_log(served: Served) -> None:
    """One beyond the numbers that the service takes limits nothing."""
    async with RecordLogClient(served.url) as client, client.consumer("q", "c") as consumer:
        tail = client.tail("q")
        waiting = asyncio.create_task(tail.batch(timeout=inf))
        while not served.service.tails:
            await asyncio.sleep(0)
        await served.log.append("q", b"a")
        found = [await waiting, await consumer.batch(max_records=2**64, max_bytes=2**64, timeout=inf)]
        assert [batch and batch.payloads() for batch in found] == [[b"a"], [b"a"]]


async def test_a_call_on_another_event_loop_is_refused(served: Served) -> None:
    """It stores nothing: a second asyncio.run with the same client raises the error of the log."""
    async with RecordLogClient(served.url) as client:
        assert await client.append("q", b"a") == 0
        for call in (client.append("q", b"b"), client.append_record("q", 1, b"b"), client.next_position("q")):
            with pytest.raises(LogClosedError, match="the client belongs to another event loop"):
                await asyncio.to_thread(asyncio.run, call)
        assert await client.next_position("q") == 1


@pytest.mark.parametrize("kind", [RecordLogClient, BlockingRecordLogClient])
@pytest.mark.parametrize(
    ("option", "value", "refusal"),
    [
        ("connections", 0, "must be at least 1, not 0"),
        ("retry_seconds", -1, "must be at least 0, not -1"),
        ("retry_seconds", float("nan"), "must be at least 0, not nan"),
        ("timeout_seconds", 0, "must be above 0, not 0"),
        ("timeout_seconds", float("nan"), "must be above 0, not nan"),
        ("response_seconds", -1.0, "must be above 0, not -1.0"),
    ],
)
def test_an_option_that_no_call_can_be_made_with_is_refused(
    kind: type[RecordLogClient | BlockingRecordLogClient], option: str, value: float, refusal: str
) -> None:
    """At once, before anything is sent: an append whose time is over at its beginning may be stored all the same."""
    with pytest.raises(ValueError, match=f"{option} {refusal}"):
        kind("http://127.0.0.1:9", **{option: value})  # type: ignore[arg-type]  # one of several types


async def test_a_range_does_not_continue_in_a_recreated_queue(directory: Path) -> None:
    """Positions begin again in a new queue: the rest of the old one is not there."""
    options = ServiceOptions(read_records=1)
    async with serving(directory, options, queues=["q"]) as served, RecordLogClient(served.url) as client:
        await client.append_records("q", None, [b"a", b"b"])
        records = client.range("q")
        assert (await anext(records)).payload == b"a"
        await client.delete_queue("q")
        await client.create_queue("q")
        await client.append_records("q", None, [b"c", b"d", b"e"])
        with pytest.raises(QueueNotFoundError):
            await anext(records)


async def test_a_queue_that_was_recreated_is_not_deleted_for_the_other_one(served: Served) -> None:
    """The service takes the id as a precondition."""
    async with RecordLogClient(served.url) as client:
        old = (await client.queue_summary("q")).id
        await client.delete_queue("q", queue_id=old)
        await client.create_queue("q")
        with pytest.raises(QueueNotFoundError):
            await client.delete_queue("q", queue_id=old)
        assert await client.queue_exists("q")
        assert (await served.call("DELETE", "/v1/queues/q?id=x")).status == 400


async def test_a_buffer_may_be_used_again_once_an_append_was_called(served: Served) -> None:
    """As with the log: what is not bytes is copied at the call, not when it is awaited."""
    buffer = bytearray(b"a")
    async with (
        RecordLogClient(served.url) as client,
        client.producer("of a producer", create=True) as producer,
    ):
        calls: list[Coroutine[Any, Any, object]] = [
            client.append("q", buffer),
            client.append_record("q", None, buffer),
            client.append_records("q", None, [buffer]),
            producer.append_record(buffer),
            producer.append_records([buffer]),
        ]
        buffer[:] = b"b"
        for call in calls:
            await call
    stored = [record.payload for queue in served.log.list_queues() for record in served.log.range(queue)]
    assert stored == [b"a"] * len(calls)


async def test_tasks_that_share_a_tail_share_its_records(served: Served) -> None:
    """As with a tail of the log: no record is handed out twice, alone or in a batch."""
    await served.log.append_records("q", None, [b"%d" % number for number in range(8)])
    async with RecordLogClient(served.url) as client:
        tail = client.tail("q")
        records = await asyncio.gather(anext(tail), anext(tail), anext(tail), anext(tail))
        assert sorted(record.position for record in records) == [0, 1, 2, 3]
        batches = await asyncio.gather(tail.batch(max_records=2), anext(tail), tail.batch(max_records=1))
        assert tail.position == 8
        assert sorted(position_of(found) for found in batches) == [4, 6, 7]


def position_of(found: Batch | Record | None) -> int:
    assert found is not None
    return found.position if isinstance(found, Record) else found.first_position


async def test_a_tail_waits_for_more_and_ends_with_its_queue(served: Served) -> None:
    """Records arrive as they are stored; deleting the queue ends the loop."""
    seen: list[bytes] = []
    async with RecordLogClient(served.url) as client:
        await client.append_record("q", None, b"0")
        async for record in client.tail("q"):
            seen.append(record.payload)
            if len(seen) < 5:
                await client.append_record("q", None, b"%d" % len(seen))
            else:
                await client.delete_queue("q")
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("follow", [True, False])
async def test_a_reader_that_is_past_the_end_of_a_restored_log_says_so(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    """New records would take the positions that it has read, and it would never hand them out."""
    async with MultiRecordLog.open(directory) as log:
        await log.append("q", b"a", create=True)
    shutil.copytree(directory, tmp_path / "restored")
    for module in (client_tail, client_reads):
        monkeypatch.setattr(module, "WAIT_SECONDS", 0)
    async with serving(directory) as served, RecordLogClient(served.url) as client, asyncio.timeout(60):
        reader = client.timed_runs("q", follow=True) if follow else client.tail("q").batches(max_wait=0)
        await anext(reader)
        await served.log.append("q", b"b")
        await anext(reader)
        await served.log.close()
        async with MultiRecordLog.open(tmp_path / "restored") as log:
            served.service.attach(log)
            reading = asyncio.ensure_future(anext(reader))
            _, waits = await asyncio.wait([reading], timeout=30)
            reading.cancel()
            assert not waits, "it waits for positions that it has read"
            with pytest.raises(ServiceError, match="at position 2, and the next one is 1: the log was restored"):
                await reading


async def test_a_batch_that_waits_for_more_ends_if_the_log_is_restored(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is handed out, and the next call says that the reader is ahead."""
    async with MultiRecordLog.open(directory) as log:
        await log.append("q", b"a", create=True)
    shutil.copytree(directory, tmp_path / "restored")
    monkeypatch.setattr(client_tail, "WAIT_SECONDS", 0)
    monkeypatch.setattr(client_tail, "PAUSE_SECONDS", 0)
    async with serving(directory) as served, RecordLogClient(served.url) as client, asyncio.timeout(10):
        await served.log.append("q", b"b")
        tail = client.tail("q")
        waiting = asyncio.create_task(tail.batch(max_wait=None))
        while served.service.requests < 10:
            await asyncio.sleep(0)
        await served.log.close()
        async with MultiRecordLog.open(tmp_path / "restored") as log:
            served.service.attach(log)
            batch = await waiting
            assert batch is not None and batch.payloads() == [b"a", b"b"]
            with pytest.raises(ServiceError, match="at position 2, and the next one is 1: the log was restored"):
                await tail.batch()


async def test_a_reader_that_follows_pauses_while_the_service_ends(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is drained has nothing to wait for: without a pause it would be asked hundreds of times per second."""
    paused = asyncio.Event()

    async def sleep(seconds: float) -> None:
        assert seconds == client_tail.PAUSE_SECONDS
        paused.set()
        await asyncio.Event().wait()

    async with RecordLogClient(served.url) as client, asyncio.timeout(10):
        await served.log.append("q", b"a", create=True)
        reader = client.timed_runs("q", follow=True)
        await anext(reader)
        await served.log.drain()
        monkeypatch.setattr(Transport, "sleep", staticmethod(sleep))
        waiting = asyncio.ensure_future(anext(reader))
        await paused.wait()
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_a_tail_from_a_time_on_looks_for_its_position_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service whose clock is set back meanwhile would refuse the time, because it is in the future."""
    monkeypatch.setattr(client_tail, "WAIT_SECONDS", 0)
    async with RecordLogClient(served.url) as client, asyncio.timeout(10):
        times = [datetime.now(UTC)]
        position_at = client.position_at
        monkeypatch.setattr(client, "position_at", lambda queue, _: position_at(queue, times.pop()))
        waiting = asyncio.create_task(anext(client.tail("q", times[0])))
        while served.service.requests < 20:
            await asyncio.sleep(0)
        await served.log.append("q", b"a")
        assert (await waiting).payload == b"a"


async def test_a_tail_may_begin_past_the_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the record at its position, however often it has to ask."""
    monkeypatch.setattr(client_tail, "WAIT_SECONDS", 0)
    async with RecordLogClient(served.url) as client, asyncio.timeout(60):
        waiting = asyncio.create_task(anext(client.tail("q", 5)))
        asked = served.service.requests
        while served.service.requests < asked + 10:
            await asyncio.sleep(0.001)
        await served.log.append_records("q", 0, [b"%d" % number for number in range(6)])
        assert await waiting == (5, b"5")


async def test_waiting_for_a_position_that_is_truncated_ends(served: Served) -> None:
    """The position has been assigned, though nobody can read a record there any more."""
    async with RecordLogClient(served.url) as client:
        waiting = asyncio.create_task(client.wait_for("q", 0))
        while not served.service.tails:
            await asyncio.sleep(0.001)
        await served.log.truncate("q", 5)
        assert await asyncio.wait_for(waiting, 60) is True


async def test_waiting_for_what_is_not_a_position_is_refused_as_by_the_log(served: Served) -> None:
    """Not answered as if it had been assigned."""
    async with RecordLogClient(served.url) as client:
        for wrong in (-1, 2**63, True, "1"):
            with pytest.raises((ValueError, TypeError)) as by_log:
                await served.log.wait_for("q", wrong)  # type: ignore[arg-type]  # the mistake under test
            with pytest.raises(by_log.type) as by_client:
                await client.wait_for("q", wrong)  # type: ignore[arg-type]  # the same
            assert str(by_client.value) == str(by_log.value)


async def test_times_are_those_of_the_log(served: Served) -> None:
    """A client reads from a time on, and finds times and positions, as the log does."""
    for payload in (b"a", b"b"):
        await served.log.append("q", payload)
    async with RecordLogClient(served.url) as client:
        time = served.log.time_of("q", 1)
        assert time is not None
        assert await client.time_of("q", 1) == time
        assert await client.time_of("q", 2) is None
        found = served.log.position_at("q", time)
        assert await client.position_at("q", time) == found
        assert [record.position async for record in client.range("q", time)] == [*range(found, 2)]
        assert (await client.queue_summary("q")).oldest_time == served.log.queue_summary("q").oldest_time
        assert [record.position async for record in client.range("q", limit=1)] == [0]
        with pytest.raises(ServiceError, match="in the future"):
            await client.position_at("q", datetime.now(UTC) + timedelta(days=1))
        with pytest.raises(ValueError, match="no time zone"):
            await client.position_at("q", datetime.now())  # the mistake under test
        with pytest.raises(ValueError, match="limit"):
            [record async for record in client.range("q", limit=-1)]


async def test_an_empty_record_is_sent_with_its_length(directory: Path) -> None:
    """The service takes a body without bytes for a record only if the request says `Content-Length: 0`."""
    async with serving(directory) as served, RecordLogClient(served.url) as client:
        assert await client.append_record("q", None, b"", create=True) == 0
        assert await client.append("q", b"") == 1
        assert await client.append_records("q", None, [b"", b""]) == 3
        async with client.producer("q") as producer:
            await producer.append_record(b"")
        assert [record.payload for record in served.log.range("q")] == [b""] * 5


async def test_waiting_for_a_service_that_does_not_become_ready_says_why(directory: Path) -> None:
    """In the words of the service, and not as if something might have been changed."""
    why = r"within 0\.01 s: the log is being recovered \(503 \w+\)$"
    async with serving(directory, recovered=False) as served, RecordLogClient(served.url, retry_seconds=0.01) as client:
        with pytest.raises(ServiceUnreachableError, match=why):
            await client.wait_ready()


async def test_a_producer_shares_requests_between_callers(served: Served) -> None:
    """A thousand tasks that append at once become a few requests, in the order of their calls."""
    async with RecordLogClient(served.url) as client, client.producer("p", create=True) as producer:
        before = served.service.requests
        positions = await asyncio.gather(*(producer.append_record(b"%d" % number) for number in range(1_000)))
        assert list(positions) == list(range(1_000))
        assert await producer.append_records([b"x", b"y"]) == 1_001
        assert served.service.requests - before < 10
    assert [record.payload for record in served.log.range("p")][:1_000] == [b"%d" % number for number in range(1_000)]


async def test_kill_9_and_restart_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """A producer appends through kill -9 of the service again and again: every record is there, in order, once."""
    with Process(tmp_path / "wal") as process:
        async with RecordLogClient(process.address) as client, client.producer("q", create=True) as producer:
            acknowledged: list[int] = []

            async def append(number: int) -> None:
                assert await producer.append_record(b"%d" % number) == number
                acknowledged.append(number)

            for round_number in range(4):
                first = round_number * 500
                tasks = [asyncio.create_task(append(first + number)) for number in range(500)]
                while len(acknowledged) <= first:  # some have a response, the others are being sent
                    await asyncio.sleep(0.0005)
                process.kill()
                await asyncio.to_thread(process.start)
                await asyncio.gather(*tasks)
            stored = [record async for record in client.range("q")]
        assert stored == [(number, b"%d" % number) for number in range(2_000)]
        assert process.stop(signal.SIGTERM)[0] == 0
