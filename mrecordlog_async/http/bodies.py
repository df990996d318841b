"""Request bodies: received under limits and deadlines, then cut into records by their content type.

1. What can never be taken is refused by its Content-Length, before a byte is read; so is a compressed body.
2. All bodies that are being received share one budget; above it callers are told to come back.
3. A body must arrive at a minimum rate. One that was there with the request's head, as small ones are, costs no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain

import msgspec
from aiohttp import web

from mrecordlog_async.http import arrow, wire
from mrecordlog_async.http.messages import AppendRequest
from mrecordlog_async.http.options import ServiceOptions
from mrecordlog_async.http.problems import ProblemError, bad_request, too_large, too_many

OCTET_STREAM = "application/octet-stream"
NDJSON = "application/x-ndjson"
JSON = "application/json"


class Bodies:
    """Receives bodies; owns the budget they share."""

    def __init__(self, options: ServiceOptions) -> None:
        self._options = options
        self.receiving_bytes = 0

    async def receive(self, request: web.BaseRequest, bytes_max: int | None = None) -> bytes:
        """Return the whole body of *request*."""
        limit = self._options.body_bytes if bytes_max is None else bytes_max
        length = self.check(request, limit)
        if request.content.is_eof():
            body = request.content.read_nowait()
            if len(body) > limit:
                raise too_large(len(body), limit, "body bytes")
            return body
        return await self._receive_slowly(request, length, limit)

    def at_hand(self, request: web.BaseRequest) -> bytes | None:
        """Return the body if it has come whole, as small ones have; None if it must be received, or refused."""
        content = request.content
        if not content.is_eof() or "Content-Encoding" in request.headers:
            return None
        body = content.read_nowait()
        if len(body) > self._options.body_bytes:
            raise too_large(len(body), self._options.body_bytes, "body bytes")
        return body

    def check(self, request: web.BaseRequest, limit: int | None = None) -> int | None:
        """Refuse what the headers alone give away; return the length that they announce."""
        if "Content-Encoding" in request.headers:
            raise ProblemError(415, "encoding", "compressed bodies are not taken: send it as it is")
        length = request.content_length
        bytes_max = self._options.body_bytes if limit is None else limit
        if length is not None and length > bytes_max:
            raise _closing(too_large(length, bytes_max, "body bytes"))
        return length

    async def _receive_slowly(self, request: web.BaseRequest, length: int | None, limit: int) -> bytes:
        body = bytearray()
        charged = 0
        loop, options = asyncio.get_running_loop(), self._options
        begun = loop.time()
        try:
            charged = self._charge(length or 0)
            async with asyncio.timeout(options.body_seconds) as timeout:
                while piece := await request.content.readany():
                    body += piece
                    if len(body) > limit:
                        raise _closing(too_large(len(body), limit, "body bytes"))
                    if len(body) > charged:
                        charged += self._charge(len(body) - charged)
                    timeout.reschedule(begun + options.body_seconds + len(body) / options.body_rate_bytes)
        except TimeoutError:
            detail = f"the body came too slowly: {len(body)} bytes in {loop.time() - begun:.0f} seconds"
            raise _closing(ProblemError(408, "too_slow", detail)) from None
        finally:
            self.receiving_bytes -= charged
        return bytes(body)

    def _charge(self, size: int) -> int:
        limit = self._options.bodies_bytes
        if self.receiving_bytes + size > limit:
            raise _closing(too_many("body bytes", self.receiving_bytes, limit))
        self.receiving_bytes += size
        return size


def _closing(problem: ProblemError) -> ProblemError:
    """Tell the client that the connection ends: the rest of the body will not be read."""
    problem.headers["Connection"] = "close"
    return problem


# Records.


def records_of(body: bytes, content_type: str | None, records_max: int) -> list[bytes]:
    """Cut *body* into records. Unknown content types are one record, so that `curl --data-binary` just works."""
    if content_type is None or content_type == OCTET_STREAM:
        return [body]
    split = _BY_TYPE.get(content_type.partition(";")[0].strip().lower())
    return [body] if split is None else split(body, records_max)


def _lines(body: bytes, records_max: int) -> list[bytes]:
    """Every line is one record, as it is, without its newline; also an empty one. A last line needs no newline."""
    _check_count(body.count(b"\n"), records_max)
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _json(body: bytes, records_max: int) -> list[bytes]:
    records = _append_decoder.decode(body).records
    _check_count(len(records), records_max)
    return records


def _runs(body: bytes, records_max: int) -> list[bytes]:
    """Take the records of all blocks, in order; where they go, the request says, not the blocks' positions."""
    blocks = list(wire.decode(body))
    _check_count(sum(block.records for block in blocks), records_max)
    for block in blocks:
        wire.check_offsets(block.offsets)
    return list(chain.from_iterable(block.run().payloads() for block in blocks))


def _arrow(body: bytes, records_max: int) -> list[bytes]:
    try:
        records = arrow.decode(body)
    except ValueError as error:
        raise bad_request(str(error), "bad_body") from None
    _check_count(len(records), records_max)
    return records


def _check_count(records: int, records_max: int) -> None:
    if records > records_max:
        raise too_large(records, records_max, "records in one body")


_append_decoder = msgspec.json.Decoder(AppendRequest)

_BY_TYPE: dict[str, Callable[[bytes, int], list[bytes]]] = {
    NDJSON: _lines,
    JSON: _json,
    wire.CONTENT_TYPE: _runs,
    arrow.CONTENT_TYPE: _arrow,
}
