"""Records as response bodies, by the Accept header: NDJSON, text lines, raw bytes or runs.

| Accept | body |
|---|---|
| none, `*/*`, `application/x-ndjson` | lines like `{"position":7,"time":"…","payload":"base64"}`; `?as=text`: text |
| `text/plain`, `text/*` | the payloads, each followed by a newline |
| `application/octet-stream` | the payloads back to back; with `limit=1`, exactly one record |
| `application/vnd.mrecordlog.runs` | runs (see `wire`) |

An encoder is a generator: it builds one piece of the body after the previous one was sent, never the whole body. A
piece holds about `PIECE_BYTES` at most; a larger record is sent in several pieces.
"""

from __future__ import annotations

import codecs
import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.model import Run, Times, text_of_tick
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.log_schemas import LOG_ID
from mrecordlog_async.protocol.problems import ProblemError
from mrecordlog_async.protocol.schemas import RecordResponse, TextRecordResponse
from mrecordlog_async.service.wire.receive import JSON, NDJSON, OCTET_STREAM
from mrecordlog_async.service.wire.send import Outgoing
from mrecordlog_async.service.wire.turns import Turns

TEXT = "text/plain"
PIECE_BYTES = 192 * 1024
"""Payload bytes in one piece; a multiple of 3, so that base64 can be encoded in parts."""
PIECE_RECORDS = 2_000
"""Records in one piece: encoding them takes about a millisecond."""
SMALL_BYTES = 64 * 1024
"""A smaller response is not charged and has no deadline: it fits into the connection's buffer."""

BEGUN = web.RequestKey("mrecordlog.begun", web.StreamResponse)
"""The response of a request, once it has begun. From then on no status can report an error."""

SERVER = "mrecordlog"

_REFUSED = re.compile(r"q=0(\.0*)?")
"""The parameter of a type that the client does not accept (RFC 9110 §12.4.2)."""

Pieces = Iterator[bytes]


class Format(NamedTuple):
    """Encoder of runs as a body.

    encode: yields the pieces, given queue, queue id, runs and their times. size: bytes of the whole body, if known in
    advance.
    """

    encode: Callable[[str, int, Iterable[Run], Times], Pieces]
    size: Callable[[str, Sequence[Run], Times], int] | None = None


def format_of(accept: str | None, as_text: bool) -> tuple[str, Format]:
    """Return content type and format for an Accept header; the first supported type wins."""
    if not accept:
        return _choice(NDJSON, as_text)
    for item in accept.split(","):
        content_type, *parameters = (part.strip().lower() for part in item.split(";"))
        if any(_REFUSED.fullmatch(parameter) for parameter in parameters):
            continue
        if content_type in ("*/*", "application/*"):
            return _choice(NDJSON, as_text)
        if content_type == "text/*":
            return _choice(TEXT, as_text)
        if content_type in _BY_TYPE:
            return _choice(content_type, as_text)
    detail = f"no supported type in Accept {accept[:80]!r}; supported: {', '.join(_BY_TYPE)}"
    raise ProblemError(406, "not_acceptable", detail)


class SmallResponse(web.Response):
    """A small JSON response with status 200, written as one buffer if possible.

    Building headers one by one is a sixth of the cost of a request, and those of an append's response never change. A
    response that needs other headers (HTTP/1.0, a connection to be closed, the signals of a host application) is sent
    by aiohttp.
    """

    _head: bytes | None = None

    def __init__(self, body: bytes, head: bytes, log_id: str) -> None:
        """*head*: what `small_head` returned for *log_id*."""
        super().__init__(body=body)
        self.small_head = head
        self.log_id = log_id

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Decide whether one buffer is possible."""
        if self._keep_alive is None and request.version == HttpVersion11 and request.keep_alive:
            # What aiohttp's own prepare would set, and its connection handler reads afterwards.
            self._keep_alive = True
            self._transport = request.transport
            self._head = self.small_head
            return None
        self.content_type = JSON
        seal(self)
        self.headers[LOG_ID] = self.log_id
        return await super().prepare(request)

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the response."""
        if self._head is None:
            await super().write_eof(data)
        elif not self._eof_sent:
            self._eof_sent = True
            body = self._body
            assert isinstance(body, bytes), "made with bytes"
            if self._transport is None:
                raise ConnectionResetError("the client disconnected")
            self._body_length = len(body)  # for the access log
            self._transport.write(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))


def small_head(log_id: str) -> bytes:
    """Return the head of every `SmallResponse` of the log, up to the length."""
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n"
        b"X-Log-Id: %s\r\nContent-Length: " % log_id.encode()
    )


def seal(response: web.StreamResponse) -> None:
    """Set the headers of every response: no type sniffing, and no Server header."""
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Server", SERVER)


async def begin(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Send the head of a response whose body follows piece by piece."""
    seal(response)
    request[BEGUN] = response
    await response.prepare(request)


async def send(
    request: web.BaseRequest,
    response: web.StreamResponse,
    pieces: Iterable[bytes] | AsyncIterable[bytes],
    out: Outgoing,
) -> web.StreamResponse:
    """Send *pieces* as the body, then end the charge *out*; a client that does not read in time is dropped."""
    turns = Turns()
    with out:
        await begin(request, response)
        if request.method == "HEAD":
            await out.end(response)
            return response
        await turns.rest()
        async for piece in _each(pieces):
            if not await out.write(response, piece):
                return response
            await turns.rest()  # writing to a fast reader never waits, and other requests need their turn
        await out.end(response)
    return response


async def _each(pieces: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece


def take_runs(held: list[HeldRun]) -> Iterator[Run]:
    """Yield the runs of *held* and remove each from it: the list always holds what is left, newest first."""
    held.reverse()
    while held:
        one = held.pop()
        if isinstance(one, Run):
            yield one
        else:
            yield from one.runs()


def cut_up(run: Run) -> Iterator[Run]:
    """Yield *run* in parts of at most `PIECE_RECORDS` and about `PIECE_BYTES`, or whole if it is not larger."""
    if len(run.payload) <= PIECE_BYTES and run.record_count <= PIECE_RECORDS:
        yield run
        return
    ends, records, first = memoryview(run.offsets).cast("i"), run.record_count, run.first_position
    at = 0
    while at < records:
        fitting = bisect_right(ends, ends[at] + PIECE_BYTES, at + 1) - 1
        stop = min(records, at + PIECE_RECORDS, max(fitting, at + 1))
        yield run.cut(first + at, first + stop)
        at = stop


def record_lines(run: Run, as_text: bool, times: Times) -> Pieces:
    """Yield the records of *run*, a part that `cut_up` made, as lines of JSON; a large record in several pieces."""
    # By time first, so that the text of a time is made once for all the records of a batch.
    for start, stop, tick in times.spans(run.first_position, run.next_position):
        yield from _lines_of(run.cut(start, stop), as_text, text_of_tick(tick))


def _lines_of(run: Run, as_text: bool, time: str) -> Pieces:
    if len(run.payload) > PIECE_BYTES:  # one record: `cut_up` makes no part of several that is as large
        yield b'{"position":%d,"time":"%s","payload":"' % (run.first_position, time.encode())
        yield from _text_parts(run.payload) if as_text else _base64_parts(run.payload)
        yield b'"}\n'
    elif as_text:
        yield _lines_encoder.encode_lines(
            [
                TextRecordResponse(position, time, payload.decode(errors="replace"))
                for position, payload in run.records()
            ]
        )
    else:
        yield _lines_encoder.encode_lines(
            [RecordResponse(position, time, payload) for position, payload in run.records()]
        )


def _base64_parts(payload: bytes) -> Pieces:
    view = memoryview(payload)
    for at in range(0, len(view), PIECE_BYTES):
        yield b64encode(view[at : at + PIECE_BYTES])


def _text_parts(payload: bytes) -> Pieces:
    """Yield *payload* as the inside of a JSON string."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    view = memoryview(payload)
    for at in range(0, len(view), PIECE_BYTES):
        text = decode(bytes(view[at : at + PIECE_BYTES]), at + PIECE_BYTES >= len(view))
        yield _lines_encoder.encode(text)[1:-1]


def _choice(content_type: str, as_text: bool) -> tuple[str, Format]:
    return content_type, _NDJSON_TEXT if as_text and content_type == NDJSON else _BY_TYPE[content_type]


def _ndjson(queue: str, queue_id: int, runs: Iterable[Run], times: Times, *, as_text: bool = False) -> Pieces:
    for run in runs:
        for part in cut_up(run):
            yield from record_lines(part, as_text, times)


def _text(queue: str, queue_id: int, runs: Iterable[Run], times: Times) -> Pieces:
    for run in runs:
        for part in cut_up(run):
            if part.record_count == 1:
                yield part.payload
                yield b"\n"
            else:
                yield b"\n".join([*part.payloads(), b""])


def _raw(queue: str, queue_id: int, runs: Iterable[Run], times: Times) -> Pieces:
    for run in runs:
        yield run.payload


def _runs(queue: str, queue_id: int, runs: Iterable[Run], times: Times) -> Pieces:
    return wire.encode([wire.QueueRuns(queue, queue_id, runs, times)])


def _payload_bytes(queue: str, runs: Sequence[Run], times: Times) -> int:
    return sum(len(run.payload) for run in runs)


def _text_bytes(queue: str, runs: Sequence[Run], times: Times) -> int:
    return sum(len(run.payload) + run.record_count for run in runs)


def _runs_bytes(queue: str, runs: Sequence[Run], times: Times) -> int:
    return wire.size_of([wire.QueueRuns(queue, 0, runs, times)])


_lines_encoder = msgspec.json.Encoder()

_NDJSON_TEXT = Format(partial(_ndjson, as_text=True))

_BY_TYPE: dict[str, Format] = {
    NDJSON: Format(_ndjson),
    TEXT: Format(_text, _text_bytes),
    OCTET_STREAM: Format(_raw, _payload_bytes),
    wire.CONTENT_TYPE: Format(_runs, _runs_bytes),
}
