"""HTTP/1.1 without I/O: the bytes of a request, and one response in the bytes that arrive, which llhttp parses.

Both transports stand on it. It repeats nothing, follows nothing, and accepts no response that is not whole.
"""

from __future__ import annotations

import os
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import httptools

from mrecordlog_async.protocol.responses import Headers, Reply
from mrecordlog_async.servers.names import Endpoint

CONNECT_SECONDS = 5.0

IDLE_SECONDS = 15.0
"""Seconds that an unused connection is kept; services and proxies close theirs later."""

HEAD_BYTES = 65_536
"""A head that has not ended after this many bytes is refused."""

PIECE_BYTES = 262_144
"""What is written at a time: a large body written in one go would hold an event loop (70 MB: 0.13 s)."""

SCRATCH_BYTES = 65_536
"""What is read at a time of a head, or of a body whose length is not known."""

BODY_BYTES = 16 * 1024 * 1024
"""Room for a body of known length that is made at once; more is made when this much has arrived."""

NO_TLS = "TLS failed"
"""Beginning of the reasons of `tls_failure`."""

UNKNOWN_AUTHORITY = (18, 19, 20)
"""Codes of OpenSSL: the certificate signs itself, or nothing that this machine trusts has signed it."""

CLOSED_BY_PEER = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)
"""Errors of a connection that the other side has closed."""

CUT_OFF = "the connection was closed before the end of the response"
NOT_CONNECTED = f"there was no connection within {CONNECT_SECONDS:g} s"
TOO_LONG = "the response took too long"


class ClosedWhileIdleError(ConnectionResetError):
    """A connection that was used before was closed before any byte of a response.

    The service may have closed it because it was idle, before the request arrived.
    """


class Exchange:
    """One response. Receive into `room`, and pass on how much has arrived, or that nothing more does.

    llhttp parses the head and what arrives with it. The rest of a body whose length is known is received into its
    place: llhttp copies it, and a body that grows is copied, too (8.5 MB: 1.1 ms so, 2.8 ms grown).

    Attributes:
        is_whole: The response is complete.
        heard: Something has arrived.
        reusable: The connection may be used for another request.
    """

    def __init__(self, scratch: memoryview) -> None:
        """Begin. scratch: where bytes that llhttp parses are received; exchanges in turn may share one."""
        self.is_whole = self.heard = self.reusable = False
        self._parser = httptools.HttpResponseParser(self)
        self._scratch = scratch
        self._head_room = HEAD_BYTES
        self._begin()

    def _begin(self) -> None:
        self._headers, self._body = Headers(), bytearray()
        self._in_head, self._ends_with_connection = True, False
        self._length: int | None = None  # of a body that is received into its place
        self._filled = 0

    def room(self) -> memoryview:
        """Return where to receive the next bytes. Drop it before the next step."""
        if self._length is None or self.is_whole:
            return self._scratch
        if self._filled == len(self._body):  # one byte more than the body shows what follows it
            self._body += bytes(min(self._length + 1 - self._filled, BODY_BYTES))
        return memoryview(self._body)[self._filled :]

    def received(self, count: int) -> None:
        """Take *count* bytes that are in `room` now. Raises ConnectionError if they are not of one response."""
        self.heard = True
        if self.is_whole:
            self.reusable = False
        elif self._length is None:
            self._parse(self._scratch[:count])
        else:
            self._filled += count
            if self._filled >= self._length:
                self._complete()
                self.reusable &= self._filled == self._length

    def _parse(self, data: memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:  # a signal handler raised in one of the methods below
            raise error.__context__ or error from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if not self.is_whole:
                raise ConnectionError(f"the response is not HTTP: {error}") from None
        if self._in_head:  # of a response, or of one that follows another with a status of 1xx
            self._head_room -= len(data)
            if self._head_room < 0:
                raise ConnectionError("the head of the response is too large")
        elif not self.is_whole and "content-length" in self._headers and "transfer-encoding" not in self._headers:
            self._count(int(self._headers["content-length"]))

    def _count(self, length: int) -> None:
        """Receive the rest of a body of *length* bytes into its place."""
        begun, self._length, self._filled = self._body, length, len(self._body)
        self._body = bytearray(max(min(length + 1, BODY_BYTES), self._filled))
        self._body[: self._filled] = begun

    def end(self) -> None:
        """Take the end of the connection, which is the end of a body without a length. Raises ConnectionError."""
        if not self.is_whole:
            if not self._ends_with_connection:
                raise ConnectionResetError(CUT_OFF)
            self.on_message_complete()
        self.reusable = False

    def _complete(self) -> None:
        self._status = self._parser.get_status_code()  # of this response: another one may follow
        self.is_whole, self.reusable = True, self._parser.should_keep_alive()

    def reply(self) -> Reply:
        """Return the response, which is whole."""
        if self._length is not None:
            del self._body[self._length :]
        del self._parser  # it refers to this exchange: the body would stay until garbage is collected
        return Reply(self._status, self._headers, self._body)

    # What llhttp calls.

    def on_message_begin(self) -> None:
        """More than the response has arrived."""
        self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header. Trailers of chunks are passed over."""
        if self._in_head:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """Note whether the end of the connection ends the body."""
        self._in_head = False
        has_length = "content-length" in self._headers or "transfer-encoding" in self._headers
        self._ends_with_connection = not has_length and self._parser.get_status_code() >= 200

    def on_body(self, data: bytes) -> None:
        """Note a part of the body."""
        if not self.is_whole:
            self._body += data

    def on_message_complete(self) -> None:
        """Note that the response is whole, unless it only announces another one (RFC 9110 §15.2)."""
        if self._parser.get_status_code() < 200:
            self._begin()
        elif not self.is_whole:
            self._complete()


class Target(NamedTuple):
    """Where to connect, and what every request there has in common."""

    unix: str | None  # path of a socket
    host: str  # as certificates have it
    address: str  # what to connect to
    port: int
    secure: bool
    path: bytes  # of the log, percent-encoded
    headers: bytes

    @classmethod
    def of(cls, place: Endpoint, token: str | None, more: Mapping[str, str | None]) -> Target:
        """Return that of *place*. more: headers; None is left out."""
        unix = place.url.removeprefix("unix:") if place.url.startswith("unix:") else None
        url = urlsplit("http://localhost" if unix else place.url)
        host, secure = url.hostname or "", url.scheme == "https"
        headers = {"Host": _in_ascii(url.netloc.rpartition("@")[2]), "Accept-Encoding": "identity"}
        headers |= authorization(place.url, token) | {name: text for name, text in more.items() if text is not None}
        path = quote(url.path.rstrip("/"), safe="/%!$&'()*+,;=:@~").encode()
        port = url.port or (443 if secure else 80)
        return cls(unix, host, place.address or host, port, secure, path, _lines(headers))

    def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Sequence[bytes | memoryview]:
        """Return the pieces of a request, each of which is written at once."""
        head = b"%b %b%b HTTP/1.1\r\n%b%b" % (
            method.encode(),
            self.path,
            target.encode(),
            self.headers,
            _lines(headers),
        )
        if body is None and method in ("GET", "DELETE"):
            return [head + b"\r\n"]
        body = body or b""
        head = b"%bContent-Length: %d\r\n\r\n" % (head, len(body))
        if len(body) <= PIECE_BYTES:
            return [head + body]
        view = memoryview(body)
        return [head, *(view[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES))]


def _lines(headers: Mapping[str, str]) -> bytes:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return text.encode("utf-8", "surrogateescape")


def _in_ascii(place: str) -> str:
    """Return a host, with its port, as the header Host has it."""
    if place.isascii():
        return place
    host, colon, port = place.partition(":")  # an IPv6 address is in ASCII
    return host.encode("idna").decode() + colon + port


def authorization(url: str, token: str | None) -> dict[str, str]:
    """Return the header that says who sends: from the token, or from user and password in the URL."""
    if token:
        return {"Authorization": f"Bearer {token}"}
    given, _, _ = urlsplit(url).netloc.rpartition("@")
    if not given:
        return {}
    user, _, password = given.partition(":")  # a user without a password has the colon too
    return {"Authorization": f"Basic {b64encode(unquote(f'{user}:{password}').encode('latin-1')).decode()}"}


def tls_context() -> ssl.SSLContext:
    """Return the context of https: certificates are checked against those of the system."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def reason_of(error: OSError, timed_out: str = TOO_LONG) -> str:
    """Return what an attempt met. timed_out: what a deadline of ours means."""
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, ssl.SSLError):
        return tls_failure(error)
    if error.errno:
        return os.strerror(error.errno).lower()
    return timed_out if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def tls_failure(error: ssl.SSLError) -> str:
    """Return why no TLS connection could be made, and what to change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        trust = "; to trust it, set SSL_CERT_FILE to the certificate of its authority"
        advice = trust if error.verify_code in UNKNOWN_AUTHORITY else ""
        return f"{NO_TLS}: certificate verify failed: {error.verify_message}{advice}"
    if error.reason == "WRONG_VERSION_NUMBER":
        return f"{NO_TLS}: the server responded without TLS; write http:// instead of https://"
    return f"{NO_TLS}: {error}"
