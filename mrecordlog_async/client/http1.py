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
"""What is written and read at a time: a large body written in one go would hold an event loop (70 MB: 0.13 s)."""

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
    """One response. Pass on what arrives, and that nothing more does; both raise ConnectionError if it is not one.

    Attributes:
        reply: The response once it is whole.
        heard: Something has arrived.
        reusable: The connection may be used for another request.
    """

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.heard = False
        self.reusable = False
        self._parser = httptools.HttpResponseParser(self)
        self._room = HEAD_BYTES
        self._begin()

    def _begin(self) -> None:
        self._headers, self._body = Headers(), bytearray()
        self._in_head, self._ends_with_connection = True, False

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        self.heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:  # a signal handler raised in one of the methods below
            raise error.__context__ or error from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if self.reply is None:
                raise ConnectionError(f"the response is not HTTP: {error}") from None
        if self._in_head:  # of a response, or of one that follows another with a status of 1xx
            self._room -= len(data)
            if self._room < 0:
                raise ConnectionError("the head of the response is too large")

    def end(self) -> None:
        """Take the end of the connection, which is the end of a body without a length."""
        if self.reply is None:
            if not self._ends_with_connection:
                raise ConnectionResetError(CUT_OFF)
            self.on_message_complete()
        self.reusable = False

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
        self._body += data

    def on_message_complete(self) -> None:
        """Note that the response is whole, unless it only announces another one (RFC 9110 §15.2)."""
        status = self._parser.get_status_code()
        if status < 200:
            self._begin()
        elif self.reply is None:
            self.reply = Reply(status, self._headers, self._body)
            self.reusable = self._parser.should_keep_alive()


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


def reason_of(error: OSError) -> str:
    """Return what an attempt met."""
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, ssl.SSLError):
        return tls_failure(error)
    if error.errno:
        return os.strerror(error.errno).lower()
    return TOO_LONG if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def tls_failure(error: ssl.SSLError) -> str:
    """Return why no TLS connection could be made, and what to change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        trust = "; to trust it, set SSL_CERT_FILE to the certificate of its authority"
        advice = trust if error.verify_code in UNKNOWN_AUTHORITY else ""
        return f"{NO_TLS}: certificate verify failed: {error.verify_message}{advice}"
    if error.reason == "WRONG_VERSION_NUMBER":
        return f"{NO_TLS}: the server responded without TLS; write http:// instead of https://"
    return f"{NO_TLS}: {error}"
