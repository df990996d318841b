"""Connections, deadlines and responses of both clients, as a server sees them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import Limits, LogClosedError, RecordTooLargeError
from mrecordlog_async.client import (
    OutcomeUnknownError,
    RecordLogClient,
    ServiceError,
    ServiceUnreachableError,
    blocking_transport,
    connecting,
    pool,
    transport,
)
from mrecordlog_async.client.http1 import SCRATCH_BYTES
from mrecordlog_async.options import MIB
from mrecordlog_async.protocol import wire
from mrecordlog_async.service.listening import bind_unix
from tests.certificates import make_certificate
from tests.client.faces import Face, InThreads, faces, outcome
from tests.client.scripted import APPENDED, DRIP_BODY, DRIP_HEAD, DROP, QUEUE, Step, problem, scripted
from tests.served import Served, running, serving
from tests.serving import Process

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0%x\r\n%b\r\n0\r\n\r\n" % (len(APPENDED), APPENDED)
"""Some proxies write zeros before the length of a chunk."""


# How many, and which one is used.


@faces
async def test_quiet_tails_do_not_stop_other_calls(face: Face, served: Served) -> None:
    """As many tails as the client has connections: appends go through, and every tail gets its record."""
    async with face(served.url, connections=2) as client:
        waiting = [asyncio.ensure_future(client.tail("q").batch(max_wait=0)) for _ in range(2)]
        while served.service.tails < 2:
            await asyncio.sleep(0.001)
        assert await client.append("q", b"a") == 0
        assert [batch.payloads() for batch in await asyncio.gather(*waiting)] == [[b"a"]] * 2


async def test_callers_share_connections_in_the_order_they_came() -> None:
    """A caller that sends again at once does not overtake those that wait for a connection."""
    async with scripted([]) as server, RecordLogClient(server.url, connections=1) as client:

        async def hurry(name: bytes) -> None:
            for _ in range(20):
                await client.append_record("q", None, name)

        await asyncio.gather(hurry(b"a"), hurry(b"b"), hurry(b"c"))
        assert b"".join(body for _, body in server.requests) == b"abc" * 20


@faces
async def test_waiting_for_a_connection_ends(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait counts towards retry_seconds; the error says that all connections of the client are in use."""
    async with scripted([Step(silent=True)]) as server, face(server.url, connections=1, retry_seconds=0.05) as client:
        blocking = asyncio.ensure_future(client.list_queues())
        while not server.requests:
            await asyncio.sleep(0.001)
        for module in (transport, blocking_transport):
            monkeypatch.setattr(module, "CONNECT_SECONDS", 0.05)
        with pytest.raises(ServiceUnreachableError, match="none of the client's 1 connections became free") as caught:
            await client.append("q", b"a")
        assert not caught.value.sent and len(server.requests) == 1
        await client.close()
        await asyncio.gather(blocking, return_exceptions=True)


@faces
@pytest.mark.parametrize("header", ["X: y", "Connection: close"])
async def test_a_connection_is_used_again_unless_the_server_gives_it_up(face: Face, header: str) -> None:
    """So says the response."""
    async with scripted([], last=Step(headers=(header,))) as server, face(server.url) as client:
        for _ in range(3):
            assert await client.append("q", b"a") == 0
    assert server.connections == ([3] if header == "X: y" else [1] * 3)


@faces
async def test_a_connection_with_more_than_the_response_is_not_used_again(face: Face) -> None:
    """What nobody asked for would be taken for the next response."""
    async with scripted([], last=Step(more=b"HTTP/1.1 200 OK")) as server, face(server.url) as client:
        for _ in range(2):
            assert await client.append("q", b"a") == 0
    assert server.connections == [1, 1]


@faces
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
async def test_a_refusal_arrives_though_nobody_reads_the_rest_of_the_body(
    face: Face, secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may respond so and leave the connection open, which is not used again: half a request is on it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if secure:
        cert, key = await asyncio.to_thread(make_certificate, tmp_path)
        context.load_cert_chain(cert, key)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    refusal = Step(413, b"", early=True)
    async with scripted([], last=refusal, tls=context if secure else None) as server, face(server.url) as client:
        for _ in range(2):
            refused = await outcome(client.append("q", bytes(50_000_000)))
            assert isinstance(refused, ServiceError) and "client_max_body_size" in str(refused)
    assert server.connections == [1, 1]


@faces
async def test_a_refusal_before_the_whole_body_has_arrived_is_received(face: Face, directory: Path) -> None:
    """A service that does not want a body closes the connection, while the client still sends."""
    async with serving(directory, limits=Limits(record_bytes=1_000)) as served, face(served.url) as client:
        with pytest.raises(RecordTooLargeError, match="50000000 bytes exceed record_bytes"):
            await client.append("q", bytes(50_000_000), create=True)


@faces
async def test_a_connection_that_idles_for_long_is_closed(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """Services and proxies close theirs after a longer time, and an append on it would be lost."""
    async with scripted([]) as server, face(server.url) as client:
        assert await client.append("q", b"a") == 0
        monkeypatch.setattr(pool, "IDLE_SECONDS", -1.0)  # later than that, whatever the clock says
        assert await client.append("q", b"a") == 0
        assert server.connections == [1, 1]
        await outcome(server.closed.wait())


@faces
async def test_an_idle_connection_that_the_service_has_closed_is_not_used(face: Face) -> None:
    """Even an append that is sent only once gets its response."""
    closing = Step(raw=Step().response)
    async with scripted([Step(), closing]) as server, face(server.url) as client:
        for number in range(4):
            assert await client.append("q", b"a") == 0
            if number == 1:
                await until_closed(client)
    assert server.connections == [2, 2]


async def until_closed(client: Any) -> None:
    """Wait until *client* can see that its idle connection was closed."""
    inner = client.inner if isinstance(client, InThreads) else client
    while any(each.is_quiet for each in inner.sender.transport._idle):
        await asyncio.sleep(0.001)


@faces
async def test_a_connection_that_is_closed_as_a_read_is_sent_costs_no_attempt(face: Face) -> None:
    """Between the look at the connection and the request, nobody can see that: the read is sent again at once."""
    async with scripted([QUEUE, DROP, QUEUE]) as server, face(server.url, retry_seconds=0.0) as client:
        for _ in range(2):
            assert await outcome(client.next_position("q")) == 0
    assert server.methods == ["GET"] * 3


@faces
@pytest.mark.parametrize(
    ("steps", "count"),
    [
        pytest.param([DROP], 1, id="a new connection"),
        pytest.param([QUEUE, DROP, DROP], 3, id="the new one of the same call"),
        pytest.param([QUEUE, Step(raw=b"HTTP/1.1 200 OK\r\n"), QUEUE], 2, id="one with a byte of a response"),
    ],
)
async def test_another_connection_that_is_closed_costs_an_attempt(face: Face, steps: list[Step], count: int) -> None:
    """It was not idle, so the request has arrived, or may have."""
    async with scripted(steps, last=QUEUE) as server, face(server.url, retry_seconds=0.0) as client:
        with pytest.raises(ServiceUnreachableError):
            for _ in range(2):
                await client.next_position("q")
        assert server.methods == ["GET"] * count


@faces
@pytest.mark.parametrize(("call", "method"), [("create_queue", "PUT"), ("delete_queue", "DELETE")])
async def test_put_and_delete_are_never_sent_twice(face: Face, call: str, method: str) -> None:
    """Not even on an idle connection: the server may have carried the request out before it closed that."""
    async with scripted([QUEUE, DROP]) as server, face(server.url) as client:
        await client.queue_summary("q")
        with pytest.raises(OutcomeUnknownError, match=f"{method} /v1/queues/q"):
            await getattr(client, call)("q")
    assert server.methods == ["GET", method]


# How long.


@faces
@pytest.mark.parametrize("step", [DRIP_HEAD, DRIP_BODY, Step(silent=True)], ids=["head", "body", "silence"])
async def test_a_response_that_does_not_end_has_a_deadline(face: Face, step: Step) -> None:
    """Single bytes are not silence, but the whole response has a deadline; and silence has its own."""
    deadline = {"timeout_seconds" if step.silent else "response_seconds": 0.1}
    async with scripted([], last=step) as server, face(server.url, retry_seconds=0.0, **deadline) as client:
        read, appended = await outcome(client.list_queues()), await outcome(client.append("q", b"a"))
        assert isinstance(read, ServiceUnreachableError) and read.sent
        assert isinstance(appended, OutcomeUnknownError)
        assert all("the response took too long" in str(error) for error in (read, appended))


@faces
async def test_a_long_poll_may_be_silent_for_as_long_as_it_waits(
    face: Face, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadlines of a call neither cut a poll that waits for records nor end the tail."""
    monkeypatch.setattr("mrecordlog_async.client.tail.WAIT_SECONDS", 1)
    async with face(served.url, timeout_seconds=0.9, response_seconds=0.9, retry_seconds=0.1) as client:
        waiting = asyncio.ensure_future(client.tail("q").batch(max_wait=0))
        before = served.service.requests
        while served.service.requests < before + 2:  # one poll ended without a record
            assert not waiting.done()
            await asyncio.sleep(0.01)
        await served.log.append_record("q", None, b"a")
        assert (await waiting).payloads() == [b"a"]


@faces
async def test_times_may_be_infinite(face: Face, served: Served) -> None:
    """A call waits for a connection, and for its response, for as long as it takes."""
    ever = float("inf")
    options = {"retry_seconds": ever, "timeout_seconds": ever, "response_seconds": ever}
    async with face(served.url, connections=1, **options) as client:
        assert await client.append("q", b"a") == 0
        assert (await client.tail("q").batch(max_records=1, timeout=ever)).payloads() == [b"a"]


# What is sent.


@faces
@pytest.mark.parametrize("prefix", ["my späße", "my%20sp%C3%A4%C3%9Fe", "my%20späße/"])
async def test_the_path_of_a_url_is_percent_encoded(face: Face, prefix: str) -> None:
    """A URL is written as people read it; a request line holds ASCII without spaces."""
    async with scripted([Step()]) as server, face(f"{server.url}/{prefix}") as client:
        assert await client.append("a/b", b"a") == 0
        assert server.requests[0][0].split()[1] == "/my%20sp%C3%A4%C3%9Fe/v1/queues/a%2Fb/records"


@faces
@pytest.mark.parametrize(
    ("user", "token", "sent"),
    [
        ("", "0123456789abcdef", b"Bearer 0123456789abcdef"),
        ("u@", None, b"Basic " + b64encode(b"u:")),
        ("u:@", None, b"Basic " + b64encode(b"u:")),
        ("u:p%40q@", None, b"Basic " + b64encode(b"u:p@q")),
        ("u:é@", None, b"Basic " + b64encode(b"u:\xe9")),
    ],
)
async def test_every_request_says_who_sends_it(face: Face, user: str, token: str | None, sent: bytes) -> None:
    """RFC 7617: a colon ends the user, even if there is no password. The header Host has neither."""
    async with scripted([]) as server, face(server.url.replace("//", f"//{user}"), token=token) as client:
        await client.append("q", b"a")
        assert b"\r\nAuthorization: " + sent + b"\r\n" in server.heads[0]
        assert b"\r\nHost: " + server.url.removeprefix("http://").encode() + b"\r\n" in server.heads[0]


# What is received.


@faces
@pytest.mark.parametrize("response", [Step().response, CHUNKED], ids=["length", "chunked"])
async def test_a_response_that_is_cut_off_at_any_byte_is_lost(face: Face, response: bytes) -> None:
    """Whatever part of it arrives: what becomes of the append is unknown, and it is not said to be refused."""
    cuts = [DROP, *(Step(raw=response[:end]) for end in range(1, len(response)))]
    async with scripted(cuts, last=Step(raw=response)) as server, face(server.url) as client:
        for _ in cuts:
            with pytest.raises(OutcomeUnknownError):
                await client.append("q", b"a")
        assert await client.append("q", b"a") == 0
        assert len(server.requests) == len(cuts) + 1


@faces
async def test_a_large_response_is_whole_or_lost(face: Face) -> None:
    """One that several reads receive into its place; and what follows it is not the next one."""
    large = Step(body=APPENDED + b" " * (5 * SCRATCH_BYTES))
    cuts = [Step(raw=large.response[: -len(large.body) // 2]), Step(raw=large.response[:-1])]
    followed = Step(body=large.body, more=large.response)
    async with scripted([large, large, followed, large, *cuts]) as server, face(server.url) as client:
        for _ in range(4):
            assert await client.append("q", b"a") == 0
        for _ in cuts:
            with pytest.raises(OutcomeUnknownError):
                await client.append("q", b"a")
    assert server.connections == [3, 2, 1]


@faces
@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 44\r\nContent-Length: 43",
        b"HTTP/1.1 200 OK\r\nContent-Length: 44\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000_000,
        b"220 mail.example.org ESMTP",
    ],
    ids=["two lengths", "length of chunks", "another protocol", "endless head", "mail"],
)
async def test_what_is_not_one_response_is_lost(face: Face, head: bytes) -> None:
    """A server or proxy that responds so may have carried out the request."""
    step = Step(raw=head + b"\r\n\r\n" + APPENDED)
    async with scripted([], last=step) as server, face(server.url) as client:
        with pytest.raises(OutcomeUnknownError):
            await client.append("q", b"a")


@faces
async def test_a_response_that_announces_another_one_is_not_the_last(face: Face) -> None:
    """Proxies may send any number with a status of 1xx before the response itself."""
    announced = b"".join(
        b"HTTP/1.1 %b\r\n\r\n" % head for head in (b"100 Continue", b"102 Processing", b"103 Early Hints\r\nLink: </a>")
    )
    step = Step(raw=announced + Step(403, b"", ("Connection: close",)).response)
    async with scripted([], last=step) as server, face(server.url) as client:
        for _ in range(2):
            with pytest.raises(ServiceError, match="403"):
                await client.delete_queue("q")


@faces
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_refused(face: Face, status: int) -> None:
    """A redirected append would become a GET, or reach another service; the error names the address."""
    step = Step(status, b"", ("Location: http://127.0.0.1:1/elsewhere",))
    async with scripted([step]) as server, face(server.url) as client:
        with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:1/elsewhere"):
            await client.append("q", b"a")
        assert len(server.requests) == 1


@faces
async def test_a_success_that_is_not_the_services_is_an_error(face: Face) -> None:
    """A proxy's login page is not accepted as a response."""
    async with scripted([], last=Step(body=b"<html>")) as server, face(server.url) as client:
        for call in (client.append("q", b"a", 0), client.stats()):
            with pytest.raises(ServiceError, match="not a response of this service"):
                await call


PAGE = "X-Next-Position: 1", "X-Queue-Id: 7"
HELD = Step(body=QUEUE.body.replace(b'"next_position":0,"records":0', b'"next_position":1,"records":1'))


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
    async with scripted([HELD], last=step) as server, RecordLogClient(server.url) as client:
        with pytest.raises(ServiceError) as caught:
            async for _ in client.range("q"):
                pass
        assert caught.value.code in ("unreadable", "truncated")
        assert len(server.requests) == 2


@pytest.mark.parametrize("body", [b'{"position":5,"records":1,"duplicate":false}', APPENDED.replace(b"1", b"2")])
async def test_the_response_to_another_append_acknowledges_nothing(body: bytes) -> None:
    """If a proxy mixes up responses, no record counts as stored, and the producer fails: the outcome is unknown."""
    async with scripted([QUEUE], last=Step(body=body)) as server, RecordLogClient(server.url) as client:
        async with client.producer("q") as producer:
            for _ in range(2):
                with pytest.raises(ServiceError, match="the response reports"):
                    await producer.append_record(b"a")
        assert server.methods == ["GET", "POST"]
        with pytest.raises(ServiceError, match="the response reports"):
            await client.append_record("q", 0, b"a")


# Closing.


@faces
async def test_a_closed_client_stays_closed(face: Face) -> None:
    """A call that would retry after close() ends and opens no connection."""
    async with scripted([], last=problem(503, "recovering", "Retry-After: 3")) as server, face(server.url) as client:
        trying = asyncio.ensure_future(client.list_queues())
        while not server.requests:
            await asyncio.sleep(0.001)
        for call in (client.close(), client.close()):
            await call
        for call in (trying, client.append("q", b"a")):
            with pytest.raises(LogClosedError, match="the client is closed"):
                await call
        assert len(server.requests) == 1


@faces
async def test_a_closed_client_does_not_know_what_became_of_an_append(face: Face) -> None:
    """The response is lost with the connection. Of one that waits for a connection, nothing was sent."""
    async with scripted([], last=Step(silent=True)) as server, face(server.url, connections=1) as client:
        appending = asyncio.ensure_future(client.append("q", b"a", 0))
        while not server.requests:
            await asyncio.sleep(0.001)
        waiting = asyncio.ensure_future(client.append("q", b"b", 1))
        await asyncio.sleep(0.01)  # whether it waits already or not
        await client.close()
        assert isinstance(await outcome(appending), OutcomeUnknownError)
        assert isinstance(await outcome(waiting), LogClosedError)
        assert len(server.requests) == 1


async def test_a_client_closes_also_while_a_call_times_out() -> None:
    """In the turn in which the deadline of a call has passed, and the call does not know it yet."""
    async with scripted([], last=Step(silent=True)) as server:
        client = RecordLogClient(server.url, retry_seconds=0.0)
        reading = asyncio.create_task(client.list_queues())
        while not server.requests:
            await asyncio.sleep(0)
        assert isinstance(client.sender.transport, transport.Transport)
        (connection,) = client.sender.transport._busy
        connection._end = 0.0
        connection._look()
        await client.close()
        with pytest.raises(ServiceUnreachableError):
            await reading


@faces
async def test_a_call_that_connects_while_the_client_closes_sends_nothing(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a record would be stored while its caller gets the error of a client that was closed before."""
    of_threads, of_tasks = connecting.connect_blocking, connecting.connect

    def connect_blocking(*place: Any) -> socket.socket:
        client.blocking.close()
        return of_threads(*place)

    async def connect(*place: Any) -> socket.socket:
        await client.close()
        return await of_tasks(*place)

    monkeypatch.setattr(blocking_transport, "connect_blocking", connect_blocking)
    monkeypatch.setattr(connecting, "connect", connect)
    async with scripted([]) as server, face(server.url) as client:
        with pytest.raises(LogClosedError):
            await client.append("q", b"a")
        assert not server.requests


async def test_the_outcome_of_a_call_during_which_the_client_closes_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a response arrives: one without a length ends where another thread has cut it off."""
    receive = blocking_transport._SocketConnection._receive

    def closing(*arguments: Any) -> None:
        receive(*arguments)
        client.blocking.close()

    monkeypatch.setattr(blocking_transport._SocketConnection, "_receive", closing)
    async with scripted([]) as server, InThreads(server.url) as client:
        with pytest.raises(OutcomeUnknownError, match="the client is closed"):
            await client.append("q", b"a")
        assert len(server.requests) == 1


# TLS and Unix sockets.


@faces
async def test_https_checks_the_certificate(face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the system does not trust ends the call; nothing was sent. Large records go both ways."""
    cert, key = await asyncio.to_thread(make_certificate, tmp_path)
    service = Process(tmp_path / "wal", ["--tls-cert", str(cert), "--tls-key", str(key)], scheme="https")
    await asyncio.to_thread(service.__enter__)
    try:
        async with face(service.address, retry_seconds=0.0) as client:
            with pytest.raises(ServiceUnreachableError, match="certificate verify failed") as refused:
                await client.append("q", b"a", create=True)
            assert not refused.value.sent
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        large = [bytes([number]) * 3_000_000 for number in range(3)]
        async with face(service.address) as client:
            assert await client.append("q", large[0], create=True) == 0
            assert await client.append_records("q", None, large[1:]) == 2
            batch = await client.tail("q").batch(max_bytes=10_000_000, max_wait=0)
            assert batch.payloads() == large
    finally:
        await asyncio.to_thread(service.kill)


@faces
async def test_a_unix_socket_works_like_a_host(face: Face, served: Served, tmp_path: Path) -> None:
    """A path without a socket is a service that cannot be reached."""
    path = tmp_path / "socket"
    async with running(served.service, [bind_unix(str(path))]), face(f"unix:{path}") as client:
        assert await client.append("q", bytes(MIB)) == 0
    async with face(f"unix:{tmp_path}/nothing", retry_seconds=0.0) as client:
        with pytest.raises(ServiceUnreachableError, match="no such file or directory"):
            await client.list_queues()


@faces
async def test_a_unix_socket_without_room_for_a_connection_gets_no_request(face: Face, tmp_path: Path) -> None:
    """Connecting fails at once where the service does not accept as fast as clients come: nothing was sent."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other:
        listener.bind(path)
        listener.listen(0)
        other.connect(path)
        async with face(f"unix:{path}", retry_seconds=0.0) as client:
            with pytest.raises(ServiceUnreachableError) as refused:
                await client.append("q", b"a")
            assert not refused.value.sent
