"""Connections, deadlines and redirects of the client, as a server sees them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from mrecordlog_async import LogClosedError, QueueNotFoundError
from mrecordlog_async.client import (
    BlockingRecordLogClient,
    OutcomeUnknownError,
    RecordLogClient,
    ServiceError,
    ServiceUnreachableError,
)
from mrecordlog_async.client.http1 import SCRATCH_BYTES
from mrecordlog_async.client.transport import Transport
from mrecordlog_async.options import MIB
from mrecordlog_async.protocol import wire
from tests.client.scripted import APPENDED, DROP, Step, cutting, listening, problem, scripted
from tests.served import Served

QUEUE = b'{"queue":"q","id":7,"first_position":0,"next_position":0,"records":0,"bytes":0,"first_segment":null}'


async def test_quiet_tails_do_not_stop_other_calls(served: Served) -> None:
    """As many tails as the client has connections: appends go through, and every tail gets its record."""
    async with RecordLogClient(served.url, connections=4) as client:
        tails = [client.tail("q") for _ in range(4)]
        waiting = [asyncio.create_task(anext(tail)) for tail in tails]
        while served.service.tails < 4:
            await asyncio.sleep(0.001)
        assert await client.append_record("q", None, b"a") == 0
        assert [record.payload for record in await asyncio.gather(*waiting)] == [b"a"] * 4
        for tail in tails:
            await tail.aclose()


async def test_a_large_record_does_not_hold_the_event_loop(served: Served) -> None:
    """It is written piece by piece: other tasks run between two of them."""
    payload = bytes(2 * MIB)
    async with RecordLogClient(served.url) as client:
        assert await client.append("q", payload) == 0
    assert [record.payload for record in served.log.range("q")] == [payload]


async def test_callers_share_connections_in_the_order_they_came() -> None:
    """A caller that sends again at once does not overtake those that wait for a connection."""
    async with scripted([]) as server, RecordLogClient(server.url, connections=1) as client:

        async def hurry(name: bytes) -> None:
            for _ in range(20):
                await client.append_record("q", None, name)

        await asyncio.gather(hurry(b"a"), hurry(b"b"), hurry(b"c"))
        assert b"".join(body for _, body in server.requests) == b"abc" * 20


async def test_waiting_for_a_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait counts towards retry_seconds; the error says that all connections of the client are in use."""
    async with (
        scripted([Step(drip=True)]) as server,
        RecordLogClient(server.url, connections=1, retry_seconds=0.05) as client,
    ):
        blocking = asyncio.create_task(client.list_queues())
        while not server.requests:
            await asyncio.sleep(0.001)
        monkeypatch.setattr("mrecordlog_async.client.transport.CONNECT_SECONDS", 0.05)
        with pytest.raises(ServiceUnreachableError, match="none of the client's 1 connections became free") as caught:
            await client.append_record("q", None, b"a")
        assert not caught.value.sent
        assert len(server.requests) == 1
        blocking.cancel()
        await asyncio.gather(blocking, return_exceptions=True)


async def test_a_response_sent_byte_by_byte_ends() -> None:
    """Single bytes are not silence, but the whole response has a deadline."""
    async with (
        scripted([], last=Step(drip=True)) as server,
        RecordLogClient(server.url, retry_seconds=0.0, response_seconds=0.1) as client,
    ):
        with pytest.raises(ServiceUnreachableError):
            await client.list_queues()


async def test_a_long_poll_may_be_silent_for_as_long_as_it_waits(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadlines of a call neither cut a poll that waits for records nor end the tail."""
    monkeypatch.setattr("mrecordlog_async.client.tail.WAIT_SECONDS", 2)
    async with RecordLogClient(served.url, timeout_seconds=1.9, response_seconds=1.9, retry_seconds=0.1) as client:
        tail = client.tail("q")
        waiting = asyncio.create_task(anext(tail))
        before = served.service.requests
        while served.service.requests < before + 2:  # one poll ended without a record
            assert not waiting.done()
            await asyncio.sleep(0.01)
        await served.log.append_record("q", None, b"a")
        assert (await waiting).payload == b"a"
        await tail.aclose()


async def test_a_connection_with_half_a_request_is_not_used_again() -> None:
    """A proxy may refuse a body before it has arrived, and leave the connection open."""
    connections, ended = list[asyncio.StreamWriter](), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        await ended.wait()
        writer.close()

    async with listening(serve) as url, RecordLogClient(url, response_seconds=10.0) as client:
        for _ in range(2):
            with pytest.raises(ServiceError, match="client_max_body_size"):
                await client.append("q", bytes(50_000_000))
        assert len(connections) == 2
        ended.set()


@pytest.mark.parametrize(("header", "more"), [(b"Connection: close", b""), (b"X: y", b"HTTP/1.1 200 OK")])
async def test_a_connection_that_the_server_gives_up_is_not_used_again(header: bytes, more: bytes) -> None:
    """Whether it says so, or has begun a response that nobody asked for: it would be taken for the next one."""
    connections = list[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(
                    b"HTTP/1.1 200 OK\r\n%b\r\nContent-Length: %d\r\n\r\n" % (header, len(QUEUE)) + QUEUE + more
                )
        except asyncio.IncompleteReadError:
            writer.close()

    async with listening(serve) as url, RecordLogClient(url) as client:
        for _ in range(2):
            await client.queue_summary("q")
        with BlockingRecordLogClient(url) as blocking:
            for _ in range(2):
                await asyncio.to_thread(blocking.queue_summary, "q")
    assert len(connections) == 4


async def test_put_and_delete_are_never_sent_twice() -> None:
    """Not even on a reused connection: the server carried the request out and dropped the connection."""
    for call, method in (("create_queue", "PUT"), ("delete_queue", "DELETE")):
        async with scripted([Step(body=QUEUE), DROP]) as server, RecordLogClient(server.url) as client:
            await client.queue_summary("q")
            with pytest.raises(OutcomeUnknownError, match=f"{method} /v1/queues/q"):
                await getattr(client, call)("q")
            assert server.methods == ["GET", method]


async def test_deleting_by_id_is_sent_again_and_spares_a_queue_made_since() -> None:
    """The id is a precondition, so a repeat does no harm; a queue that does not exist any more was deleted."""
    for refusal in ("queue_not_found", "queue_recreated"):
        steps = [DROP, problem(404, refusal, queue="q")]
        async with scripted(steps) as server, RecordLogClient(server.url) as client:
            await client.delete_queue("q", queue_id=7)
            assert [line for line, _ in server.requests] == ["DELETE /v1/queues/q?id=7"] * 2
        async with scripted([problem(404, refusal, queue="q")]) as server, RecordLogClient(server.url) as client:
            with pytest.raises(QueueNotFoundError):
                await client.delete_queue("q", queue_id=7)


async def test_the_service_takes_the_id_of_a_queue_as_precondition(served: Served) -> None:
    """A queue that was recreated under the name is not deleted."""
    async with RecordLogClient(served.url) as client:
        old = (await client.queue_summary("q")).id
        await client.delete_queue("q", queue_id=old)
        await client.create_queue("q")
        with pytest.raises(QueueNotFoundError):
            await client.delete_queue("q", queue_id=old)
        assert await client.queue_exists("q")
        assert (await served.call("DELETE", "/v1/queues/q?id=x")).status == 400


@pytest.mark.parametrize("prefix", ["my späße", "my%20sp%C3%A4%C3%9Fe", "my%20späße/"])
async def test_the_path_of_a_url_is_percent_encoded(prefix: str) -> None:
    """A URL is written as people read it; a request line holds ASCII without spaces."""
    async with scripted([Step()]) as server, RecordLogClient(f"{server.url}/{prefix}") as client:
        assert await client.append_record("a/b", None, b"a") == 0
        assert server.requests[0][0].split()[1] == "/my%20sp%C3%A4%C3%9Fe/v1/queues/a%2Fb/records"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_refused(status: int) -> None:
    """A redirected append would become a GET, or reach another service; the error names the address."""
    step = Step(status, b"", ("Location: http://127.0.0.1:1/elsewhere",))
    async with scripted([step]) as server, RecordLogClient(server.url) as client:
        with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:1/elsewhere"):
            await client.append_record("q", None, b"a")
        assert len(server.requests) == 1


async def test_a_success_that_is_not_the_services_is_an_error() -> None:
    """A proxy's login page is not accepted as a response."""
    async with scripted([], last=Step(body=b"<html>")) as server, RecordLogClient(server.url) as client:
        with pytest.raises(ServiceError, match="not a response of this service"):
            await client.append_record("q", 0, b"a")
        with pytest.raises(ServiceError, match="not a response of this service"):
            await client.stats()


async def test_a_closed_client_stays_closed() -> None:
    """A call that would retry after close() ends and opens no connection."""
    async with scripted([], last=problem(503, "recovering", "Retry-After: 3")) as server:
        client = RecordLogClient(server.url)
        trying = asyncio.create_task(client.list_queues())
        while not server.requests:
            await asyncio.sleep(0.001)
        await client.close()
        with pytest.raises(LogClosedError, match="client"):
            await trying
        with pytest.raises(LogClosedError, match="client"):
            await client.append_record("q", None, b"a")
        assert len(server.requests) == 1


async def test_a_closed_client_does_not_know_what_became_of_an_append() -> None:
    """The response is lost with the connection."""
    async with scripted([], last=Step(drip=True)) as server:
        client = RecordLogClient(server.url)
        appending = asyncio.create_task(client.append_record("q", 0, b"a"))
        while not server.requests:
            await asyncio.sleep(0.001)
        await client.close()
        with pytest.raises(OutcomeUnknownError):
            await appending


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_response_that_is_cut_off_at_any_byte_is_lost(chunked: bool) -> None:
    """Whatever part of it arrives: what becomes of the append is unknown, and it is not said to be refused."""
    async with cutting(chunked=chunked) as (url, cuts), RecordLogClient(url) as client:
        for _ in range(cuts):
            with pytest.raises(OutcomeUnknownError):
                await client.append("q", b"a")


async def test_a_large_response_is_whole_or_lost() -> None:
    """One that several reads receive into its place; and what follows it is not the next one."""
    body = APPENDED + b" " * (5 * SCRATCH_BYTES)
    response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    connections = list[int]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                kind = await reader.readexactly(1)
                connections[-1] += 1
                sent = {b"c": response[: -len(body) // 2], b"l": response[:-1], b"m": response + response}
                writer.write(sent.get(kind, response))
                await writer.drain()
                if kind in b"cl":
                    break
        writer.close()

    def append(client: BlockingRecordLogClient) -> None:
        for payload in (b"a", b"a", b"m", b"a"):
            assert client.append("q", payload) == 0
        for payload in (b"cut", b"last byte"):
            with pytest.raises(OutcomeUnknownError):
                client.append("q", payload)

    async with listening(serve) as url:
        async with RecordLogClient(url) as client:
            for payload in (b"a", b"a", b"m", b"a"):
                assert await client.append("q", payload) == 0
            for payload in (b"cut", b"last byte"):
                with pytest.raises(OutcomeUnknownError):
                    await client.append("q", payload)
        assert connections == [3, 2, 1]
        connections.clear()
        with BlockingRecordLogClient(url) as blocking:
            await asyncio.to_thread(append, blocking)
        assert connections == [3, 2, 1]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 44\r\nContent-Length: 43",
        b"HTTP/1.1 200 OK\r\nContent-Length: 44\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c",
        b"HTTP/1.1 200 OK\r\nX: " + bytes(10_000_000).replace(b"\0", b"x"),
        b"220 mail.example.org ESMTP",
    ],
    ids=["two lengths", "length of chunks", "another protocol", "endless head", "mail"],
)
async def test_what_is_not_one_response_is_lost(head: bytes) -> None:
    """A server or proxy that responds so may have carried out the request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"%b\r\n\r\n%b" % (head, APPENDED))
        writer.close()

    async with listening(serve) as url, RecordLogClient(url) as client:
        with pytest.raises(OutcomeUnknownError):
            await client.append("q", b"a")
        with BlockingRecordLogClient(url) as blocking, pytest.raises(OutcomeUnknownError):
            await asyncio.to_thread(blocking.append, "q", b"a")


async def test_a_client_closes_also_while_a_call_times_out() -> None:
    """In the turn in which the deadline of a call has passed, and the call does not know it yet."""
    async with scripted([], last=Step(drip=True)) as server:
        client = RecordLogClient(server.url, retry_seconds=0.0)
        reading = asyncio.create_task(client.list_queues())
        while not server.requests:
            await asyncio.sleep(0)
        transport = client.sender.transport
        assert isinstance(transport, Transport)
        (connection,) = transport._busy
        connection._end = 0.0
        connection._look()
        await client.close()
        with pytest.raises(ServiceUnreachableError):
            await reading


async def test_numbers_are_not_payloads() -> None:
    """bytes(5) would be five zero bytes."""
    async with scripted([]) as server, RecordLogClient(server.url) as client:
        with pytest.raises(TypeError):
            await client.append_record("q", None, 5)  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            await client.append_records("q", None, [b"a", 5])  # type: ignore[list-item]
        assert not server.requests


PAGE = "X-Next-Position: 1", "X-Queue-Id: 7"
HELD = QUEUE.replace(b'"next_position":0,"records":0', b'"next_position":1,"records":1')


@pytest.mark.parametrize(
    "step",
    [
        Step(body=b"<html>"),
        Step(body=b"<html>", headers=PAGE),
        Step(body=b"", headers=PAGE),
        Step(body=wire.PREAMBLE + wire.ENTRY.pack(wire.TRAILER, 0, 0, 0, 0)),
        Step(body=wire.PREAMBLE + wire.ENTRY.pack(wire.TRAILER, 0, 0, 0, 0), headers=("X-Next-Position: x", PAGE[1])),
        problem(410, "truncated"),
        problem(410, "truncated", first_position="x"),
        problem(410, "truncated", first_position=0),
    ],
)
async def test_a_read_that_makes_no_sense_is_a_service_error(step: Step) -> None:
    """A proxy's page in place of records is reported as such, and a refusal without a later position ends the read."""
    async with scripted([Step(body=HELD)], last=step) as server, RecordLogClient(server.url) as client:
        with pytest.raises(ServiceError) as caught:
            async for _ in client.range("q"):
                pass
        assert caught.value.code in ("unreadable", "truncated")
        assert len(server.requests) == 2


@pytest.mark.parametrize("body", [b'{"position":5,"records":1,"duplicate":false}', APPENDED.replace(b"1", b"2")])
async def test_the_response_to_another_append_acknowledges_nothing(body: bytes) -> None:
    """If a proxy mixes up responses, no record counts as stored, and the producer fails: the outcome is unknown."""
    async with scripted([Step(body=QUEUE)], last=Step(body=body)) as server, RecordLogClient(server.url) as client:
        async with client.producer("q") as producer:
            for _ in range(2):
                with pytest.raises(ServiceError, match="the response reports"):
                    await producer.append_record(b"a")
        assert server.methods == ["GET", "POST"]
        with pytest.raises(ServiceError, match="the response reports"):
            await client.append_record("q", 0, b"a")
