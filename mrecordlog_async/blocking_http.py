"""`HttpConnection`: one connection to one service, on `http.client`, for code without asyncio. It repeats nothing.

The blocking client and Spark stand on it. It needs the standard library alone, so Spark's executors need no aiohttp.
"""

from __future__ import annotations

import http.client
import io
import select
import signal
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any
from urllib.parse import unquote, urlsplit

from mrecordlog_async.servers.names import Endpoint

FAILURES = (OSError, http.client.HTTPException)
"""Errors of a connection whose exchange fails; see `has_failed`. TimeoutError is an OSError."""

NO_TLS = "TLS failed"
"""Beginning of the reasons of `tls_failure`."""

UNKNOWN_AUTHORITY = (18, 19, 20)
"""Codes of OpenSSL: the certificate signs itself, or nothing that this machine trusts has signed it."""

Headers = Mapping[str, str | bytes]


class HttpConnection:
    """A connection to the service at *place*. For one thread at a time, but any thread may call `shut`.

    tls: the context of https; None makes one for each connection, which reads the certificates of the system again.
    """

    def __init__(self, place: Endpoint, tls: ssl.SSLContext | None = None) -> None:
        self._place = place
        self._tls = tls
        self._url = urlsplit("http://localhost" if place.url.startswith("unix:") else place.url)
        self._host = _in_ascii(self._url.netloc.rpartition("@")[2])
        self._path = self._url.path.rstrip("/")
        self._http: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        """True if the next request is sent on the connection of the last one."""
        return self._http is not None and self._http.sock is not None

    @property
    def is_quiet(self) -> bool:
        """True if nothing has arrived since the last response, not even the end of the connection."""
        if self._socket is None:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def open(self, timeout_seconds: float) -> None:
        """Connect. Raises OSError; nothing was sent then."""
        self.close()
        self._socket = self._connect(timeout_seconds)
        # The class for http, over TLS too: it never connects, and is passed the socket and the header Host.
        self._http = http.client.HTTPConnection(self._host)
        self._http.sock = self._socket

    def _connect(self, timeout_seconds: float) -> socket.socket:
        if self._place.url.startswith("unix:"):
            unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                unix.settimeout(timeout_seconds)
                unix.connect(self._place.url.removeprefix("unix:"))
            except BaseException:
                unix.close()
                raise
            return unix
        host, secure = self._url.hostname or "", self._url.scheme == "https"
        port = self._url.port or (443 if secure else 80)
        plain = socket.create_connection((self._place.address or host, port), timeout_seconds)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return (self._tls or tls_context()).wrap_socket(plain, server_hostname=host) if secure else plain
        except BaseException:
            plain.close()
            raise

    def send(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Headers,
        *,
        silence_seconds: float,
        end: float | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request on the open connection; return the response once its head has arrived.

        Args:
            method: HTTP method.
            target: Path below the URL of the service, with the query, percent-encoded.
            body: Body of the request.
            headers: Further headers.
            silence_seconds: How long nothing may arrive.
            end: When the whole response must have arrived, by `monotonic`; None for no such time.

        Raises:
            OSError, http.client.HTTPException: There is no response in time; the request may have been carried out.
        """
        connection, plug = self._http, self._socket
        assert connection is not None and plug is not None, "it is open"
        # While a request is sent, nothing arrives, however fast it goes: only the end of the exchange counts.
        plug.settimeout(silence_seconds if end is None else max(end - monotonic(), 0.001))
        connection.response_class = _FinalResponse
        if end is not None:
            deadline = end

            def arriving(sock: socket.socket, *arguments: object, **more: object) -> http.client.HTTPResponse:
                response = _FinalResponse(sock, *arguments, **more)
                response.fp = _Lines(_Arriving(response.fp.detach(), sock, silence_seconds, deadline))
                return response

            connection.response_class = arriving  # type: ignore[assignment]  # is called like the class
        try:
            connection.request(method, self._path + target, body, {"Host": self._host, **headers})
        except (BrokenPipeError, ConnectionResetError):
            if body is None:
                raise
            # A service may refuse a body before all of it has arrived: its response is there all the same.
        plug.settimeout(silence_seconds)
        return connection.getresponse()

    def close(self) -> None:
        """Close the connection."""
        connection, self._http, self._socket = self._http, None, None
        if connection is not None:
            connection.close()

    def shut(self) -> None:
        """End the exchange that another thread waits for, as if its response were lost."""
        plug = self._socket
        if plug is not None:
            with suppress(OSError):  # it is not connected any more
                socket.socket.shutdown(plug, socket.SHUT_RDWR)  # below TLS, whose own may only be used by its thread


class _FinalResponse(http.client.HTTPResponse):
    """The response after those that announce it (RFC 9110 §15.2), of which http.client passes over 100 alone."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.fp = _Lines(self.fp.detach())

    def _read_status(self) -> tuple[str, int, str]:
        # The private method of http.client that reads the first line: nothing public comes between it and the rest.
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]  # typeshed omits it
            if not 101 < status < 200:
                return version, status, reason
            http.client.parse_headers(self.fp)


class _Lines(io.BufferedReader):
    """The bytes of a response. http.client takes a head, or the length of a chunk, that is cut off for a whole one."""

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the next line. Raises RemoteDisconnected if the connection ends before it does."""
        line = super().readline(size)
        if not line.endswith(b"\n") and len(line) != size:  # http.client refuses a line that is too long
            raise http.client.RemoteDisconnected("the connection was closed before the end of the response")
        return line


class _Arriving(io.RawIOBase):
    """The bytes of a response: each read waits for the silence that is allowed, and until the end of the exchange."""

    def __init__(self, raw: io.RawIOBase, plug: socket.socket, silence_seconds: float, end: float) -> None:
        self._raw = raw
        self._plug = plug
        self._silence_seconds = silence_seconds
        self._end = end

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what has arrived. Raises TimeoutError."""
        left = self._end - monotonic()
        if left <= 0:
            raise TimeoutError("the response took too long")
        self._plug.settimeout(min(self._silence_seconds, left))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Close it."""
        self._raw.close()
        super().close()


def _in_ascii(place: str) -> str:
    """Return a host, with its port, as the header Host has it."""
    if place.isascii():
        return place
    host, colon, port = place.partition(":")  # an IPv6 address is in ASCII
    return host.encode("idna").decode() + colon + port


def has_failed(error: BaseException) -> bool:
    """Return whether *error* comes from the connection, not from a signal handler: one may raise TimeoutError, too.

    The handler runs inside the call that it interrupts, so the traceback has its code.
    """
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code in handlers:
            return False
        place = place.tb_next
    return True


def _code_of(handler: object) -> object:
    function = getattr(handler, "func", handler)  # of a partial
    return getattr(getattr(function, "__func__", function), "__code__", None) or getattr(
        type(function).__call__, "__code__", 0
    )


def tls_context() -> ssl.SSLContext:
    """Return the context of https: certificates are checked against those of the system."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def tls_failure(error: ssl.SSLError) -> str:
    """Return why no TLS connection could be made, and what to change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        trust = "; to trust it, set SSL_CERT_FILE to the certificate of its authority"
        advice = trust if error.verify_code in UNKNOWN_AUTHORITY else ""
        return f"{NO_TLS}: certificate verify failed: {error.verify_message}{advice}"
    if error.reason == "WRONG_VERSION_NUMBER":
        return f"{NO_TLS}: the server responded without TLS; write http:// instead of https://"
    return f"{NO_TLS}: {error}"


def authorization(url: str, token: str | None, charset: str = "utf-8") -> dict[str, str | bytes]:
    """Return the header that says who sends: from the token, or from user and password in the URL, in *charset*."""
    if token:  # as UTF-8: http.client would encode text as Latin-1
        return {"Authorization": f"Bearer {token}".encode("utf-8", "surrogateescape")}
    given, _, _ = urlsplit(url).netloc.rpartition("@")
    if not given:
        return {}
    user, _, password = given.partition(":")  # a user without a password has the colon too
    return {"Authorization": f"Basic {b64encode(unquote(f'{user}:{password}').encode(charset)).decode()}"}
