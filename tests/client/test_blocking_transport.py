"""Connections and deadlines of the blocking client, as a server sees them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mrecordlog_async import Limits, LogClosedError, RecordTooLargeError
from mrecordlog_async.client import (
    BlockingRecordLogClient,
    OutcomeUnknownError,
    RecordLogClient,
    ServiceError,
    ServiceUnreachableError,
    blocking_transport,
    connecting,
)
from mrecordlog_async.service.routes import records
from mrecordlog_async.service.wire.listening import Listener, bind_unix
from tests.certificates import make_certificate
from tests.client.scripted import APPENDED, DROP, REPEATED, Step, cutting, listening, problem, scripted
from tests.served import Served, serving
from tests.serving import TIMEOUT_SECONDS, Process

T = TypeVar("T")

QUEUE = b'{"queue":"q","id":7,"first_position":0,"next_position":0,"records":0,"bytes":0,"first_segment":null}'


async def in_thread(url: str, call: Callable[[BlockingRecordLogClient], T], **options: Any) -> T:
    def run() -> T:
        with BlockingRecordLogClient(url, **options) as client:
            return call(client)

    return await asyncio.to_thread(run)


def transport_of(client: BlockingRecordLogClient) -> blocking_transport.BlockingTransport:
    transport = client.inner.sender.transport
    assert isinstance(transport, blocking_transport.BlockingTransport)
    return transport


@pytest.fixture
def served_apart(tmp_path: Path) -> Iterator[str]:
    """The URL of a service in a separate process: this thread blocks."""
    with Process(tmp_path / "wal", []) as service:
        yield service.address


async def test_a_response_sent_byte_by_byte_ends() -> None:
    """Single bytes are not silence, but the whole response has a deadline."""
    async with scripted([], last=Step(drip=True)) as server:
        with pytest.raises(ServiceUnreachableError):
            await in_thread(server.url, lambda client: client.list_queues(), retry_seconds=0.0, response_seconds=0.1)


async def test_a_head_sent_byte_by_byte_ends() -> None:
    """So has its head."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.005)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    async with listening(drip) as url:
        with pytest.raises(ServiceUnreachableError):
            await in_thread(url, lambda client: client.list_queues(), retry_seconds=0.0, response_seconds=0.1)


async def test_a_connection_is_used_again_until_the_server_closes_it() -> None:
    """A connection that the server closed while nobody used it loses no response, even of an append sent only once."""
    connections = list[int]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        for _ in range(2):
            with suppress(asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(1)
            connections[-1] += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(APPENDED) + APPENDED)
            await writer.drain()
        writer.close()
        closed.set()

    def append(client: BlockingRecordLogClient) -> None:
        for number in range(4):
            assert client.append("q", b"a") == 0
            if number == 1:
                asyncio.run_coroutine_threadsafe(closed.wait(), loop).result(60)
                while any(each.is_quiet for each in transport_of(client)._idle):
                    time.sleep(0.001)

    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    async with listening(serve) as url:
        await in_thread(url, append)
    assert connections == [2, 2]


async def test_a_response_that_announces_another_one_is_not_the_last() -> None:
    """Proxies may send any number with a status of 1xx before the response itself."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                for head in (b"100 Continue", b"102 Processing", b"103 Early Hints\r\nLink: </a>"):
                    writer.write(b"HTTP/1.1 %b\r\n\r\n" % head)
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    def delete(client: BlockingRecordLogClient) -> None:
        for _ in range(2):
            with pytest.raises(ServiceError, match="403"):
                client.delete_queue("q")

    async with listening(serve) as url:
        await in_thread(url, delete)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_response_that_is_cut_off_at_any_byte_is_lost(chunked: bool) -> None:
    """Whatever part of it arrives: what becomes of the append is unknown, and it is not said to be refused."""
    async with cutting(chunked=chunked) as (url, cuts):

        def append(client: BlockingRecordLogClient) -> None:
            for _ in range(cuts):
                with pytest.raises(OutcomeUnknownError):
                    client.append("q", b"a")

        await in_thread(url, append)


async def test_connections_of_a_burst_are_closed_while_others_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that nobody uses are closed after `IDLE_SECONDS`, even if every later call finds a newer one."""
    now, both, closed = [0.0], asyncio.Barrier(2), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                if now == [0.0]:
                    await both.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(QUEUE), QUEUE))
        except asyncio.IncompleteReadError:
            closed.set()
        finally:
            writer.transport.abort()

    monkeypatch.setattr(blocking_transport, "clock", lambda: now[0])
    async with listening(serve) as url:
        with BlockingRecordLogClient(url) as client:
            await asyncio.gather(*(asyncio.to_thread(client.queue_summary, "q") for _ in range(2)))
            for now[0] in (10.0, 20.0):
                await asyncio.to_thread(client.queue_summary, "q")
                assert now == [20.0] or not closed.is_set()
            await asyncio.wait_for(closed.wait(), 10)


@pytest.mark.parametrize(("call", "method"), [("create_queue", "PUT"), ("delete_queue", "DELETE")])
async def test_put_and_delete_are_never_sent_twice(call: str, method: str) -> None:
    """Not even on a reused connection: the server carried the request out and dropped the connection."""

    def act(client: BlockingRecordLogClient) -> None:
        client.queue_summary("q")
        with pytest.raises(OutcomeUnknownError, match=f"{method} /v1/queues/q"):
            getattr(client, call)("q")

    async with scripted([Step(body=QUEUE), DROP]) as server:
        await in_thread(server.url, act)
        assert server.methods == ["GET", method]


async def test_an_append_with_a_position_is_sent_again() -> None:
    """After a lost response, a refusal that may pass, and what a proxy says."""
    steps = [DROP, problem(503, "recovering"), Step(502, b"<html>"), Step(body=REPEATED)]
    async with scripted(steps) as server:
        assert await in_thread(server.url, lambda client: client.append("q", b"a", 0)) is None
        assert len(server.requests) == 4


def test_a_forked_child_keeps_no_connection_of_its_parent_open() -> None:
    """Also one that was in use: the service sees its end when the parent closes it, however long the child lives."""
    reading, writing = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with BlockingRecordLogClient(url) as client:
            call = pool.submit(client.append, "q", b"a")
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(TIMEOUT_SECONDS)
                while connection.recv(65_536).rpartition(b"\r\n\r\n")[2] != b"a":
                    pass
                child = os.fork()
                if not child:
                    connection.close()
                    os.close(writing)
                    os.read(reading, 1)
                    os._exit(0)
                try:
                    connection.sendall(b"not HTTP\r\n\r\n")
                    assert connection.recv(1) == b""
                finally:
                    os.close(writing)
                    os.close(reading)
                    os.waitpid(child, 0)
            with pytest.raises(OutcomeUnknownError):
                call.result()


def test_an_error_of_a_signal_handler_is_not_one_of_the_connection() -> None:
    """A handler may raise TimeoutError while a response is awaited: the caller gets it, and nothing is sent again."""

    def handle(*_: object) -> None:
        raise TimeoutError("of a handler")

    def interrupt(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        while connection.recv(65_536).rpartition(b"\r\n\r\n")[2] != b"a":
            pass
        os.kill(os.getpid(), signal.SIGUSR1)
        ended.wait()
        connection.close()

    ended, before = threading.Event(), signal.signal(signal.SIGUSR1, handle)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=interrupt, args=[listener])
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with BlockingRecordLogClient(url) as client, pytest.raises(TimeoutError, match="of a handler"):
                client.append("q", b"a", 0)
        finally:
            signal.signal(signal.SIGUSR1, before)
            ended.set()
            thread.join()


def test_an_error_of_a_signal_handler_is_not_the_end_of_a_batch(served_apart: str) -> None:
    """A handler may raise TimeoutError while more records are awaited: the caller gets it, and loses no record."""

    def handle(*_: object) -> None:
        raise TimeoutError("of a handler")

    def interrupt() -> None:
        with BlockingRecordLogClient(served_apart) as other:
            while other.stats().tails == 0:
                pass
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=interrupt)
    try:
        with BlockingRecordLogClient(served_apart) as client:
            client.append("q", b"a", create=True)
            tail = client.tail("q")
            thread.start()
            with pytest.raises(TimeoutError, match="of a handler"):
                tail.batch(max_wait=60.0)
            batch = tail.batch(max_wait=0)
            assert batch is not None and batch.payloads() == [b"a"]
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()


async def test_a_call_that_connects_while_the_client_closes_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a record would be stored while its caller gets the error of a client that was closed before."""
    async with scripted([]) as server:
        client, connect = BlockingRecordLogClient(server.url), connecting.connect_blocking

        def closing(*arguments: Any) -> socket.socket:
            plug = connect(*arguments)
            client.close()  # as by another thread
            return plug

        monkeypatch.setattr(blocking_transport, "connect_blocking", closing)
        with pytest.raises(LogClosedError):
            await asyncio.to_thread(client.append, "q", b"a")
        assert not server.requests


async def test_the_outcome_of_a_call_during_which_the_client_closes_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a response arrives: one without a length ends where the connection was cut off."""
    async with scripted([]) as server:
        client, read = BlockingRecordLogClient(server.url), blocking_transport._SocketConnection.exchange

        def closing(connection: Any, *arguments: Any) -> Any:
            body = read(connection, *arguments)
            client.close()  # as by another thread
            return body

        monkeypatch.setattr(blocking_transport._SocketConnection, "exchange", closing)
        with pytest.raises(OutcomeUnknownError, match="the client is closed"):
            await asyncio.to_thread(client.append, "q", b"a")
        assert len(server.requests) == 1


@pytest.mark.parametrize(("user", "sent"), [("u", b"u:"), ("u:", b"u:"), ("u:p%40q", b"u:p@q"), ("u:é", b"u:\xe9")])
async def test_a_user_in_the_url_is_sent_as_by_the_asyncio_client(user: str, sent: bytes) -> None:
    """RFC 7617: a colon ends the user, even if there is no password."""
    heads = list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    async with listening(serve) as url:
        url = url.replace("//", f"//{user}@")
        async with RecordLogClient(url) as client:
            await client.delete_queue("q")
        await in_thread(url, lambda client: client.delete_queue("q"))
    header = b"\r\nAuthorization: Basic " + b64encode(sent) + b"\r\n"
    assert [header in head for head in heads] == [True, True]


async def test_a_batch_ends_at_its_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the service waits for whole seconds, here for 60: the connection that waits is given up."""
    wait_for = records._wait_for
    monkeypatch.setattr(records, "_wait_for", lambda service, request, reach, _: wait_for(service, request, reach, 60))

    def read(client: BlockingRecordLogClient) -> None:
        client.append("q", b"a")
        tail = client.tail("q")
        begun = time.monotonic()
        batch = tail.batch(max_wait=0.05)
        assert batch is not None and batch.payloads() == [b"a"]
        assert time.monotonic() - begun < 30
        client.append("q", b"b")
        batch = tail.batch(max_records=1)
        assert batch is not None and batch.payloads() == [b"b"]

    await in_thread(served.url, read)


async def test_a_refusal_before_the_whole_body_has_arrived_is_received(directory: Path) -> None:
    """A service that does not want a body closes the connection, while the client still sends."""
    async with serving(directory, limits=Limits(record_bytes=1_000)) as served:
        with pytest.raises(RecordTooLargeError, match="50000000 bytes exceed record_bytes"):
            await in_thread(served.url, lambda client: client.append("q", bytes(50_000_000), create=True))


async def test_waiting_for_a_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait counts towards retry_seconds; the error says that all connections of the client are in use."""
    monkeypatch.setattr(blocking_transport, "CONNECT_SECONDS", 0.05)
    async with scripted([Step(drip=True)]) as server:

        def call(client: BlockingRecordLogClient) -> None:
            transport_of(client)._slots.pop()  # as by another thread
            with pytest.raises(
                ServiceUnreachableError, match="none of the client's 1 connections became free"
            ) as caught:
                client.append("q", b"a")
            assert not caught.value.sent

        await in_thread(server.url, call, connections=1, retry_seconds=0.05)
        assert not server.requests


def test_many_threads_share_few_connections(served_apart: str) -> None:
    """Each that becomes free wakes one of those that wait, until all have had one."""
    with BlockingRecordLogClient(served_apart, connections=2) as client, ThreadPoolExecutor(16) as pool:
        client.create_queue("shared")
        positions = pool.map(lambda number: client.append("shared", b"%d" % number), range(800))
        assert sorted(positions) == list(range(800))


def test_times_may_be_infinite(served_apart: str) -> None:
    """As for the asyncio client: a call waits for a connection, and for its response, for as long as it takes."""
    ever = float("inf")
    with BlockingRecordLogClient(
        served_apart, retry_seconds=ever, timeout_seconds=ever, response_seconds=ever, connections=1
    ) as client:
        assert client.append("q", b"a", create=True) == 0
        batch = client.tail("q").batch(max_records=1, timeout=ever)
        assert batch is not None and batch.payloads() == [b"a"]


async def test_a_unix_socket_works_like_a_host(served: Served, tmp_path: Path) -> None:
    """A path without a socket is a service that cannot be reached."""
    path = tmp_path / "socket"
    listener = Listener([bind_unix(str(path))], served.connections)
    assert await in_thread(f"unix:{path}", lambda client: client.append("q", b"a")) == 0
    listener.close()
    with pytest.raises(ServiceUnreachableError, match="no such file or directory"):
        await in_thread(f"unix:{tmp_path}/nothing", lambda client: client.list_queues(), retry_seconds=0.0)


async def test_a_unix_socket_without_room_for_a_connection_gets_no_request(tmp_path: Path) -> None:
    """Connecting fails at once where the service does not accept as fast as clients come: nothing was sent."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other:
        listener.bind(path)
        listener.listen(0)
        other.connect(path)
        async with RecordLogClient(f"unix:{path}", retry_seconds=0.0) as client:
            with pytest.raises(ServiceUnreachableError) as refused:
                await client.append("q", b"a")
            assert not refused.value.sent
        with pytest.raises(ServiceUnreachableError) as refused:
            await in_thread(f"unix:{path}", lambda client: client.append("q", b"a"), retry_seconds=0.0)
        assert not refused.value.sent


async def test_the_path_of_a_url_is_percent_encoded() -> None:
    """A URL is written as people read it; a request line holds ASCII without spaces."""
    async with scripted([Step()]) as server:
        assert await in_thread(f"{server.url}/my späße", lambda client: client.append("a/b", b"a")) == 0
        assert server.requests[0][0].split()[1] == "/my%20sp%C3%A4%C3%9Fe/v1/queues/a%2Fb/records"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_https_checks_the_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the system does not trust ends the call; nothing was sent."""
    cert, key = make_certificate(tmp_path)
    with Process(tmp_path / "wal", ["--tls-cert", str(cert), "--tls-key", str(key)], scheme="https") as service:
        with BlockingRecordLogClient(service.address, retry_seconds=0.0) as client:
            with pytest.raises(ServiceUnreachableError, match="certificate verify failed") as refused:
                client.append("q", b"a", create=True)
            assert not refused.value.sent
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        with BlockingRecordLogClient(service.address) as client:
            assert [client.append("q", b"a", create=True), client.append("q", b"b")] == [0, 1]


async def test_a_success_that_is_not_the_services_is_an_error() -> None:
    """A proxy's login page is not accepted as a response."""
    async with scripted([], last=Step(body=b"<html>")) as server:
        with pytest.raises(ServiceError, match="not a response of this service"):
            await in_thread(server.url, lambda client: list(client.range("q")))
