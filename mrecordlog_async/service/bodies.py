"""Request bodies: received under limits and deadlines, expanded if they are compressed, and charged until the response.

1. A body that can never be accepted is refused by its Content-Length, before a byte is read. A compressed one is
   expanded as it arrives, and its limits are those of what it expands to.
2. All bodies share one budget. Each is charged for the bytes that have arrived, not for those announced, until its
   response, including while it waits for the writer. Above the budget callers get a 429. A part is reserved for small
   bodies. JSON bodies up to 64 KiB for anything but an append are not charged: a truncate frees memory.
3. A body must arrive at a minimum rate and never pause for longer than `body_seconds`. A body that has arrived with the
   request's head, as small ones do, needs no timer where the server says so.
4. A body that was announced and is not there is never taken for an empty one, because a middleware of the application
   may have read it: an empty record needs `Content-Length: 0`.

| Content-Encoding | expanded by |
|---|---|
| `gzip`, `x-gzip` | zlib; a body may have several members, one after the other |
| `deflate` | zlib, with or without its header: senders disagree on what the name means (RFC 9110, section 8.4.1.2) |
| `identity` | nothing |

One encoding per body: a body that was compressed twice is refused.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from mrecordlog_async.options import KIB, MIB
from mrecordlog_async.protocol.problems import ProblemError, bad_request, too_large
from mrecordlog_async.service.http import SMALL_BYTES, HttpRequest, closing
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.sending import Budget, Charge
from mrecordlog_async.service.turns import Turns

CONTROL_FREE_BYTES = 64 * KIB
"""A control body (JSON for anything but an append) up to this size is not charged."""
SMALL_BODY_BYTES = MIB
"""The last eighth of the budget is reserved for bodies below this size."""
STEP_BYTES = 64 * KIB
"""The most bytes that one step of an expansion returns."""

WHOLE = "mrecordlog.whole"
"""Key of a scope: whether the whole body has arrived. The first message then has all of it."""
EXPANDED = "mrecordlog.expanded"
"""Key of a scope: the server expands bodies itself, and does not notice one that is cut off."""

ENCODINGS = "gzip, deflate"
NO_BODY = (
    "the body was announced without a length and is empty, or a middleware of the application has read it; "
    "if it is to be empty, send Content-Length: 0"
)


class Bodies:
    """Receive bodies, and own the budget that they share."""

    def __init__(self, options: ServiceOptions) -> None:
        self._options = options
        self.budget = Budget("body bytes", options.bodies_bytes)
        self._ceiling = max(options.bodies_bytes * 7 // 8, options.body_bytes)

    async def receive(self, request: HttpRequest, charge: Charge) -> bytes:
        """Return the whole body of *request*, an append."""
        length = self.check(request, self._options.body_bytes)
        if length is None and not may_have_body(request):
            raise bad_request("the request has no body; to append an empty record, send Content-Length: 0", "bad_body")
        if length == 0 and encoding_of(request) is not None:
            detail = "the body is empty, so what compressed it may have failed; "
            raise bad_request(detail + "send an empty record without Content-Encoding", "bad_body")
        body = await self._receive(request, length, self._options.body_bytes, charge, free=0)
        if length is None and not body:
            raise bad_request(NO_BODY, "bad_body")
        return body

    async def receive_control(self, request: HttpRequest, charge: Charge) -> bytes:
        """Return the whole body of *request*, which asks for something other than an append."""
        limit = self._options.control_bytes
        length = self.check(request, limit)
        return await self._receive(request, length, limit, charge, free=CONTROL_FREE_BYTES)

    async def discard(self, request: HttpRequest) -> None:
        """Receive a small body on a route that reads none; refuse another one, which would be sent for nothing."""
        if request.length is None:
            detail = "this route reads no body, and the one of this request has no Content-Length; send no body"
            raise closing(ProblemError(413, "too_large", detail))
        if request.length > SMALL_BYTES:
            raise closing(too_large(request.length, SMALL_BYTES, "bytes of a body that this route does not read"))
        clock = _RateClock(self._options)
        while request.unread:
            await self._piece(request, clock, 0)

    def check(self, request: HttpRequest, limit: int) -> int | None:
        """Refuse a body whose headers show that it is too large or encoded in a way that is not supported.

        Returns:
            The length that they announce, as it is sent.
        """
        try:
            if encoding_of(request) is not None and request.scope.get(EXPANDED):
                detail = (
                    "the server of this application expands bodies itself, and does not notice one that is cut off; "
                    'send the body as it is, or create the application with handler_args={"auto_decompress": False}'
                )
                raise ProblemError(415, "encoding", detail, headers={"Accept-Encoding": "identity"})
            if request.headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
                detail = "Transfer-Encoding must be chunked; send chunks, or a Content-Length"
                raise ProblemError(415, "encoding", detail)
            length = request.length
            if length is not None and length > limit:
                raise too_large(length, limit, "body bytes")
        except ProblemError as problem:
            raise closing(problem) from None
        return length

    async def _receive(
        self, request: HttpRequest, length: int | None, limit: int, charge: Charge, *, free: int
    ) -> bytes:
        """Receive the body piece by piece. *free*: how many of the first bytes are not charged."""
        encoding = encoding_of(request)
        if encoding is None and request.scope.get(WHOLE):
            return await self._receive_whole(request, length, limit, charge, free=free)
        clock, arrived = _RateClock(self._options), 0
        # A body that is announced as small may use the reserved part of the budget.
        ceiling = None if length is not None and length < SMALL_BODY_BYTES and encoding is None else self._ceiling
        growing = _Growing(limit, charge, free, ceiling)
        expansion = None if encoding is None else Expansion(encoding)
        request.unread = may_have_body(request)
        try:
            more = request.unread
            while more:
                piece = await self._piece(request, clock, arrived)
                arrived, more = arrived + len(piece), request.unread
                if expansion is not None:
                    turns = Turns()
                    for part in expansion.parts(piece):
                        growing.add(part)
                        await turns.rest()
                elif arrived == len(piece) and not more:  # most bodies are one piece
                    _check_whole(request, length, arrived)
                    growing.charge(arrived)
                    return piece
                else:
                    growing.add(piece)
        except ProblemError as problem:
            raise closing(problem) if request.unread else problem from None
        _check_whole(request, length, arrived)
        if expansion is not None:
            expansion.end()
        return growing.body.getvalue()

    async def _receive_whole(
        self, request: HttpRequest, length: int | None, limit: int, charge: Charge, *, free: int
    ) -> bytes:
        """Receive a body that is there already, as small ones are."""
        body: bytes = (await request.receive()).get("body", b"")
        request.unread = False
        if len(body) > limit:
            raise too_large(len(body), limit, "body bytes")
        _check_whole(request, length, len(body))
        if len(body) > free:
            charge.add(len(body) - free)
        return body

    async def _piece(self, request: HttpRequest, clock: _RateClock, arrived: int) -> bytes:
        """Return the next piece of the body. *arrived*: bytes before it."""
        try:
            async with asyncio.timeout_at(clock.deadline):
                message = await request.receive()
        except TimeoutError:
            raise closing(ProblemError(408, "too_slow", clock.detail(arrived))) from None
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the client left")
        piece: bytes = message.get("body", b"")
        request.unread = message.get("more_body", False)
        clock.arrived(len(piece))
        return piece


class _Growing:
    """A body of which a part has arrived.

    It may grow to *limit* bytes, charged from *free* bytes on, and use the budget up to *ceiling*. Growth is taken at
    once or refused: bodies that each hold a part and wait for more would wait for each other.
    """

    def __init__(self, limit: int, charge: Charge, free: int, ceiling: int | None) -> None:
        self._limit, self._charge, self._free, self._ceiling = limit, charge, free, ceiling
        self.body = BytesIO()  # its value is its buffer: one whole body is in memory, not two

    def charge(self, size: int) -> None:
        """Charge the first *size* bytes."""
        if size > self._limit:
            raise too_large(size, self._limit, "body bytes")
        if size > self._free:
            self._charge.add(size - self._free - self._charge.size, self._ceiling)

    def add(self, part: bytes) -> None:
        """Add *part*."""
        self.charge(self.body.tell() + len(part))
        self.body.write(part)  # not a list of parts: each may be a single byte


class _RateClock:
    """The deadline of one body: it moves with every byte, but is never more than `body_seconds` from now."""

    def __init__(self, options: ServiceOptions) -> None:
        self._options = options
        self._now = asyncio.get_running_loop().time
        self._late_since, self._arrived_late = self._now(), 0  # since when, and bytes since then, the rate counts
        self.deadline = self._late_since + options.body_seconds
        self._is_pause = False  # what the deadline bounds: a pause, or the rate

    def arrived(self, size: int) -> None:
        """Move the deadline: *size* more bytes have arrived."""
        whole = self.deadline + size / self._options.body_rate_bytes
        pause = self._now() + self._options.body_seconds
        self.deadline, self._is_pause = min(whole, pause), pause < whole
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


def may_have_body(request: HttpRequest) -> bool:
    """Return whether a body may follow the head. Since HTTP/2 one needs neither a length nor an encoding."""
    return request.unread or request.scope["http_version"] >= "2"


def _check_whole(request: HttpRequest, length: int | None, size: int) -> None:
    """Refuse a body that was announced and is not there: a middleware has read it, or the client sent nothing."""
    if length is None and not size and b"transfer-encoding" in request.headers:
        raise bad_request(NO_BODY, "bad_body")
    if length is not None and size != length:
        read = f"a middleware has read {length - size} of {length} bytes of the body"
        raise RuntimeError(
            f"{read}: use request.body() (FastAPI) or request.read() (aiohttp) there, which keep them, instead of "
            "request.stream() or request.content"
        )


def encoding_of(request: HttpRequest) -> str | None:
    """Return the Content-Encoding of the body, one that is supported; None if there is nothing to expand."""
    if b"content-encoding" not in request.headers:
        return None
    name = ", ".join(request.all(b"content-encoding")).strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip", "deflate"):
        return name.removeprefix("x-")
    detail = f"Content-Encoding {name[:80]!r} is not supported; send the body with one of these, or as it is: "
    raise ProblemError(415, "encoding", detail + ENCODINGS, headers={"Accept-Encoding": ENCODINGS})


class Expansion:
    """The expansion of one body, gzip or deflate."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._member: Any = None

    def parts(self, piece: bytes) -> Iterator[bytes]:
        """Yield what *piece* expands to, at most `STEP_BYTES` at a time."""
        left = piece
        while left:
            if self._member is None or (self._member.eof and self._name == "gzip"):  # other members may follow
                self._member = self._begin(left[0])
            elif self._member.eof:
                raise bad_request(f"bytes follow the end of the {self._name} body", "bad_body")
            member = self._member
            try:
                yield member.decompress(left, STEP_BYTES)
                left = member.unused_data if member.eof else member.unconsumed_tail
                # What fitted into the step is taken, but not what the decompressor holds back.
                while not left and not member.eof and (more := member.decompress(b"", STEP_BYTES)):
                    yield more
            except zlib.error as error:
                raise bad_request(f"the body is not {self._name}: {error}", "bad_body") from None

    def end(self) -> None:
        """Raise the 400 problem unless the body ended where it may end."""
        if self._member is None or not self._member.eof:
            raise bad_request(f"the {self._name} body is cut off before its end", "bad_body")

    def _begin(self, first: int) -> Any:
        if self._name == "gzip":
            return zlib.decompressobj(wbits=31)
        # The header of zlib begins with its method, 8.
        return zlib.decompressobj(wbits=15 if first & 0x0F == 8 and first >> 4 <= 7 else -15)
