"""Where a request ends: what a proxy reads differently never becomes a request of its own, whatever server is below.

Each vector hides `DELETE /v1/queues/victim` in a body. It is a request only for a reader that takes another length, or
another end of a line, for the right one. So whatever the response is, the victim stays, and a body that is accepted is
stored as it was announced.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.aiohttp import LOG, setup
from mrecordlog_async.asgi import LogApplication, ServiceOptions
from tests.served import serving
from tests.service.uvicorn_served import port_of, running

OPTIONS = ServiceOptions(body_seconds=0.2, header_seconds=1.0)

ENCODINGS = (
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding:chunked",
    b"Transfer-Encoding: CHUNKED",
    b"transfer-encoding: chunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding\t: chunked",
    b" Transfer-Encoding: chunked",
    b"\tTransfer-Encoding: chunked",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding:\x0cchunked",
    b"Transfer-Encoding: chunked\t",
    b"Transfer-Encoding: chunked\x0b",
    b"Transfer-Encoding: \x00chunked",
    b"Transfer-Encoding: chunked\x00",
    b"Transfer-Encoding: chunked\xff",
    b"Transfer-Encoding: \xefchunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunkedx",
    b'Transfer-Encoding: "chunked"',
    b"Transfer-Encoding: 'chunked'",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: chunked;q=1",
    b"Transfer-Encoding: ,chunked",
    b"Transfer-Encoding: chunked,",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding:",
    b"Transfer-Encoding: cow\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: cow",
    b"Transfer-Encoding:\r\n chunked",
    b"Transfer-Encoding: chun\r\n ked",
    b"Transfer-Encoding\r\n: chunked",
    b"Transfer-Encoding\n: chunked",
    b"X: y\nTransfer-Encoding: chunked",
    b"X: y\rTransfer-Encoding: chunked",
    b"X: y\r\n\rTransfer-Encoding: chunked",
    b"X: y\x00\r\nTransfer-Encoding: chunked",
    b"Transfer_Encoding: chunked",
    b"Transfer-Encoding\xa0: chunked",
    b"Transfer-Encod\x00ing: chunked",
    b"Content-Encoding: chunked",
    b"Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
)
"""Lines next to a right Content-Length: a reader that takes them for chunks finds the hidden request after them."""

LENGTHS = (
    b"+%d", b"-%d", b" %d ", b"\t%d", b"0%d", b"0x%x", b"%d.0", b"%d,0", b"%d, %d", b"0, %d", b"%d;0", b"%d 0", b"%d_0",
    b"%de0", b"'%d'", b"\x00%d", b"%d\x0b", b"", b"\xd9\xa1%d", b"9999999999999999999999%d", b"%d\r\nContent-Length: 0",
    b"0\r\nContent-Length: %d", b"%d\r\ncontent-length: %d", b"%d\r\n 0",
)  # fmt: skip
"""Values of a Content-Length that a reader may take for none."""

CHUNKS = (
    b"%x\n%s\r\n0\r\n\r\n",
    b"%x\r%s\r\n0\r\n\r\n",
    b"0x%x\r\n%s\r\n0\r\n\r\n",
    b"+%x\r\n%s\r\n0\r\n\r\n",
    b"-%x\r\n%s\r\n0\r\n\r\n",
    b" %x\r\n%s\r\n0\r\n\r\n",
    b"%x \r\n%s\r\n0\r\n\r\n",
    b"%x;a=b\r\n%s\r\n0\r\n\r\n",
    b"%x;a\n%s\r\n0\r\n\r\n",
    b"%x;a\r%s\r\n0\r\n\r\n",
    b"%x,0\r\n%s\r\n0\r\n\r\n",
    b"1000000000000000000%x\r\n%s\r\n0\r\n\r\n",
    b"000000000000000000000%x\r\n%s\r\n0\r\n\r\n",
    b"\r\n%x\r\n%s\r\n0\r\n\r\n",
    b"%x\r\n%s\n0\r\n\r\n",
    b"%x\r\n%s0\r\n\r\n",
    b"%x\r\n%sXX0\r\n\r\n",
    b"%x\r\n%s\r\n0\n\n",
    b"%x\r\n%s\r\n0\r\nContent-Length: 0\r\n\r\n",
    b"%x\r\n%s\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
)
"""Bodies in chunks, of which a reader may take the first line, or the end, for another one."""


def vectors(prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield head and payload of each request; the payload is what it may store."""
    hidden = b"DELETE %s/v1/queues/victim HTTP/1.1\r\nHost: localhost\r\n\r\n" % prefix
    post = b"POST %s/v1/queues/q/records HTTP/1.1\r\nHost: localhost\r\n%%s\r\n\r\n%%s" % prefix
    whole = b"0\r\n\r\n" + hidden
    for line in ENCODINGS:
        length = b"Content-Length: %d" % len(whole)
        yield post % (line + b"\r\n" + length, whole), whole
        yield post % (length + b"\r\n" + line, whole), whole
    for value in LENGTHS:
        number = value.replace(b"%d", b"%d" % len(hidden)).replace(b"%x", b"%x" % len(hidden))
        yield post % (b"Content-Length: " + number, hidden), hidden
    for chunk in CHUNKS:
        yield post % (b"Transfer-Encoding: chunked", chunk % (len(hidden), hidden)), hidden


@asynccontextmanager
async def served_by(server: str, directory: Path) -> AsyncIterator[tuple[MultiRecordLog, int, bytes]]:
    """Serve a log with the queues q and victim; yield it, the port and the prefix of paths."""
    queues = ["q", "victim"]
    if server == "serve":
        async with serving(directory, OPTIONS, queues=queues) as served:
            yield served.log, served.port, b""
    elif server == "aiohttp":
        app = web.Application()
        setup(app, directory, queues=queues, prefix="/wal", options=OPTIONS)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield app[LOG], runner.addresses[0][1], b"/wal"
        await runner.cleanup()
    else:
        wal: Any = LogApplication(OPTIONS)
        opening = MultiRecordLog.open(directory, queues=queues)
        async with await opening as log, wal.serving(log), running(wal, http=server, lifespan="off") as running_server:
            yield log, port_of(running_server), b""


async def statuses_of(port: int, *sent: bytes) -> list[int]:
    """Send pieces of bytes; return the statuses of all responses until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    response = b""
    try:
        for piece in sent:
            writer.write(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            while piece := await reader.read(65_536):
                response += piece
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3})", response)]


@pytest.mark.parametrize("server", ["serve", "aiohttp", "httptools", "h11"])
async def test_no_hidden_request_is_carried_out(directory: Path, server: str) -> None:
    """Under `serve`, in an application of aiohttp, and below uvicorn with each of its parsers."""
    async with served_by(server, directory) as (log, port, prefix):
        last = b"GET %s/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % prefix
        for request, payload in vectors(prefix):
            stored = log.next_position("q")
            await statuses_of(port, request + last)
            assert "victim" in log.list_queues(), request
            assert [record.payload for record in log.range("q", stored)] in ([], [payload]), request
        assert log.next_position("q"), "those that are announced in one way are stored"


POST = b"POST /v1/queues/q/records HTTP/1.1\r\nHost: x\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
CLOSE = b"Connection: close\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"

FACTS: dict[str, tuple[bytes, list[int], list[bytes]]] = {
    "requests in one packet, in order": (
        POST + b"Content-Length: 1\r\n\r\na" + GET + b"\r\nGET /none HTTP/1.1\r\nHost: x\r\n" + CLOSE,
        [200, 200, 404],
        [b"a"],
    ),
    "300 of them": ((GET + b"\r\n") * 299 + GET + CLOSE, [200] * 300, []),
    "nothing after a request that closes": (GET + CLOSE + GET + CLOSE, [400], []),
    "empty lines before a request": (b"\r\n\r\n" + GET + CLOSE, [200], []),
    "names of headers in any case": (b"GET /healthz HTTP/1.1\r\nhOST: x\r\nCONNECTION: Close\r\n\r\n", [200], []),
    "several options of a connection": (GET + b"Connection: te, close\r\n\r\n", [200], []),
    "the absolute form": (b"GET http://x/healthz HTTP/1.1\r\nHost: x\r\n" + CLOSE, [200], []),
    "the asterisk form": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n" + CLOSE, [404], []),
    "a tunnel": (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n" + CLOSE, [404], []),
    "an unknown method": (b"BREW /healthz HTTP/1.1\r\nHost: x\r\n" + CLOSE, [400], []),
    "no body of HEAD": (b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + GET + CLOSE, [200, 200], []),
    "no host": (b"GET /healthz HTTP/1.1\r\n" + CLOSE, [400], []),
    "two hosts": (GET + b"Host: y\r\n" + CLOSE, [400], []),
    "1.0 without a host": (b"GET /healthz HTTP/1.0\r\n\r\n", [200], []),
    "1.0 closes": (b"GET /healthz HTTP/1.0\r\n\r\n" + GET + CLOSE, [400], []),
    "1.0 stays if it is asked to": (
        b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GET + CLOSE,
        [200, 200],
        [],
    ),
    "a body in chunks with extensions": (
        POST + CHUNKED + CLOSE + b"1;a=b\r\nx\r\n2;c\r\nyz\r\n0;d\r\n\r\n",
        [200],
        [b"xyz"],
    ),
    "trailers that say nothing": (
        POST + CHUNKED + b"\r\n1\r\nx\r\n0\r\nX-Log-Id: other\r\n"
        b"Content-Type: application/x-ndjson\r\n\r\n" + GET + CLOSE,
        [200, 200],
        [b"x"],
    ),
    "an upgrade with a body": (
        POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\na",
        [200],
        [b"a"],
    ),
    "an expectation": (POST + b"Expect: 100-Continue\r\nContent-Length: 1\r\n" + CLOSE + b"a", [200], [b"a"]),
    "another expectation": (POST + b"Expect: 200-ok\r\nContent-Length: 1\r\n" + CLOSE + b"a", [200], [b"a"]),
    "an expectation that is refused": (
        b"POST /none HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
        [404],
        [],
    ),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", [400], []),
    "a length and chunks": (POST + b"Content-Length: 1\r\n" + CHUNKED + b"\r\nx", [400], []),
    "a negative length": (POST + b"Content-Length: -1\r\n\r\nx", [400], []),
    "a length with an underscore": (POST + b"Content-Length: 1_0\r\n\r\nx", [400], []),
    "a length of 25 digits": (POST + b"Content-Length: %b1\r\n\r\nx" % (b"0" * 24), [400], []),
    "a folded header": (POST + b"X: a\r\n b\r\n\r\nx", [400], []),
    "a header with NUL": (POST + b"X: a\0b\r\n\r\nx", [400], []),
    "a header without a colon": (POST + b"X\r\n\r\nx", [400], []),
    "another version": (b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", [505], []),
    "a version to come": (b"GET /healthz HTTP/3.0\r\nHost: x\r\n\r\n", [400], []),
    "no version": (b"GET /healthz\r\n\r\n", [505], []),
    "a tab in the first line": (b"GET\t/healthz\tHTTP/1.1\r\nHost: x\r\n\r\n", [400], []),
    "a character that no name of a header has": (GET + b"X(y): z\r\n" + CLOSE, [400], []),
    "no name of a header": (GET + b": z\r\n" + CLOSE, [400], []),
    "a first line that is too long": (b"GET /%b HTTP/1.1\r\nHost: x\r\n" % (b"a" * 9_000) + CLOSE, [400], []),
    "TLS without TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), [400], []),
    "HTTP/2 without a warning": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400], []),
}
"""What was sent, and the statuses and records that must follow: RFC 9112, and cases that other servers met."""


@pytest.mark.parametrize("fact", FACTS)
async def test_requests_are_read_as_the_standard_says(directory: Path, fact: str) -> None:
    """In one packet, and byte by byte."""
    sent, statuses, records = FACTS[fact]
    async with serving(directory, ServiceOptions(), queues=["q"]) as served:
        assert await statuses_of(served.port, sent) == statuses
        assert [record.payload for record in served.log.range("q")] == records
        if len(sent) < 1_000:
            found = await statuses_of(served.port, *(sent[at : at + 1] for at in range(len(sent))))
            assert [status for status in found if status != 100] == statuses


async def test_requests_after_bodies_that_came_late_are_served(directory: Path) -> None:
    """aiohttp 3.14 counts such a request as waiting for ever: after 32 it reads one request of a packet and no more."""
    async with serving(directory, queues=["q"]) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        for number in range(1, 33):
            writer.write(POST + b"Content-Length: 1\r\n\r\n")
            while not any(one.requests == number for one in served.connections.known.values()):
                await asyncio.sleep(0)
            writer.write(b"a")
            await reader.readuntil(b'"duplicate":false}')
        writer.write((GET + b"\r\n") * 3 + GET + CLOSE)
        async with asyncio.timeout(30):
            assert (await reader.read()).count(b"200 OK") == 4
        writer.close()
