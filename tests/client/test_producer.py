"""A producer stores each record once or raises an error, and continues after records that are refused."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mrecordlog_async import Limits, LogFullError, PositionInPastError, QueueNotFoundError, RecordTooLargeError
from mrecordlog_async.client import OutcomeUnknownError, RecordLogClient, ServiceError, ServiceUnreachableError
from mrecordlog_async.client.sender import Sender
from mrecordlog_async.service.options import ServiceOptions
from tests.client.faces import outcome
from tests.client.scripted import DROP, QUEUE, REPEATED, Step, listening, problem, scripted
from tests.served import Served, serving
from tests.serving import Process


async def outcomes(*calls: Awaitable[int]) -> list[int | type[BaseException]]:
    done = await asyncio.gather(*calls, return_exceptions=True)
    return [type(result) if isinstance(result, BaseException) else result for result in done]


@asynccontextmanager
async def delayed(served: Served, *, losing: bool = False) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """Run a proxy that delays appends; yield its address, the event that one arrived, and the event that releases it.

    losing: the first append is never forwarded; its connection is dropped instead.
    """
    came, go, lose = asyncio.Event(), asyncio.Event(), [losing]

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if data.startswith(b"POST"):
                came.set()
                await go.wait()
                if lose.pop() if lose else False:
                    raise ConnectionAbortedError
            writer.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", served.port)
        try:
            both = [asyncio.ensure_future(forward(reader, there[1])), asyncio.ensure_future(forward(there[0], writer))]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        finally:
            there[1].transport.abort()
            writer.transport.abort()

    async with listening(serve) as url:
        yield url, came, go


@pytest.mark.parametrize("order", [b"order 2", b"order 1"], ids=["other content", "same content"])
async def test_a_replaced_producers_late_record_is_not_taken_for_ones_own(served: Served, order: bytes) -> None:
    """The old instance's last request is delayed, stored and drained: the new one gets an error."""
    async with (
        delayed(served) as (proxy, came, go),
        RecordLogClient(proxy) as old,
        RecordLogClient(served.url) as new,
        old.producer("q") as dying,
        new.producer("q") as successor,
    ):
        late = asyncio.create_task(dying.append_record(b"order 1"))
        await came.wait()
        go.set()
        await late
        await new.truncate("q", 0)  # a drain removed it
        assert served.log.queue_summary("q").records == 0
        # The same content may be the producer's own record, sent twice by a proxy.
        with pytest.raises(OutcomeUnknownError if order == b"order 1" else PositionInPastError):
            await successor.append_record(order)
        async with new.producer("q") as third:
            assert await third.append_record(order) == 1
    assert [record.payload for record in served.log.range("q")] == [order]


async def test_a_lost_request_is_not_taken_for_stored_because_somebody_else_was(served: Served) -> None:
    """The request never arrived, another record took its position and was drained: nothing reports it as stored."""
    async with (
        delayed(served, losing=True) as (proxy, came, go),
        RecordLogClient(proxy) as client,
        client.producer("q") as producer,
    ):
        sending = asyncio.create_task(producer.append_record(b"mine"))
        await came.wait()
        await served.log.append_record("q", None, b"somebody else's")
        await served.log.truncate("q", 0)
        go.set()
        with pytest.raises(OutcomeUnknownError):
            await sending


async def test_a_repeat_after_a_restart_with_nothing_retained_is_not_called_stored(tmp_path: Path) -> None:
    """The service no longer knows what was at that position, and does not guess."""
    with Process(tmp_path / "wal") as process:
        async with RecordLogClient(process.address) as client:
            await client.create_queue("q")
            await client.append_record("q", None, b"somebody else's")
            await client.truncate("q", 0)
        process.kill()
        await asyncio.to_thread(process.start)
        async with RecordLogClient(process.address) as client:
            with pytest.raises(PositionInPastError):
                await client.append_new("q", 0, [b"mine"])
            with pytest.raises(PositionInPastError):
                await client.append_record("q", 0, b"mine")


async def test_two_producers_never_share_a_record(served: Served) -> None:
    """Both send the same bytes to the same position: one stores them, the other gets an error with both causes."""
    async with (
        RecordLogClient(served.url) as client,
        client.producer("q") as first,
        client.producer("q") as second,
    ):
        assert await first.append_record(b"tick") == 0
        with pytest.raises(OutcomeUnknownError, match="another producer wrote there, or a proxy"):
            await second.append_record(b"tick")
        with pytest.raises(OutcomeUnknownError):  # it has failed, and sends nothing more
            await second.append_record(b"tock")
    assert served.log.next_position("q") == 1


async def test_a_batch_is_sent_again_after_a_lost_response() -> None:
    """The repeat is recognized, and the producer continues."""
    steps = [QUEUE, DROP, Step(body=REPEATED), Step(body=b'{"position":1,"records":1,"duplicate":false}')]
    async with scripted(steps) as server, RecordLogClient(server.url) as client, client.producer("q") as producer:
        assert await outcomes(producer.append_record(b"a")) == [0]
        assert await outcomes(producer.append_record(b"b")) == [1]
        targets = [line.partition("?")[2] for line, _ in server.requests[1:]]
        assert targets == ["position=0", "position=0", "position=1"]


async def test_an_outcome_that_nobody_knows_ends_the_producer() -> None:
    """Nothing more is sent: a new producer has to ask for the next position first."""
    steps = [QUEUE, DROP, problem(409, "position_in_past", queue="q", position=0, next_position=1)]
    async with scripted(steps) as server, RecordLogClient(server.url) as client, client.producer("q") as producer:
        calls = [asyncio.create_task(producer.append_record(payload)) for payload in (b"a", b"b")]
        assert await outcomes(*calls) == [OutcomeUnknownError] * 2
        with pytest.raises(OutcomeUnknownError) as first:
            await producer.append_record(b"c")
        with pytest.raises(OutcomeUnknownError) as second:
            await producer.append_record(b"d")
        assert first.value is not second.value  # or its traceback would grow with each call
        assert len(server.requests) == 3


async def test_a_producer_whose_service_is_gone_after_a_lost_response_has_failed() -> None:
    """The record may be stored, and nobody settled it within the time of a call."""
    async with (
        scripted([QUEUE], last=DROP) as server,
        RecordLogClient(server.url, retry_seconds=0.1) as client,
        client.producer("q") as producer,
    ):
        for _ in range(2):
            lost = await outcome(producer.append_record(b"a"))
            assert isinstance(lost, ServiceUnreachableError) and lost.sent
            assert producer.failed
        sent = len(server.requests)
        await outcome(producer.append_record(b"a"))
        assert len(server.requests) == sent


@pytest.mark.parametrize("bad", range(3))
async def test_a_record_that_is_too_large_fails_its_own_caller_only(directory: Path, bad: int) -> None:
    """Wherever it is in the batch, the others are stored in order, and the producer continues."""
    async with (
        serving(directory, limits=Limits(record_bytes=1_000)) as served,
        RecordLogClient(served.url) as client,
        client.producer("q", create=True) as producer,
    ):
        payloads = [bytes(1_001) if number == bad else b"%d" % number for number in range(3)]
        done = await outcomes(*(asyncio.create_task(producer.append_record(payload)) for payload in payloads))
        assert done[bad] is RecordTooLargeError
        assert [result for result in done if isinstance(result, int)] == [0, 1]
        assert await producer.append_records([b"x", b"y"]) == 3
        stored = [record.payload for record in served.log.range("q")]
    assert stored == [payload for number, payload in enumerate(payloads) if number != bad] + [b"x", b"y"]


async def test_one_bad_record_among_a_thousand_costs_few_requests(directory: Path) -> None:
    """Batches are halved, not sent record by record."""
    async with (
        serving(directory, limits=Limits(record_bytes=1_000)) as served,
        RecordLogClient(served.url) as client,
        client.producer("q", create=True) as producer,
    ):
        before = served.service.requests
        payloads = [bytes(1_001) if number == 700 else b"%d" % number for number in range(1_000)]
        done = await outcomes(*(asyncio.create_task(producer.append_record(payload)) for payload in payloads))
        assert [number for number, result in enumerate(done) if result is RecordTooLargeError] == [700]
        assert served.service.requests - before < 30
        assert served.log.next_position("q") == 999


async def test_batches_that_the_service_finds_too_large_are_halved(directory: Path) -> None:
    """A service may accept only smaller bodies than a producer sends."""
    options = ServiceOptions(body_bytes=5_000, bodies_bytes=1_000_000)
    async with (
        serving(directory, options) as served,
        RecordLogClient(served.url) as client,
        client.producer("q", create=True) as producer,
    ):
        calls = [asyncio.create_task(producer.append_record(bytes(1_000))) for _ in range(30)]
        assert await outcomes(*calls) == list(range(30))
        with pytest.raises(ServiceError, match="413"):
            await producer.append_record(bytes(6_000))
        assert await producer.append_record(b"a") == 30


async def test_a_refusal_that_is_not_about_content_is_raised_for_the_whole_batch() -> None:
    """A wrong token is not sent again for each record; with the right one the producer continues."""
    refusals = 1 if asyncio.get_running_loop().get_task_factory() is None else 2  # eager tasks: the first goes alone
    steps = [QUEUE, *[problem(401, "unauthorized")] * refusals]
    async with scripted(steps) as server, RecordLogClient(server.url) as client, client.producer("q") as producer:
        calls = [asyncio.create_task(producer.append_record(b"%d" % number)) for number in range(10)]
        assert await outcomes(*calls) == [ServiceError] * 10
        assert len(server.requests) == 1 + refusals
        assert await producer.append_record(b"a") == 0


async def test_a_full_disk_is_waited_for_and_then_refused(directory: Path) -> None:
    """507 is retried until there is space; in the end its callers get the error, and the producer continues."""
    full = problem(507, "disk_full")
    steps = [QUEUE, full, full, Step()]
    async with scripted(steps) as server, RecordLogClient(server.url) as client, client.producer("q") as producer:
        assert await producer.append_record(b"a") == 0
        assert len(server.requests) == 4
    async with (
        scripted([QUEUE, *[full] * 2, problem(507, "disk_full", "Retry-After: 100"), Step()]) as server,
        RecordLogClient(server.url) as client,
        client.producer("q") as producer,
    ):
        with pytest.raises(LogFullError):
            await producer.append_record(b"a")
        assert await producer.append_record(b"a") == 0


async def test_a_producer_starts_over_in_a_recreated_queue(served: Served) -> None:
    """Callers get the error while the queue does not exist; then positions begin where the new queue begins."""
    async with RecordLogClient(served.url) as client, client.producer("q") as producer:
        await producer.append_records([b"a", b"b"])
        await client.delete_queue("q")
        with pytest.raises(QueueNotFoundError):
            await producer.append_record(b"c")
        with pytest.raises(QueueNotFoundError):
            await producer.append_record(b"d")
        await client.create_queue("q")
        assert await producer.append_record(b"e") == 0


async def test_a_lost_response_about_the_next_position_leaves_nothing_unknown() -> None:
    """The queue was deleted, so the producer asks where it begins now; the record itself was not sent."""
    missing = problem(404, "queue_not_found", queue="q")
    async with (
        scripted([QUEUE, missing, DROP, DROP, QUEUE, Step()]) as server,
        RecordLogClient(server.url, retry_seconds=0.0) as client,
        client.producer("q") as producer,
    ):
        with pytest.raises(QueueNotFoundError):
            await producer.append_record(b"a")
        with pytest.raises(ServiceUnreachableError) as caught:
            await producer.append_record(b"b")
        assert not caught.value.sent
        assert not producer.failed
        assert await producer.append_record(b"c") == 0


async def test_a_service_that_is_away_for_too_long_refuses_without_ending_the_producer(directory: Path) -> None:
    """If no request was sent, nothing is unknown."""
    async with serving(directory) as served:
        await served.log.create_queue("q")
        client = RecordLogClient(served.url, retry_seconds=0.1)
        producer = client.producer("q")
        await producer.__aenter__()
        url = served.url
    with pytest.raises(Exception, match=url):
        await producer.append_record(b"a")
    assert not producer.failed
    await producer.close()
    await client.close()


def test_ctrl_c_while_a_producer_sends_is_said_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its append gets it, and the loop; no task is left with an error that asyncio would print."""
    said = list[str]()

    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    async def main(address: str) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(str(context["message"])))
        async with RecordLogClient(address) as client, client.producer("q", create=True) as producer:
            monkeypatch.setattr(Sender, "send", interrupted)
            await producer.append_record(b"x")

    with Process(directory) as service, pytest.raises(KeyboardInterrupt):
        asyncio.run(main(service.address))
    gc.collect()
    assert not said
