"""Request bodies: received under limits and deadlines, and charged until the response.

1. A body that can never be accepted is refused by its Content-Length, before a byte is read. A compressed one is
   expanded as it arrives, and its limits are those of what it expands to.
2. All bodies share one budget. Each is charged for the bytes that have arrived, not for those announced, until its
   response, including while it waits for the writer. Above the budget callers get a 429. A part is reserved for small
   bodies. JSON bodies up to 64 KiB for anything but an append are not charged: a truncate frees memory.
3. A body must arrive at a minimum rate and never pause for longer than `body_seconds`. A body that arrived with the
   request's head, as small ones do, needs no timer.
4. A compressed body of an application whose server expands it is refused: nothing shows whether it was whole.
5. A middleware of an application may have read the body. What aiohttp's `request.read()` returned there is used. A body
   that was announced and is not there is never taken for an empty one: an empty record needs `Content-Length: 0`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from io import BytesIO

from aiohttp import StreamReader, web

from mrecordlog_async.options import KIB, MIB
from mrecordlog_async.protocol.problems import ProblemError, bad_request, too_large
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.wire.budgets import Budget, Charge
from mrecordlog_async.service.wire.encodings import Expander, expander
from mrecordlog_async.service.wire.turns import Turns

OCTET_STREAM = "application/octet-stream"
NDJSON = "application/x-ndjson"
JSON = "application/json"

CONTROL_FREE_BYTES = 64 * KIB
"""A control body (JSON for anything but an append) up to this size is not charged."""
SMALL_BODY_BYTES = MIB
"""The last eighth of the budget is reserved for bodies below this size."""
CHECK_SECONDS = 1.0
"""Interval between two checks of a body that pauses, for a malformed chunk."""


class Bodies:
    """Receive bodies, and own the budget that they share."""

    def __init__(self, options: ServiceOptions) -> None:
        self._options = options
        self.budget = Budget("body bytes", options.bodies_bytes)
        self._ceiling = max(options.bodies_bytes * 7 // 8, options.body_bytes)

    async def receive(self, request: web.BaseRequest, charge: Charge) -> bytes:
        """Return the whole body of *request*, an append."""
        body = self.at_hand(request, charge)
        if body is not None:
            return body
        length = self.check(request, self._options.body_bytes)
        if length == 0 and expander(request.headers.get("Content-Encoding", "")) is not None:
            detail = "the body is empty, so what compressed it may have failed; "
            raise bad_request(detail + "send an empty record without Content-Encoding", "bad_body")
        return await self._receive_slowly(request, length, self._options.body_bytes, charge, free=0)

    async def receive_control(self, request: web.BaseRequest, charge: Charge) -> bytes:
        """Return the whole body of *request*, which asks for something other than an append."""
        limit = self._options.control_bytes
        length = self.check(request, limit)
        return await self._receive_slowly(request, length, limit, charge, free=CONTROL_FREE_BYTES)

    def at_hand(self, request: web.BaseRequest, charge: Charge) -> bytes | None:
        """Return the body if it has fully arrived, as small ones have; None if it must be received or refused."""
        content, headers = request.content, request.headers
        if not content.is_eof() or "Content-Encoding" in headers or "Transfer-Encoding" in headers:
            return None
        # The parser has delivered the end, so this is the whole body.
        body = _read_before(request)
        if body is None:
            body = content.read_nowait()
        if len(body) > self._options.body_bytes:
            raise too_large(len(body), self._options.body_bytes, "body bytes")
        if not body and "Content-Length" not in headers:
            raise bad_request("the request has no body; to append an empty record, send Content-Length: 0", "bad_body")
        _check_whole(request, len(body))
        charge.add(len(body))
        return body

    def check(self, request: web.BaseRequest, limit: int | None = None) -> int | None:
        """Refuse a body whose headers show that it is too large or encoded in a way that is not supported.

        Returns:
            The length that they announce, as it is sent.
        """
        headers = request.headers
        if "Content-Encoding" in headers:
            try:
                expander(", ".join(headers.getall("Content-Encoding")))
                _check_not_expanded(request)
            except ProblemError as problem:
                raise closing(problem) from None
        if headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
            detail = "Transfer-Encoding must be chunked; send chunks, or a Content-Length"
            raise closing(ProblemError(415, "encoding", detail))
        length = request.content_length
        bytes_max = self._options.body_bytes if limit is None else limit
        if length is not None and length > bytes_max:
            raise closing(too_large(length, bytes_max, "body bytes"))
        return length

    async def _receive_slowly(
        self, request: web.BaseRequest, length: int | None, limit: int, charge: Charge, *, free: int
    ) -> bytes:
        """Read the body piece by piece. *free*: how many of the first bytes are not charged."""
        content, clock = request.content, _RateClock(self._options)
        encoded = "Content-Encoding" in request.headers
        # A body that is announced as small may use the reserved part of the budget.
        ceiling = None if length is not None and length < SMALL_BODY_BYTES and not encoded else self._ceiling
        growing = _Growing(limit, charge, free, ceiling)
        if kept := _read_before(request):
            await growing.take(request, kept)  # a middleware has read it all: the loop below finds the end at once
        check = partial(_check_chunks, request)
        while not content.at_eof():
            piece = await clock.wait_for(content, check)
            if piece is None:
                raise closing(ProblemError(408, "too_slow", clock.detail(growing.arrived)))
            await growing.take(request, piece)
            clock.arrived(len(piece))
        return growing.end(request)


class _Growing:
    """A body of which a part has arrived, expanded if it is compressed.

    It may grow to *limit* bytes, charged from *free* bytes on, and use the budget up to *ceiling*. Growth is taken at
    once or refused: bodies that each hold a part and wait for more would wait for each other.
    """

    def __init__(self, limit: int, charge: Charge, free: int, ceiling: int | None) -> None:
        self._limit, self._charge, self._free, self._ceiling = limit, charge, free, ceiling
        self._body = BytesIO()  # its value is its buffer: one whole body is in memory, not two
        self._expander: Expander | None = None
        self.arrived = 0  # bytes, as they were sent

    async def take(self, request: web.BaseRequest, piece: bytes) -> None:
        """Add *piece*, or what it expands to."""
        if not self.arrived:
            self._expander = expander(request.headers.get("Content-Encoding", ""))
        self.arrived += len(piece)
        try:
            if self._expander is None:
                self._grow(piece)
                return
            turns = Turns()
            for part in self._expander.expand(piece):
                self._grow(part)
                await turns.rest()
        except ProblemError as problem:
            raise closing(problem) from None

    def _grow(self, part: bytes) -> None:
        size = self._body.tell() + len(part)
        if size > self._limit:
            raise too_large(size, self._limit, "body bytes")
        if size > self._free:
            self._charge.add(size - self._free - self._charge.size, self._ceiling)
        self._body.write(part)  # not a list of parts: each may be a single byte

    def end(self, request: web.BaseRequest) -> bytes:
        """Return the whole body; refuse one that was cut off, or read by a middleware."""
        _check_whole(request, self.arrived)
        if self._expander is not None:
            self._expander.end()
        return self._body.getvalue()


def _check_not_expanded(request: web.BaseRequest) -> None:
    """Refuse a body that the server of an application expands, as that of aiohttp does by default.

    It takes what is cut off for a whole body, and what follows the end for nothing.
    """
    if getattr(request.content, "total_compressed_bytes", None) is None:  # one without a body has no such number
        return
    detail = (
        "the server of this application expands bodies itself, and does not notice one that is cut off; send the body "
        'as it is, or create the application with handler_args={"auto_decompress": False}'
    )
    raise ProblemError(415, "encoding", detail, headers={"Accept-Encoding": "identity"})


class _RateClock:
    """The deadline of one body: it moves with every byte, but is never more than `body_seconds` from now."""

    def __init__(self, options: ServiceOptions) -> None:
        self._options = options
        self._now = asyncio.get_running_loop().time
        self._late_since, self._arrived_late = self._now(), 0  # since when, and bytes since then, the rate counts
        self._deadline = self._late_since + options.body_seconds
        self._is_pause = False  # what the deadline bounds: a pause, or the rate

    async def wait_for(self, content: StreamReader, check: Callable[[], None]) -> bytes | None:
        """Return what has arrived, at least one byte unless the body ended; None if the deadline passed.

        check: Called each second meanwhile; raises if nothing more can arrive.
        """
        while True:
            try:
                async with asyncio.timeout_at(min(self._deadline, self._now() + CHECK_SECONDS)):
                    return await content.readany()  # even after the deadline, if it is there already
            except TimeoutError:
                check()
                if self._now() >= self._deadline:
                    return None

    def arrived(self, size: int) -> None:
        whole = self._deadline + size / self._options.body_rate_bytes
        pause = self._now() + self._options.body_seconds
        self._deadline, self._is_pause = min(whole, pause), pause < whole
        self._arrived_late += size
        if self._is_pause:  # bytes that came faster than they must give no more time than this
            self._late_since, self._arrived_late = self._now(), 0

    def detail(self, size: int) -> str:
        """Return why the deadline has passed, after *size* bytes in all."""
        if self._is_pause:
            longest = self._options.body_seconds
            return f"the body paused for {longest:g} s after {size} bytes; send it without pauses of that length"
        seconds, rate = self._now() - self._late_since, self._options.body_rate_bytes
        slow = f"{self._arrived_late} bytes in the last {seconds:.0f} s, after {size - self._arrived_late} bytes before"
        return f"the body arrived too slowly: {slow}; send at least {rate} bytes per second"


def _check_chunks(request: web.BaseRequest) -> None:
    """Refuse a body with a malformed chunk, which would never end.

    aiohttp reports it to the connection alone: its response waits there as the next message, and no other message
    can arrive before the end of this body.
    """
    protocol = request.protocol
    if protocol is not None and protocol._messages and not request.content.is_eof():  # noqa: SLF001  # no public way
        detail = "a chunk of the body is malformed: each is its size in hexadecimal digits, and this many bytes"
        raise closing(bad_request(detail, "bad_body"))


def _check_whole(request: web.BaseRequest, size: int) -> None:
    """Refuse a body that was announced and is not there: a middleware has read it, or the client sent nothing."""
    length = request.content_length
    if length is None and not size and "Transfer-Encoding" in request.headers:
        detail = "the body was announced in chunks and is empty, or a middleware of the application has read it; "
        raise bad_request(detail + "if it is to be empty, send Content-Length: 0", "bad_body")
    if length is not None and size != length:
        read = f"a middleware has read {length - size} of {length} bytes of the body"
        raise RuntimeError(f"{read}: use request.read() there, which keeps them, instead of request.content")


def closing(problem: ProblemError) -> ProblemError:
    """Return *problem* with a header that the connection closes: the rest of the body will not be read."""
    problem.headers["Connection"] = "close"
    return problem


def _read_before(request: web.BaseRequest) -> bytes | None:
    """Return the whole body if a middleware has called `request.read()`, which keeps it; None if nobody has."""
    return request._read_bytes  # noqa: SLF001  # the public call would read the body, without any limit
