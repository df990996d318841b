"""Hostile and broken clients, on one raw socket each: they get a response or are cut, and the service keeps running."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from mrecordlog_async.service.bodies import _RateClock
from mrecordlog_async.service.connections import PIECE_BYTES
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.security import LOOPBACK_HOSTS, host_name
from mrecordlog_async.service.watching.watch import watch
from mrecordlog_async.support.heap import resident_bytes
from tests.cached_files import CachedFiles
from tests.served import Served, serving

TOKEN = "0123456789abcdef0123456789abcdef"
HEAD = b"POST /v1/queues/q/records HTTP/1.1\r\nHost: x\r\n"


class Raw:
    """A connection that sends exactly what it is given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        """Read a response and return its status, 0 if the connection was cut instead."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0
        return int(head.split()[1])

    async def is_cut(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def raw(served: Served) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


async def ask(served: Served, request: bytes) -> int:
    async with raw(served) as connection:
        await connection.send(request)
        return await connection.status()


async def still_answers(served: Served) -> bool:
    return (await served.call("GET", "/healthz")).status == 200


# Time: slow clients are cut. The tests call the sweep with their own clock, so nothing waits.


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Half"], ids=["silent", "half headers"])
async def test_a_connection_without_a_request_is_cut(served: Served, sent: bytes) -> None:
    """A whole request head must arrive within ten seconds, however little of it has arrived."""
    now = asyncio.get_running_loop().time()
    async with raw(served) as connection:
        await connection.send(sent)
        while not served.connections.known:
            await asyncio.sleep(0.001)
        served.connections.sweep(now)
        served.connections.sweep(now + 9)
        assert served.connections.counts.cut == 0
        served.connections.sweep(now + 10)
        assert await connection.is_cut()
    assert await still_answers(served)


async def test_dripping_headers_do_not_win_time(served: Served) -> None:
    """The deadline is for the whole head; single bytes do not move it."""
    now = asyncio.get_running_loop().time()
    async with raw(served) as connection:
        for second, byte in enumerate(b"GET / HTTP"):
            await connection.send(bytes([byte]))
            while not served.connections.known:
                await asyncio.sleep(0.001)
            served.connections.sweep(now + second)
        served.connections.sweep(now + 10)
        assert await connection.is_cut()


@pytest.mark.parametrize(
    "behind",
    [b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"this is no HTTP\r\n\r\n", HEAD + b"Content-Length: 3\r\n\r\nabc"],
    ids=["no body", "no HTTP", "a body"],
)
async def test_connections_are_watched_while_requests_wait_for_another(served: Served, behind: bytes) -> None:
    """Requests sent after a long poll wait, and the deadlines of other connections still hold."""
    now = asyncio.get_running_loop().time()
    async with raw(served) as polling, raw(served):
        await polling.send(b"GET /v1/queues/q/records?wait=30 HTTP/1.1\r\nHost: x\r\n\r\n")
        while not served.service.tails or len(served.connections.known) < 2:
            await asyncio.sleep(0.001)
        await polling.send(behind)
        while not any(connection.held for connection in served.connections.known.values()):
            await asyncio.sleep(0.001)
        served.connections.sweep(now)
        assert served.connections.counts.unread_bytes == len(behind)
        served.connections.sweep(now + 10)
        assert served.connections.counts.cut == 1


@pytest.mark.parametrize(
    ("head", "body"),
    [(b"Content-Length: 5\r\n\r\nab", b"cde"), (b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", b"cde\r\n0\r\n\r\n")],
    ids=["a length", "chunks"],
)
async def test_what_follows_a_body_in_its_packet_is_counted(served: Served, head: bytes, body: bytes) -> None:
    """It waits outside of aiohttp, which would make requests of it: each holds a hundred times its bytes."""
    get = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    poll = b"GET /v1/queues/q/records?start=1&wait=30 HTTP/1.1\r\nHost: x\r\n\r\n"
    async with raw(served) as connection:
        await connection.send(b"POST /v1/queues/q/records HTTP/1.1\r\nHost: x\r\n" + head)
        while not served.connections.known or not next(iter(served.connections.known.values())).requests:
            await asyncio.sleep(0)
        (one,) = served.connections.known.values()
        one.data_received(body + poll + get * 2_000)
        while not served.service.tails:
            await asyncio.sleep(0.001)
        assert one.unread() >= len(get) * 2_000 - 2 * PIECE_BYTES
        await served.log.append("q", b"f")
        for _ in range(2_000):
            await connection.reader.readuntil(b'"alive"')
        assert [record.payload for record in served.log.range("q")] == [b"abcde", b"f"]


async def test_a_head_that_comes_in_pieces_after_another_request_is_not_large(served: Served) -> None:
    """What arrived while that one was served waits, and is counted by its bytes."""
    async with raw(served) as connection:
        await connection.send(b"GET /v1/queues/q/records?wait=30 HTTP/1.1\r\nHost: x\r\n\r\n")
        while not served.service.tails:
            await asyncio.sleep(0.001)
        (one,) = served.connections.known.values()
        await connection.send(b"G")
        while not one.held:
            await asyncio.sleep(0.001)
        await served.log.append("q", b"a")
        assert await connection.status() == 200
        while one.held:
            await asyncio.sleep(0.001)
        for byte in b"ET /healthz HTTP/1.1\r\nHost: x\r\n":
            before = one.unclaimed
            await connection.send(bytes([byte]))
            while one.unclaimed == before:
                await asyncio.sleep(0)
                served.connections.sweep(asyncio.get_running_loop().time() + 1)
                assert not one.refused
        await connection.send(b"\r\n")
        assert b"200 OK" in await connection.reader.readuntil(b'"alive"')


async def test_an_error_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in one second is logged, and everything is checked again in the next."""
    monkeypatch.setattr("mrecordlog_async.service.watching.watch.CHECK_SECONDS", 0.0)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        raise RuntimeError("a mistake")

    watching = asyncio.create_task(watch(look))
    while looks < 3 and not watching.done():
        await asyncio.sleep(0.001)
    assert not watching.done()
    watching.cancel()
    assert "watching the service failed" in caplog.text


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Half"], ids=["silent", "half headers"])
async def test_an_idle_connection_is_cut_later(served: Served, sent: bytes) -> None:
    """Between requests a connection may be idle for 75 seconds; the beginning of the next request wins no time."""
    now = asyncio.get_running_loop().time()
    async with raw(served) as connection:
        await connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await connection.status() == 200
        await connection.reader.readexactly(len(b'{"status":"alive"}'))
        served.connections.sweep(now)
        (one,) = served.connections.known.values()
        for number in range(len(sent)):
            await connection.send(sent[number : number + 1])
            while one.unclaimed <= number:
                await asyncio.sleep(0)
            served.connections.sweep(now + number)
        served.connections.sweep(now + 74)
        assert served.connections.counts.cut == 0
        served.connections.sweep(now + 75)
        assert await connection.is_cut()


async def test_a_refused_request_whose_client_reads_nothing_is_cut(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body never arrives whole, and a rest of the response cannot be sent: the connection still ends."""
    monkeypatch.setattr("mrecordlog_async.service.http.LINGER_SECONDS", 0.0)
    now = asyncio.get_running_loop().time()
    async with serving(directory) as served:
        await served.log.create_queue("q")
        await served.log.append_record("q", None, b"x" * 30_000)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect(("127.0.0.1", served.port))
            while not served.connections.known:
                await asyncio.sleep(0.001)
            (connection,) = served.connections.known.values()
            while not connection.transport.get_write_buffer_size():  # what is left of one response is no reason to wait
                begun = connection.requests
                client.sendall(b"GET /v1/queues/q/records?limit=1 HTTP/1.1\r\nHost: x\r\n\r\n")
                while connection.requests == begun or connection.content is not None:
                    await asyncio.sleep(0.001)
            client.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\nhalf")
            while not connection.transport.is_closing():
                await asyncio.sleep(0.001)
            served.connections.sweep(now)
            served.connections.sweep(now + 1)
            assert served.connections.known
            served.connections.sweep(now + 76)
            assert not served.connections.known


@pytest.mark.parametrize(
    "sent",
    [b"Content-Length: 3000000\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"],
    ids=["half body", "chunks that stop"],
)
async def test_half_a_body_is_408_and_cut(directory: Path, sent: bytes) -> None:
    """A body slower than the minimum rate is 408, and nothing of it is stored or kept."""
    async with serving(directory, ServiceOptions(body_seconds=0.05)) as served:
        await served.log.create_queue("q")
        async with raw(served) as connection:
            await connection.send(HEAD + sent)
            assert await connection.status() == 408
        assert served.log.next_position("q") == 0
        assert served.service.bodies.budget.used == 0


@pytest.mark.parametrize(
    "chunks",
    [b"zz\r\nabc\r\n", b"3\r\nabcdef\r\n0\r\n\r\n", b"-1\r\nabc", b"f" * 21 + b"\r\nabc"],
    ids=["no number", "longer than its size", "negative", "above 64 bits"],
)
async def test_a_malformed_chunk_is_refused_soon(directory: Path, chunks: bytes) -> None:
    """Nothing of the body is stored. aiohttp tells nobody of such a chunk before the body has ended."""
    async with serving(directory, ServiceOptions(body_seconds=3_600.0)) as served:
        await served.log.create_queue("q")
        for before, more in ((b"", b""), (b"2\r\nab\r\n", b""), (b"", b"x" * 200_000)):
            begun = served.service.requests
            async with raw(served) as connection:
                await connection.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
                while served.service.requests == begun:
                    await asyncio.sleep(0.001)
                await connection.send(before + chunks + more)
                assert await connection.status() == 400
        while served.service.bodies.budget.used:  # what the client still sends is discarded for a while
            await asyncio.sleep(0.01)
        assert served.log.next_position("q") == 0
        assert (await served.call("POST", "/v1/queues/q/records", b"next")).status == 200


async def test_a_body_that_pauses_is_not_taken_for_a_malformed_one(served: Served) -> None:
    """Wherever it pauses: in the line of a size, between two bytes of data, before its end, and in any encoding."""
    chunked = b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nabcde\r\n1\r\nf\r\n0\r\nX: y\r\n\r\n"
    for request in (HEAD + chunked, HEAD + b"Content-Length: 6\r\n\r\nabcdef"):
        async with raw(served) as connection:
            for at in range(len(HEAD), len(request)):
                await connection.send(request[:at] if at == len(HEAD) else request[at - 1 : at])
                for _ in range(5):
                    await asyncio.sleep(0)
                for _ in range(3):
                    served.connections.check()
            await connection.send(request[-1:])
            assert await connection.status() == 200
    assert [record.payload for record in served.log.range("q")] == [b"abcdef"] * 2


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([(1, 4 << 20)], "the body paused for 10 s after 4194304 bytes; send it without pauses of that length"),
        ([(9, 1)], "the body arrived too slowly: 1 bytes in the last 19 s, after 0 bytes before; "),
        ([(1, 4 << 20), (9, 1)], "the body arrived too slowly: 1 bytes in the last 18 s, after 4194304 bytes before; "),
    ],
    ids=["pause", "rate", "rate of its end"],
)
async def test_a_408_says_what_was_too_slow(pieces: list[tuple[int, int]], why: str) -> None:
    """A client whose body came fast and then paused gets no advice to send more bytes per second.

    What came fast gives no credit for later: then the numbers are those of what came slowly.
    """
    clock = _RateClock(ServiceOptions())
    begun = clock._late_since
    for arrived_at, size in pieces:
        clock._now = partial(float, begun + arrived_at)
        clock.arrived(size)
    clock._now = lambda: begun + pieces[-1][0] + 10.0
    rate = "" if "paused" in why else "send at least 65536 bytes per second"
    assert clock.detail(sum(size for _, size in pieces)) == why + rate


# Size and number.


async def test_a_malformed_chunk_after_the_response_gets_no_second_one(served: Served) -> None:
    """The client has been refused already: a second head would look like the response to another request."""
    async with raw(served) as connection:
        await connection.send(HEAD + b"X-Log-Id: other\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert await connection.status() == 412
        await connection.send(b"zz\r\n" + b"x" * 20_000)
        rest = b""
        with suppress(ConnectionError):
            while piece := await connection.reader.read(65_536):
                rest += piece
        assert b"HTTP/1.1" not in rest


async def test_ten_gigabytes_announced_are_refused_at_once(served: Served) -> None:
    """A Content-Length above the limit is 413 before a byte of it is read."""
    assert await ask(served, HEAD + b"Content-Length: 10000000000\r\n\r\n") == 413


async def test_an_expected_body_is_refused_before_it_is_sent(served: Served) -> None:
    """A client that sends Expect: 100-continue is refused before it sends the body."""
    assert await ask(served, HEAD + b"Expect: 100-continue\r\nContent-Length: 10000000000\r\n\r\n") == 413
    assert await ask(served, HEAD + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n") == 100
    older = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")  # such a client takes the first response for the only one
    assert await ask(served, older + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx") == 200


async def test_a_flood_of_chunks_is_bounded(directory: Path) -> None:
    """Chunks are counted as they arrive: of one byte or many, the limit is the same."""
    async with serving(directory, ServiceOptions(body_bytes=100_000)) as served:
        await served.log.create_queue("q")
        async with raw(served) as connection:
            await connection.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            writing = asyncio.create_task(connection.send(b"1\r\nx\r\n" * 200_000))
            assert await connection.status() == 413
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        assert served.log.next_position("q") == 0


async def test_bodies_share_one_budget(directory: Path) -> None:
    """Many large bodies at once are pushed back before they are read, not gathered in memory."""
    async with serving(directory, ServiceOptions(body_bytes=1_000_000, bodies_bytes=1_500_000)) as served:
        await served.log.create_queue("q")
        async with raw(served) as first, raw(served) as second:
            await first.send(HEAD + b"Content-Length: 1000000\r\n\r\n" + bytes(800_000))
            while served.service.bodies.budget.used < 800_000:
                await asyncio.sleep(0.001)
            await second.send(HEAD + b"Content-Length: 900000\r\n\r\n" + bytes(800_000))
            assert await second.status() == 429
            await first.send(bytes(200_000))
            assert await first.status() == 200


async def test_connections_are_limited(directory: Path) -> None:
    """One connection too many gets a 503 and is closed; the others continue."""
    async with serving(directory, ServiceOptions(connections=1)) as served, raw(served) as first:
        await first.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await first.status() == 200
        async with raw(served) as second:
            assert await second.status() == 503
        assert served.connections.counts.refused == 1
        await first.reader.readexactly(len(b'{"status":"alive"}'))
        await first.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await first.status() == 200


async def test_a_thousand_idle_and_half_open_connections_cost_little(directory: Path) -> None:
    """The service keeps responding, in bounded memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4_096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, hard), hard))
    async with serving(directory) as served:
        before = await asyncio.to_thread(resident_bytes)
        connections = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(1_000)]
        for _, writer in connections[::2]:
            writer.write(b"POST /v1/queues/q/records HTTP/1.1\r\nHost: x\r\nX-Half")
        while len(served.connections.known) < 1_000:
            await asyncio.sleep(0.001)
        assert await still_answers(served)
        grown = (
            await asyncio.to_thread(resident_bytes) - before
        )  # with the thousand clients, which live in this process too
        assert grown < 100_000_000
        served.connections.sweep(0.0)
        served.connections.sweep(1_000.0)
        while len(served.connections.known) > 1:  # the one that asked for health
            await asyncio.sleep(0.001)
        for _, writer in connections:
            writer.transport.abort()


# Framing.


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket", b"x"])
async def test_a_payload_is_no_request_after_an_upgrade(served: Served, upgrade: bytes) -> None:
    """A proxy that knows no upgrade forwards what its client sends next, and a server may have read less of it."""
    inner = b"DELETE /v1/queues/q HTTP/1.1\r\nHost: x\r\n\r\n"
    async with raw(served) as connection:
        head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n" % upgrade
        await connection.send(head + HEAD + b"Content-Length: %d\r\n\r\n" % len(inner))
        assert await connection.status() in (200, 400)
        with suppress(ConnectionError):
            await connection.send(inner)
            assert b"HTTP/1.1" not in await connection.reader.read()  # the rest of the first response
    assert served.log.list_queues() == ["q"]


# Names.


@pytest.mark.parametrize(
    ("path", "queue"),
    [
        (b"%2e%2e%252f", "..%2f"),
        (b"%2e%2e%2f%2e%2e%2fetc%2fpasswd", "../../etc/passwd"),
        (b"...", "..."),
        (b"a%2Fb", "a/b"),
        (b"%C3%BC", "ü"),
        (b"a+b", "a+b"),
        (b"a%20b", "a b"),
        (b"{a}", "{a}"),
    ],
)
async def test_names_are_decoded_once_and_are_never_paths(directory: Path, path: bytes, queue: str) -> None:
    """Whatever a name looks like, it is a name: decoded once, stored unchanged, and never used as a file path."""
    async with serving(directory) as served:
        assert await ask(served, b"PUT /v1/queues/" + path + b" HTTP/1.1\r\nHost: x\r\n\r\n") == 201
        assert served.log.list_queues() == [queue]
        (shown,) = (await served.call("GET", "/v1/queues")).json()["queues"]
        assert shown["queue"] == queue
    assert [entry.name for entry in directory.parent.iterdir()] == [directory.name]


@pytest.mark.parametrize(
    "path",
    [b"%00", b"a%0d%0ab", b"a%7f", b"%c2%80", b"%ff", b"%ed%a0%80", b"x" * 256, b"%c3%bc" * 128, b".", b"%2e%2E"],
)
async def test_invalid_names_are_refused(served: Served, path: bytes) -> None:
    """Control characters, NUL, line ends, what is not UTF-8, more than 255 bytes, what clients fold: 400."""
    head = b" HTTP/1.1\r\nHost: x\r\n\r\n"
    assert await ask(served, b"PUT /v1/queues/" + path + head) == 400
    assert await ask(served, b"PUT /v1/queues/q/consumers/" + path + head) == 400
    if path not in (b".", b"%2e%2E"):
        assert await ask(served, b"PUT /v1/queues/" + path + b"*/consumers/c" + head) == 400
    assert served.log.inspection.consumer_rules() == []
    assert served.log.list_queues() == ["q"]


# Who is admitted.


@asynccontextmanager
async def with_token(directory: Path) -> AsyncIterator[Served]:
    async with serving(
        directory, ServiceOptions(tokens=frozenset({TOKEN.encode(), b"another-token-0123456789"}))
    ) as served:
        await served.log.create_queue("q")
        yield served


@pytest.mark.parametrize("token", [b"", b" ", b"0123456789abcdef\n"])
def test_a_token_that_everybody_or_nobody_has_is_refused(token: bytes) -> None:
    """An empty one, as of a variable that is not set, would admit the header `Bearer`; a line break no request has."""
    with pytest.raises(ValueError, match="a token is empty or has whitespace around it"):
        ServiceOptions(tokens=frozenset({token}))


async def test_every_token_is_accepted(directory: Path) -> None:
    """Several tokens are valid at once, so that one can be replaced without a gap."""
    async with with_token(directory) as served:
        for token in (TOKEN, "another-token-0123456789"):
            response = await served.call("GET", "/v1/queues", headers={"Authorization": f"Bearer {token}"})
            assert response.status == 200


@pytest.mark.parametrize(
    "value",
    [None, "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ü"],
)
async def test_wrong_tokens_are_401_without_details(directory: Path, value: str | None) -> None:
    """A missing, short, long or strange token gets the same response."""
    async with with_token(directory) as served:
        header = b"" if value is None else b"Authorization: " + value.encode() + b"\r\n"
        async with raw(served) as connection:
            await connection.send(HEAD + header + b"Content-Length: 3000000\r\n\r\n")
            assert await connection.status() == 401  # before the body came
            body = await connection.reader.read(1000)
        assert b'"detail":"missing or invalid bearer token"' in body
        assert served.log.next_position("q") == 0


async def test_two_authorization_headers_are_refused(directory: Path) -> None:
    """The service does not guess which of two tokens counts."""
    async with with_token(directory) as served:
        header = f"Authorization: Bearer {TOKEN}\r\n".encode()
        assert await ask(served, HEAD + header * 2 + b"Content-Length: 1\r\n\r\nx") == 401


async def test_the_page_needs_no_token_for_its_head_either(directory: Path) -> None:
    """Monitors ask for HEAD: it is what GET is, without the body."""
    async with serving(directory, ServiceOptions(tokens=frozenset({TOKEN.encode()}))) as served:
        page, head = await served.call("GET", "/"), await served.call("HEAD", "/")
        assert (page.status, head.status, head.body) == (200, 200, b"")
        assert head.headers["Content-Length"] == page.headers["Content-Length"]


async def test_health_needs_no_token_and_numbers_do(directory: Path) -> None:
    """Probes work without a secret; nothing that reveals data does."""
    async with with_token(directory) as served:
        statuses = {
            path: (await served.call("GET", path)).status
            for path in ("/healthz", "/readyz", "/metrics", "/v1/stats", "/openapi.json", "/nothing")
        }
    assert statuses == {
        "/healthz": 200,
        "/readyz": 200,
        "/metrics": 401,
        "/v1/stats": 401,
        "/openapi.json": 401,
        "/nothing": 401,
    }


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"Host: 127.0.0.1:8080\r\n", 200),
        (b"Host: LOCALHOST\r\n", 200),
        (b"Host: [::1]:80\r\n", 200),
        (b"Host: evil.example\r\n", 421),
        (b"Host: 127.0.0.1.evil.example\r\n", 421),
        (b"Host: \r\n", 421),
        (b"Host: localhost\r\nHost: localhost\r\n", 400),
        (b"", 400),
    ],
)
async def test_only_known_hosts_are_served(directory: Path, host: bytes, status: int) -> None:
    """A page whose name resolves to this machine still sends that name."""
    async with serving(directory, ServiceOptions(hosts=LOOPBACK_HOSTS)) as served:
        assert await ask(served, b"GET /v1/queues HTTP/1.1\r\n" + host + b"\r\n") == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [(b"http://x", 200), (b"http://evil.example", 403), (b"null", 403), (b"http://x.evil.example", 403)],
)
async def test_pages_of_other_sites_are_refused(served: Served, origin: bytes, status: int) -> None:
    """Browsers name the site whose page sends a request; only the service's own page may."""
    request = HEAD + b"Origin: " + origin + b"\r\nContent-Length: 1\r\n\r\nx"
    assert await ask(served, request) == status
    assert served.log.next_position("q") == (status == 200)


@pytest.mark.parametrize("host", ["[::1].evil.com", "[::1", "[::1]evil", "[::1]@evil.com:80"])
def test_what_begins_like_an_address_is_no_address(host: str) -> None:
    """A Host header is this machine's only as a whole."""
    assert host_name(host) not in LOOPBACK_HOSTS


def test_host_names_lose_their_port() -> None:
    """Only the name counts."""
    assert [host_name(host) for host in ("A:80", "[::1]:80", "[::1]", "a", "")] == ["a", "[::1]", "[::1]", "a", ""]


async def test_probes_by_address_reach_health_under_any_hosts(directory: Path) -> None:
    """Orchestrators probe the address of a container; no foreign page can do that under its own name."""
    async with serving(directory, ServiceOptions(hosts=frozenset({"wal.example.com"}))) as served:
        for host in ("127.0.0.1:8080", "10.1.2.3:8080", "[fd00::7]:8080", "localhost", "wal.example.com"):
            for path in ("/healthz", "/readyz"):
                assert (await served.call("GET", path, headers={"Host": host})).status == 200
        for host in ("evil.example", "10.1.2.3.evil.example", "1.2.3"):
            assert (await served.call("GET", "/healthz", headers={"Host": host})).status == 421
        assert (await served.call("GET", "/v1/queues", headers={"Host": "10.1.2.3"})).status == 421
        assert (await served.call("GET", "/healthz", headers={"Host": "10.1.2.3"})).status == 200  # not remembered
        assert (await served.call("GET", "/v1/queues", headers={"Host": "10.1.2.3"})).status == 421


@pytest.mark.parametrize(
    "line",
    [
        b"DELETE /v1/queues/a#/v1/queues/q",
        b"DELETE /v1/queues/q#",
        b"DELETE /v1/queues/q#?id=1",
        b"DELETE http://x/v1/queues/q#?id=1",
        b"DELETE http://x/v1/queues/q#/records",
        b"PUT /v1/queues/q#b",
        b"POST /v1/queues/a/records#/v1/queues/q/records",
        b"POST /%76%31/queues/q/records",
        b"POST /v1/%71ueues/q/records",
        b"POST /v1/queues/q/%72ecords",
        b"POST /v1/queues/q/trunc%61te",
    ],
)
async def test_a_path_that_can_be_read_in_two_ways_is_refused(served: Served, line: bytes) -> None:
    """What the router matched, what a proxy checked and the queue that is used are the same."""
    expected = 400 if b"#" in line else 404  # only names are decoded
    assert await ask(served, line + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx") == expected
    assert served.log.list_queues() == ["q"]
    assert served.log.next_position("q") == 0


# Responses.


class FailingDisk(CachedFiles):
    """A disk that fails on demand, naming the file as the system does."""

    error: int | None = None

    def sync(self, handle: int) -> None:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error), "/secret/path")
        super().sync(handle)


async def test_a_failed_log_says_so_without_paths(directory: Path) -> None:
    """After a failed sync appends are 503 and reads work; the system's message is only in the service's own log."""
    disk = FailingDisk()
    async with serving(directory, filesystem=disk) as served:
        await served.log.create_queue("q")
        await served.log.append_record("q", None, b"a")
        disk.error = errno.EIO
        first = await served.call("POST", "/v1/queues/q/records", b"b")
        later = await served.call("POST", "/v1/queues/q/records", b"b")
        assert [(one.status, one.json()["code"], one.json()["written"]) for one in (first, later)] == [
            (503, "log_failed", "unknown"),
            (503, "log_failed", "no"),
        ]
        assert b"secret" not in first.body + later.body
        ready = await served.call("GET", "/readyz")
        assert (ready.status, ready.json()["state"]) == (503, "failed")
        assert (await served.call("GET", "/v1/queues/q/records", headers={"Accept": "text/plain"})).body == b"a\n"


async def test_while_the_log_recovers_everything_else_responds(directory: Path) -> None:
    """It reports that it is alive, not ready, and its progress; appends get a 503 with Retry-After."""
    async with serving(directory, recovered=False) as served:
        served.service.fraction = 0.25
        assert (await served.call("GET", "/healthz")).status == 200
        ready = await served.call("GET", "/readyz")
        assert (ready.status, ready.json()) == (
            503,
            {"state": "recovering", "fraction": 0.25, "cause": "the log is being recovered"},
        )
        append = await served.call("POST", "/v1/queues/q/records", b"a")
        assert (append.status, append.json()["fraction"], append.headers["Retry-After"]) == (503, 0.25, "1")
        assert (await served.call("GET", "/v1/stats")).json()["state"] == "recovering"
        assert (await served.call("GET", "/metrics")).status == 200


async def test_a_mistake_of_ours_is_500_without_details(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The traceback is in the service's log, not in the response."""
    async with serving(directory) as served:
        log = served.log
        served.service._log = object()  # type: ignore[assignment]  # the mistake
        response = await served.call("GET", "/v1/queues")
        served.service.attach(log)
    assert (response.status, response.json()["code"]) == (500, "internal")
    assert b"object" not in response.body
    assert "AttributeError" in caplog.text
