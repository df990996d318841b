"""Requests and responses in terms of ASGI: what the routes see of HTTP, whichever server is below.

No server is trusted with the promises of the API. Headers are copied and counted here, and a path that can be read in
two ways is refused. A body is received under limits (`bodies`), a long response is sent under them (`sending`).

A client that left is noticed where something waits. ASGI cancels no request, so what a client asked to store is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from mrecordlog_async.protocol.problems import ProblemError, bad_request
from mrecordlog_async.service.sending import Outgoing
from mrecordlog_async.service.turns import Turns

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiHeaders = list[tuple[bytes, bytes]]

DISCONNECT: Message = {"type": "http.disconnect"}
JSON = "application/json"
NDJSON = "application/x-ndjson"
OCTET_STREAM = "application/octet-stream"
TEXT = "text/plain"

ABORT = "mrecordlog.abort"
"""Key of a scope: cuts the connection."""

HEAD_BYTES = 64 * 1024
SMALL_BYTES = 64 * 1024
"""A smaller response is sent at once, without charge or deadline: it fits into the connection's buffer."""
PIECE_BYTES = 256 * 1024
LINGER_SECONDS = 2.0
"""How long the rest of a refused body is read and discarded: the client then sees the response and not a reset."""
LINGER_BYTES = 64 * 1024 * 1024

LENGTH_DIGITS = 19
"""Of the longest announced length: it fits into 64 bits."""

AMBIGUOUS = (
    "the path must be /v1/queues/NAME…, with only names percent-encoded, including their '#' and what is not ASCII"
)
NO_RAW_PATH = (
    "the server of this application does not say how the path was encoded (raw_path), so a name in it can be read in "
    "two ways; use uvicorn, hypercorn or granian, or `mrecordlog serve`"
)


class HttpRequest:
    """One request.

    names: queue and consumer in its path, percent-encoded as they were sent. unread: its body, or the rest of it, has
    not been received. begun: its response has begun.
    """

    __slots__ = (
        "_gone", "_pairs", "_query", "begun", "headers", "method", "names", "path", "receive", "scope", "send",
        "unread",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Copy the head. `check_head` tells what is wrong with it."""
        self.scope, self.receive, self.send = scope, receive, send
        self.method: str = scope["method"]
        self._pairs: AsgiHeaders = list(scope["headers"])
        self.headers = dict(self._pairs)
        self.path = ""
        self.names: tuple[str, ...] = ()
        self.begun = False
        self.unread = self.headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.headers
        self._query: dict[str, str] | None = None
        self._gone: asyncio.Task[None] | None = None

    def check_head(self) -> None:
        """Find the path; raise the problem of a head that is too large, or has two readings."""
        scope, head = self.scope, b"".join(chain.from_iterable(self._pairs))
        if b"\n" in head or b"\r" in head:
            raise bad_request("a header has a line break", "bad_request")
        if len(head) + len(scope["path"]) + len(scope.get("query_string", b"")) > HEAD_BYTES:
            raise large_head()
        if b"content-length" in self.headers or b"transfer-encoding" in self.headers:
            self._check_framing()
        self.path = _path_below(scope)

    def _check_framing(self) -> None:
        """Refuse a body whose end can be found in two places: the next request would begin elsewhere for a proxy."""
        length, is_chunked = self.headers.get(b"content-length", b"0"), b"transfer-encoding" in self.headers
        is_repeated = len(self.headers) < len(self._pairs) and (
            len(self.all(b"content-length")) > 1 or len(self.all(b"transfer-encoding")) > 1
        )
        is_number = length.isdigit() and len(length) <= LENGTH_DIGITS
        # A proxy of HTTP/1.0 knows no chunks (RFC 9112, section 6.1).
        has_another = is_chunked and (b"content-length" in self.headers or self.scope["http_version"] == "1.0")
        if is_repeated or not is_number or has_another:
            raise closing(bad_request("the lengths of the body contradict each other", "bad_request"))

    def header(self, name: bytes) -> str | None:
        """Return the last header with this *name*, which is in lower case."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def all(self, name: bytes) -> list[str]:
        """Return every header with this *name*."""
        return [value.decode("latin-1") for key, value in self._pairs if key == name]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The parameters of the query, in order."""
        return parse_qsl(self.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the query, by name."""
        if self._query is None:
            self._query = dict(self.pairs) if self.scope.get("query_string") else {}
        return self._query

    @property
    def length(self) -> int | None:
        """The announced length of the body."""
        value = self.header(b"content-length")
        return int(value) if value is not None else None

    def gone(self) -> asyncio.Task[None]:
        """Return the task that ends when the client has left. The body must have been received."""
        if self._gone is None:
            self._gone = asyncio.ensure_future(self._wait_gone())
        return self._gone

    async def _wait_gone(self) -> None:
        with suppress(Exception):  # servers and middlewares report it in several ways
            while (await self.receive())["type"] != "http.disconnect":  # noqa: ASYNC110  # ASGI has no event
                await asyncio.sleep(0)  # a server may return at once what is no disconnect

    def end(self) -> None:
        """Wait for the client no longer."""
        if self._gone is not None:
            self._gone.cancel()

    async def skip(self, seconds: float) -> None:
        """Discard the rest of the body, for at most *seconds*."""
        left = LINGER_BYTES if seconds else SMALL_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.unread and left > 0:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        return
                    left -= len(message.get("body", b""))
                    self.unread = message.get("more_body", False)
                    await asyncio.sleep(0)

    async def start(self, status: int, headers: AsgiHeaders) -> None:
        """Send the head of the response.

        The client may take what follows for another protocol (RFC 9110, section 7.8), and servers may read on: after a
        request with `Upgrade` nothing is read from its connection.
        """
        self.begun = True
        if b"upgrade" in self.headers and not any(name == b"connection" for name, _ in headers):
            headers = [*headers, (b"connection", b"close")]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def break_off(self) -> None:
        """Have the server cut the connection, so that a response that has begun does not look whole.

        A server does so for a response without an end, but Starlette's BaseHTTPMiddleware ends that response, whatever
        happens below it. So what it gets is a body that it passes on and no server can send.
        """
        if ABORT in self.scope:
            self.scope[ABORT]()
        elif self.begun:
            with suppress(Exception):
                await self.send({"type": "http.response.body", "body": _BrokenOff(), "more_body": True})


class _BrokenOff:
    """A body that cannot be sent."""

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        raise ConnectionResetError("the response broke off")


class HttpResponse:
    """A response that is sent at once."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, body: bytes = b"", status: int = 200, content_type: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        self.body, self.status = body, status
        self.headers: dict[str, str] = {} if status in (204, 304) else {"content-type": content_type}
        if headers:
            self.headers.update(headers)

    async def respond(self, request: HttpRequest) -> None:
        """Send it. The rest of a body that was not received is discarded."""
        if request.unread and b"expect" not in request.headers:  # else that would ask for the body
            await request.skip(0)
        if request.unread:  # what the client sends next may still be the body
            self.headers["connection"] = "close"
        if self.status not in (204, 304):
            self.headers["content-length"] = str(len(self.body))
        await request.start(self.status, encoded(self.headers))
        body = b"" if request.method == "HEAD" else self.body
        await request.send({"type": "http.response.body", "body": body, "more_body": request.unread})
        if request.unread:
            await request.skip(LINGER_SECONDS)
            await request.send({"type": "http.response.body", "body": b"", "more_body": False})


class Stream(HttpResponse):
    """A response that is sent piece by piece. *out* is charged for it until it ends."""

    __slots__ = ("out", "pieces")

    def __init__(
        self,
        pieces: Iterable[bytes] | AsyncIterable[bytes],
        out: Outgoing,
        content_type: str,
        headers: Mapping[str, str] | None = None,
        size: int | None = None,
    ) -> None:
        super().__init__(b"", 200, content_type, headers)
        self.pieces, self.out = pieces, out
        if size is not None:
            self.headers["content-length"] = str(size)

    async def respond(self, request: HttpRequest) -> None:
        """Send it. The connection of a reader that is too slow is cut."""
        turns = Turns()
        with self.out:
            await request.start(200, encoded(self.headers))
            if request.method != "HEAD":
                async for piece in _each(self.pieces):
                    for at in range(0, len(piece), PIECE_BYTES):
                        part = piece if len(piece) <= PIECE_BYTES else memoryview(piece)[at : at + PIECE_BYTES]
                        await self.out.send(request.send, bytes(part))
                    await turns.rest()
            await self.out.send(request.send, b"", more=False)


async def _each(pieces: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterable[bytes]:
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece


def closing(problem: ProblemError) -> ProblemError:
    """Return *problem* with a header that the connection closes: the rest of the body will not be read."""
    problem.headers["connection"] = "close"
    return problem


def large_head() -> ProblemError:
    """Return the problem of a head above `HEAD_BYTES`."""
    return closing(ProblemError(431, "bad_request", f"the head of the request has more than {HEAD_BYTES} bytes"))


def encoded(headers: Mapping[str, str]) -> AsgiHeaders:
    """Return *headers* in the form of ASGI, and those of every response."""
    found = [_NOSNIFF]
    for name, value in headers.items():
        if "\n" in value or "\r" in value:
            raise ValueError(f"a line break in the header {name}")
        found.append((name.lower().encode(), value.encode("latin-1")))
    return found


_NOSNIFF = (b"x-content-type-options", b"nosniff")


def _path_below(scope: Scope) -> str:
    """Return the path below the mount, encoded as the client sent it: a name may hold an encoded slash."""
    root = scope.get("root_path", "").rstrip("/").encode()
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        path: str = scope["path"].removeprefix(root.decode())
        # Without the encoded form, the name of one queue may look like another one, or like a route below it.
        if path.startswith("/v1/queues/") and (not path.isascii() or "%" in path or path.count("/") > 3):
            raise bad_request(NO_RAW_PATH, "path")
        return path
    raw = raw.partition(b"?")[0]
    if b"#" in raw or not raw.isascii():
        raise bad_request(AMBIGUOUS, "path")
    if root and unquote_to_bytes(raw).startswith(root):
        segments = raw.split(b"/")
        at = 1 + root.count(b"/")
        if unquote_to_bytes(b"/".join(segments[:at])) != root:
            raise bad_request(AMBIGUOUS, "path")
        raw = b"/" + b"/".join(segments[at:])
    return raw.decode()
