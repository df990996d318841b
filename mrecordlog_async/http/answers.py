"""Reads as bodies, by the Accept header: NDJSON, lines, raw bytes, runs or Arrow.

| Accept | body |
|---|---|
| none, `*/*`, `application/x-ndjson` | a line a record: `{"position":7,"payload":"base64"}`, or text with `?as=text` |
| `text/plain` | the payloads, each with a newline behind it |
| `application/octet-stream` | the payloads back to back: with `limit=1`, one record as it is |
| `application/vnd.mrecordlog.runs` | runs (see `wire`) |
| `application/vnd.apache.arrow.stream` | Arrow, where the service has pyarrow |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import msgspec
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from mrecordlog_async.http import arrow, wire
from mrecordlog_async.http.bodies import NDJSON, OCTET_STREAM
from mrecordlog_async.http.messages import RecordAnswer, TextRecordAnswer
from mrecordlog_async.http.problems import ProblemError
from mrecordlog_async.model import Run

TEXT = "text/plain"
PIECE_BYTES = 256 * 1024
"""What is written at once: large enough to be cheap, small enough that a slow reader is seen."""

Encode = Callable[[str, int, Sequence[Run]], list[bytes]]


def encoder_of(accept: str | None, as_text: bool) -> tuple[str, Encode]:
    """Return content type and encoder for an Accept header; the first type that is known wins."""
    if not accept:
        return _choice(NDJSON, as_text)
    for item in accept.split(","):
        content_type = item.partition(";")[0].strip().lower()
        if content_type in ("*/*", "application/*"):
            return _choice(NDJSON, as_text)
        if content_type in _BY_TYPE:
            return _choice(content_type, as_text)
    detail = f"no format for Accept {accept[:80]!r}; there are {', '.join(_BY_TYPE)}"
    raise ProblemError(406, "not_acceptable", detail)


class SmallAnswer(web.Response):
    """A small JSON answer with status 200, written as one buffer where nothing speaks against it.

    Making and sending headers one by one is a sixth of what a request costs; an append's answer has always the same.
    What needs other headers (HTTP/1.0, a connection that is to be closed, the signals of a host application) goes the
    usual way.
    """

    _head: bytes | None = None

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Decide how to send."""
        if self._keep_alive is None and request.version == HttpVersion11 and request.keep_alive:
            self._keep_alive = True
            self._transport = request.transport
            self._head = _SMALL_HEAD
            return None
        return await super().prepare(request)

    async def write_eof(self, data: bytes = b"") -> None:
        """Send."""
        if self._head is None:
            await super().write_eof(data)
        elif not self._eof_sent:
            self._eof_sent = True
            body = self._body
            assert isinstance(body, bytes), "made with bytes"
            if self._transport is None:
                raise ConnectionResetError("the client is gone")
            self._body_length = len(body)  # for the access log
            self._transport.write(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))


_SMALL_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "


async def send(
    request: web.BaseRequest, response: web.StreamResponse, buffers: Iterable[bytes], write_seconds: float
) -> web.StreamResponse:
    """Send *buffers* as the body, piece by piece; a client that takes no piece for *write_seconds* is dropped."""
    await response.prepare(request)
    for piece in wire.gather(buffers, PIECE_BYTES):
        await write(request, response, piece, write_seconds)
    await response.write_eof()
    return response


async def write(request: web.BaseRequest, response: web.StreamResponse, piece: bytes, write_seconds: float) -> None:
    """Write *piece*, or drop the connection when it is not taken in time: it is never buffered without end."""
    parts: Sequence[bytes | memoryview] = [piece] if len(piece) <= _WRITE_BYTES else _parts(memoryview(piece))
    try:
        for part in parts:
            async with asyncio.timeout(write_seconds):
                await response.write(part)
    except TimeoutError:
        _drop(request)


async def drained(request: web.BaseRequest, seconds: float) -> None:
    """Wait until the client has read enough of what was sent, or drop it."""
    try:
        async with asyncio.timeout(seconds):
            await request.writer.drain()
    except TimeoutError:
        _drop(request)


def _drop(request: web.BaseRequest) -> NoReturn:
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError("the client does not read") from None


_WRITE_BYTES = 1024 * 1024


def _parts(view: memoryview) -> list[memoryview]:
    return [view[at : at + _WRITE_BYTES] for at in range(0, len(view), _WRITE_BYTES)]


def _choice(content_type: str, as_text: bool) -> tuple[str, Encode]:
    encode = _ndjson_text if as_text and content_type == NDJSON else _BY_TYPE[content_type]
    return content_type, encode


def _ndjson(queue: str, queue_id: int, runs: Sequence[Run]) -> list[bytes]:
    return [_lines_encoder.encode_lines([RecordAnswer(*record) for record in run.each()]) for run in runs]


def _ndjson_text(queue: str, queue_id: int, runs: Sequence[Run]) -> list[bytes]:
    return [
        _lines_encoder.encode_lines(
            [TextRecordAnswer(position, payload.decode(errors="replace")) for position, payload in run.each()]
        )
        for run in runs
    ]


def _text(queue: str, queue_id: int, runs: Sequence[Run]) -> list[bytes]:
    return [b"\n".join([*run.payloads(), b""]) for run in runs]


def _raw(queue: str, queue_id: int, runs: Sequence[Run]) -> list[bytes]:
    return [run.payload for run in runs]


def _runs(queue: str, queue_id: int, runs: Sequence[Run]) -> list[bytes]:
    return wire.encode([wire.QueueRuns(queue, queue_id, runs)])


def _arrow(queue: str, queue_id: int, runs: Sequence[Run]) -> list[bytes]:
    return [arrow.encode(runs)]


_lines_encoder = msgspec.json.Encoder()

_BY_TYPE: dict[str, Encode] = {
    NDJSON: _ndjson,
    TEXT: _text,
    OCTET_STREAM: _raw,
    wire.CONTENT_TYPE: _runs,
    arrow.CONTENT_TYPE: _arrow,
}
