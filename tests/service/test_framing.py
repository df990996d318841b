"""Where a request ends: what a proxy reads differently never becomes a request of its own, whatever server is below.

Each vector hides `DELETE /v1/queues/victim` in a body. It is a request only for a reader that takes another length, or
another end of a line, for the right one. So whatever the response is, the victim stays, and a body that is accepted is
stored as it was announced.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.aiohttp import LOG, setup
from mrecordlog_async.asgi import LogApplication, ServiceOptions
from mrecordlog_async.service import formats
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

POST_1 = POST + b"Content-Length: 1\r\n"
DELETE = b"DELETE /v1/queues/q HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: "


def get(line: bytes) -> bytes:
    """Return a request with another first line."""
    return line + b"\r\nHost: x\r\n" + CLOSE


def chunked(body: bytes) -> bytes:
    """Return a request with this body in chunks."""
    return POST + CHUNKED + CLOSE + body


REFUSED: dict[str, bytes] = {
    "no host": b"GET /healthz HTTP/1.1\r\n" + CLOSE,
    "two hosts": GET + b"Host: y\r\n" + CLOSE,
    "a control character in the host": b"GET /healthz HTTP/1.1\r\nHost: x\x01@y\r\n" + CLOSE,
    "a request after one that closes": GET + CLOSE + GET + CLOSE,
    "a request after one that closes among other things": GET + b"Connection: te, close\r\n\r\n" + GET + CLOSE,
    "a request after one of 1.0": b"GET /healthz HTTP/1.0\r\n\r\n" + GET + CLOSE,
    # The first line.
    "an unknown method": get(b"BREW /healthz HTTP/1.1"),
    "a method in lower case": get(b"get /healthz HTTP/1.1"),
    "a method with a digit": get(b"GET1 /healthz HTTP/1.1"),
    "a method in quotes": get(b'"GET" /healthz HTTP/1.1'),
    "a space before the method": get(b" GET /healthz HTTP/1.1"),
    "a tab in the first line": get(b"GET\t/healthz\tHTTP/1.1"),
    "a form feed in the first line": get(b"GET\n/healthz\x0cHTTP/1.1"),
    "a first line that ends with LF": b"GET /healthz HTTP/1.1\nHost: x\r\n" + CLOSE,
    "a word after the version": get(b"GET /healthz HTTP/1.1 x"),
    "a version to come": get(b"GET /healthz HTTP/3.0"),
    "a version of three digits": get(b"GET /healthz HTTP/1.32"),
    "a version in other digits": get("GET /healthz HTTP/1.\u00b9".encode()),
    "no HTTP": get(b"GET /healthz HT/11"),
    "nothing but letters": b"x" * 100_000,
    "no path": get(b"GET ! HTTP/1.1"),
    "a path with NUL": get(b"GET /healthz\0 HTTP/1.1"),
    "a path with DEL": get(b"GET /healthz\x7f HTTP/1.1"),
    "a path that is not ASCII": get("GET /v1/queues/\u00fc HTTP/1.1".encode()),
    "a first line that is too long": get(b"GET /%b HTTP/1.1" % (b"a" * 9_000)),
    "a line of the PROXY protocol": b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n" + GET + CLOSE,
    "TLS without TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "HTTP/2 without a warning": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "NUL, without an end of the line": b"\0",
    "a space, without an end of the line": b" ",
    # Headers.
    "a folded header": POST + b"X: a\r\n b\r\n\r\nx",
    "a space before a header": GET + b"\tContent-Length: 1\r\n\r\nx",
    "a header without a colon": POST + b"X\r\n\r\nx",
    "no name of a header": GET + b": z\r\n" + CLOSE,
    "a space in a name": GET + b"X : z\r\n" + CLOSE,
    "a name that is not ASCII": GET + b"\xff: z\r\n" + CLOSE,
    **{f"{mark!r} in a name": GET + b"X%cy: z\r\n" % mark for mark in rb'"(),/;<=>?@[\]{}'},
    **{f"{mark!r} in a value": POST + b"X: a%cb\r\n\r\nx" % mark for mark in b"\0\x01\x1f\x7f\r\n"},
    "a header behind CR": POST + b"X: \rxTransfer-Encoding: chunked\r\n\r\n",
    "a header that ends with LF": GET + b"X: y\n" + CLOSE,
    "a name that is too long": GET + b"X" * 9_000 + b": y\r\n" + CLOSE,
    "a value that is too long": GET + b"X: " + b"y" * 9_000 + b"\r\n" + CLOSE,
    "129 headers": GET + b"X: y\r\n" * 129 + CLOSE,
    "two types": POST_1 + b"Content-Type: a/b\r\nContent-Type: application/x-ndjson\r\n\r\na",
    # Lengths.
    "no length": POST + CLOSE,
    "two lengths": POST_1 + b"Content-Length: 2\r\n\r\nx",
    "two lengths in another case": POST_1 + b"content-length: 2\r\n\r\nx",
    "a length and chunks": POST_1 + CHUNKED + b"\r\nx",
    "a length and another encoding": POST_1 + b"Transfer-Encoding: a\r\n\r\nx",
    **{
        f"a length of {length!r}": POST + b"Content-Length: %b\r\n\r\nx" % length.encode()
        for length in ("-1", "+1", "1_0", f"{'0' * 24}1", "\u00b9", "\U0001d7d9", "1x", "1 , 1,2")
    },
    # Chunks.
    "chunks in HTTP/1.0": chunked(b"1\r\nx\r\n0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "chunks that are not the last encoding": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    "chunks twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "no encoding": POST + b"Transfer-Encoding: , \t ,\r\n\r\n0\r\n\r\n",
    "chunks in other letters": POST + "Transfer-Encoding: chun\u212aed\r\n\r\n0\r\n\r\n".encode(),
    **{
        f"a chunk {chunk[:20]!r}": chunked(chunk)
        for chunk in (
            b"blah\r\n", b"0_2e\r\n\r\n" + GET + CLOSE, b"10\0\r\nxxx", b"9" * 100 + b"\r\nxxx", b"1\nx\r\n0\r\n\r\n",
            b"2;\nxx\r\n4c\r\n0\r\n\r\n" + DELETE, b"4\r\nHello\r\n0\r\n\r\n", b"6\r\nHello\r\n0\r\n\r\n",
            b"3\r\nxxx__1a\r\n", b"3\r\nxxx\r_1a\r\n", b"3\r\nxxx_\n1a\r\n",
        )
    },
    "a trailer without a colon": chunked(b"1\r\nx\r\n0\r\nX\r\n\r\n"),
    "a trailer that ends with LF": chunked(b"1\r\nx\r\n0\r\nX: y\n\r\n"),
    "a trailer that is too long": chunked(b"1\r\nx\r\n0\r\nX: " + b"y" * 9_000 + b"\r\n\r\n"),
    "129 trailers": chunked(b"1\r\nx\r\n0\r\n" + b"X: y\r\n" * 129 + b"\r\n"),
}  # fmt: skip
"""Requests that have no meaning, or two. RFC 9112, and cases of the tests of aiohttp, h11 and uvicorn."""

FACTS: dict[str, tuple[bytes, list[int], list[bytes]]] = {
    "requests in one packet, in order": (
        POST_1 + b"\r\na" + GET + b"\r\n" + POST_1 + b"\r\nb" + b"GET /none HTTP/1.1\r\nHost: x\r\n" + CLOSE,
        [200, 200, 200, 404],
        [b"a", b"b"],
    ),
    "300 of them": ((GET + b"\r\n") * 299 + GET + CLOSE, [200] * 300, []),
    "empty lines before a request": (b"\r\n\r\n" + GET + CLOSE, [200], []),
    "names of headers in any case": (b"GET /healthz HTTP/1.1\r\nhOST: x\r\nCONNECTION: Close\r\n\r\n", [200], []),
    "space around values": (
        POST + b"Content-Type:\t application/x-ndjson \t\r\nContent-Length: \t 4\r\n" + CLOSE + b"a\nb\n",
        [200],
        [b"a", b"b"],
    ),
    "values that are empty or not ASCII": (GET + b"X:\r\nY: \t\r\nZ: \xc3\xbc\r\nA: \xf2\r\n" + CLOSE, [200], []),
    "long values and paths": (
        b"GET /%b HTTP/1.1\r\nHost: x\r\nX: %b\r\n" % (b"a" * 8_100, b"b" * 8_100) + CLOSE,
        [404],
        [],
    ),
    "the absolute form": (get(b"GET http://x/healthz HTTP/1.1"), [200], []),
    "the asterisk form": (get(b"OPTIONS * HTTP/1.1"), [404], []),
    "a tunnel": (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n" + CLOSE, [404], []),
    "two slashes": (get(b"GET //healthz HTTP/1.1"), [404], []),
    "a method that is new": (get(b"QUERY /healthz HTTP/1.1"), [405], []),
    "no body of HEAD": (b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + GET + CLOSE, [200, 200], []),
    "1.0 without a host": (b"GET /healthz HTTP/1.0\r\n\r\n", [200], []),
    "1.0 closes": (POST_1.replace(b"1.1", b"1.0") + b"\r\na", [200], [b"a"]),
    "1.0 stays if it is asked to": (
        POST_1.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n\r\na" + GET + CLOSE,
        [200, 200],
        [b"a"],
    ),
    "a body in chunks with extensions": (
        chunked(b'1;a=b\r\nx\r\n2;c="d"\r\nyz\r\n0;f\r\n\r\n'),
        [200],
        [b"xyz"],
    ),
    "sizes of chunks in any case": (chunked(b"aA\r\n" + b"x" * 0xAA + b"\r\n0\r\n\r\n"), [200], [b"x" * 0xAA]),
    "trailers that say nothing": (
        POST + CHUNKED + b"\r\n1\r\nx\r\n0\r\nX-Log-Id: other\r\n"
        b"Content-Type: application/x-ndjson\r\n\r\n" + GET + CLOSE,
        [200, 200],
        [b"x"],
    ),
    "an upgrade with a body": (POST + UPGRADE + b"h2c\r\nContent-Length: 1\r\n\r\na", [200], [b"a"]),
    "an upgrade with a request as its body": (
        POST + UPGRADE + b"h2c\r\nContent-Length: %d\r\n\r\n" % len(DELETE) + DELETE,
        [200],
        [DELETE],
    ),
    "an upgrade with chunks": (
        POST + UPGRADE + b"h2c\r\n" + CHUNKED + b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(DELETE), DELETE),
        [200],
        [DELETE],
    ),
    "an expectation": (POST + b"Expect: 100-Continue\r\nContent-Length: 1\r\n" + CLOSE + b"a", [200], [b"a"]),
    "another expectation": (POST + b"Expect: 200-ok\r\nContent-Length: 1\r\n" + CLOSE + b"a", [200], [b"a"]),
    "an expectation that is refused": (
        b"POST /none HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
        [404],
        [],
    ),
    "an encoding before the chunks": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", [415], []),
    "a refused body that looks like a request": (
        b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(DELETE) + CLOSE + DELETE,
        [404],
        [],
    ),
    "another version": (get(b"GET /healthz HTTP/2.0"), [505], []),
    "no version": (b"GET /healthz\r\n\r\n", [505], []),
}
"""What was sent, and the statuses and records that must follow."""


async def test_requests_are_read_as_the_standard_says(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In one packet, and byte by byte. What is refused is counted, and logged as no error of ours."""
    facts = FACTS | {name: (sent, [400], []) for name, sent in REFUSED.items()}
    async with serving(directory, ServiceOptions(), queues=["q"]) as served:
        for fact, (sent, statuses, records) in facts.items():
            byte_by_byte = [sent[at : at + 1] for at in range(len(sent))]
            for pieces in ([sent], byte_by_byte) if len(sent) < 500 else ([sent],):
                stored = served.log.next_position("q")
                found = await statuses_of(served.port, *pieces)
                asked = [100] if "an expectation" in fact and 200 in statuses else []
                assert found in (statuses, asked + statuses), fact
                assert [record.payload for record in served.log.range("q", stored)] == records, fact
        assert served.service.problems[400] >= len(REFUSED)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_requests_in_the_packet_of_a_bodys_end_are_served(directory: Path) -> None:
    """aiohttp 3.14 counts a request whose body came late as waiting, stops after 31 others, and never goes on."""
    async with serving(directory, queues=["q"]) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(POST_1 + b"\r\n")
        while not any(one.requests for one in served.connections.known.values()):
            await asyncio.sleep(0)
        writer.write(b"a" + (GET + b"\r\n") * 40 + GET + CLOSE)
        responses = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                while piece := await reader.read(65_536):
                    responses += piece
        writer.transport.abort()
        assert responses.count(b"200 OK") == 42


@pytest.mark.parametrize("server", ["serve", "aiohttp", "httptools", "h11"])
async def test_an_error_after_the_head_cuts_the_connection(
    directory: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a status can no longer report is reported by a response that is not whole."""

    def broken(*_: Any) -> Iterator[bytes]:
        yield bytes(300_000)
        raise ValueError("a mistake")

    monkeypatch.setitem(formats._BY_TYPE, "application/x-ndjson", formats.Format(broken))
    async with served_by(server, directory) as (log, port, prefix):
        await log.append_record("q", None, bytes(1_000_000))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET %s/v1/queues/q/records HTTP/1.1\r\nHost: localhost\r\n" % prefix + CLOSE)
        response = b""
        with suppress(ConnectionError):
            while piece := await reader.read(65_536):
                response += piece
        writer.transport.abort()
        assert response.count(b"HTTP/1.1") <= 1
        assert not response.endswith(b"0\r\n\r\n")
