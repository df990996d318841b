"""`BlockingTransport`: the connections of a blocking client, on `http.client`; and time, for the threads that call it.

What `Transport` does for the tasks of one event loop, for threads: the same limit of calls at once, the same deadlines,
and separate connections for long polls. A connection that is free is used again.

A forked child begins again with its own connections. What its parent made from the client stays the parent's.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Protocol, cast

from mrecordlog_async.blocking_http import (
    FAILURES,
    HttpConnection,
    authorization,
    has_failed,
    tls_context,
    tls_failure,
)
from mrecordlog_async.client.loop_thread import CLOSED, FORKED
from mrecordlog_async.client.options import CONNECT_SECONDS, ClientOptions
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.protocol.attempts import NoResponseError
from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.protocol.log_schemas import LOG_ID
from mrecordlog_async.protocol.responses import Reply
from mrecordlog_async.servers.names import shown_url
from mrecordlog_async.support.forks import call_in_children

IDLE_SECONDS = 15.0
"""Seconds that an unused connection is kept; services and proxies close theirs later."""

LONGEST_SECONDS = 86_400.0
"""Longest wait for a connection or a response: locks and sockets refuse an infinite one."""


class Ends(Protocol):
    """The state that ends with its client."""

    def end(self) -> None:
        """Wait for nothing any longer."""


class BlockingTransport:
    """Exchange requests for responses. Any thread may call."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options.checked()
        self.parts: weakref.WeakSet[Ends] = weakref.WeakSet()
        self._headers: dict[str, str | bytes] = {"Accept-Encoding": "identity", **self._identity()}
        # The same base as that of the asyncio client: its path is percent-encoded.
        self._place = options.place if options.socket_path else replace(options.place, url=options.base)
        self._tls: ssl.SSLContext | None = None
        self._closed = False
        self._begin()
        _transports.add(self)

    def _begin(self) -> None:
        """Begin without a connection: at first, and in a forked child."""
        self._life = object()
        self._slots = threading.Semaphore(self.options.connections)
        self._idle: deque[tuple[HttpConnection, float]] = deque()
        self._busy: set[HttpConnection] = set()
        # Held until the client closes. A plain lock: a signal handler that raises cannot leave it in a wrong state.
        self._open = threading.Lock()
        if not self._closed:
            self._open.acquire()
        self._end = weakref.finalize(self, _close_all, self._idle)
        self._end.atexit = False

    def leave_to_parent(self) -> None:
        """Begin again in a forked child: locks may be held by threads that did not come along."""
        self._end.detach()
        _close_all(self._idle)  # this process has copies of the parent's descriptors
        self._begin()

    def _identity(self) -> dict[str, str | bytes]:
        found = authorization(self.options.place.url, self.options.token, "latin-1")  # as aiohttp does
        return found if self.options.log_id is None else {**found, LOG_ID: self.options.log_id}

    @property
    def url(self) -> str:
        """The URL of the service."""
        return self.options.place.url

    @property
    def address(self) -> str:
        """The URL of the service, for messages."""
        return shown_url(self.url)

    def check(self) -> None:
        """Raise LogClosedError if the client is closed."""
        if self._closed:
            raise LogClosedError(CLOSED)

    def usage_check(self) -> Callable[[], None]:
        """Return what raises LogClosedError where readers that are made now may not be used."""
        return partial(self._check_life, self._life)

    def _check_life(self, life: object) -> None:
        if life is not self._life:
            raise LogClosedError(FORKED)
        self.check()

    def close(self) -> None:
        """Close all connections. Calls of other threads end with an error."""
        if self._closed:
            return
        self._closed = True
        with suppress(RuntimeError):  # a handler has released it
            self._open.release()
        for connection in list(self._busy):
            connection.shut()
        _close_all(self._idle)
        for part in list(self.parts):
            part.end()

    def pause(self, seconds: float, end: float | None) -> None:
        """Wait before another attempt, or until the client closes. Raises TimeoutError at *end*."""
        if self._open.acquire(timeout=_left(end, seconds)):
            self._open.release()  # the next one that waits
        _left(end, 0.0)

    def exchange(self, call: ServiceCall[Any], left_seconds: float) -> Reply:
        """Send *call* once and return the response, whatever its status.

        Args:
            call: The request.
            left_seconds: How long it may wait for a free connection, but at least for `CONNECT_SECONDS`.

        Raises:
            NoResponseError: There was no whole response in time.
            LogClosedError: The client is closed.
            TimeoutError: The `end` of the call has passed.
        """
        self.check()
        if call.wait_seconds:
            return self._exchange(call)
        if not self._slots.acquire(timeout=_left(call.end, max(left_seconds, CONNECT_SECONDS))):
            _left(call.end, 0.0)
            reason = f"none of the client's {self.options.connections} connections became free"
            raise NoResponseError(reason, sent=False)
        try:
            return self._exchange(call)
        finally:
            self._slots.release()

    def _exchange(self, call: ServiceCall[Any]) -> Reply:
        connection = self._connection()
        self._busy.add(connection)
        try:
            if not connection.is_open:
                self._connect(connection, call.end)
            self.check()  # now `close` finds the connection: nothing is sent on one that it did not find
            reply = self._response(connection, call)
            self._check_whole()
        except BaseException:  # such as one of a signal handler: the rest of the response would be the next one's
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if connection.is_open:
            self._idle.append((connection, monotonic()))
            self._close_unused()
            if self._closed:  # meanwhile
                _close_all(self._idle)
        return reply

    def _check_whole(self) -> None:
        """Raise NoResponseError if the client is closed: a body without a length ends where `close` cut it off."""
        if self._closed:
            raise NoResponseError(CLOSED, sent=True)

    def _close_unused(self) -> None:
        """Close what was needed for more calls at once than there are now: calls take the newest connection."""
        with suppress(IndexError):
            while monotonic() - self._idle[0][1] >= IDLE_SECONDS:
                self._idle.popleft()[0].close()

    def _connection(self) -> HttpConnection:
        """Return a connection that is free, or a new one, which is not open."""
        while True:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                break
            if monotonic() - since < IDLE_SECONDS and connection.is_quiet:
                return connection
            connection.close()
        if self._tls is None and self.url.startswith("https:"):
            self._tls = tls_context()
        return HttpConnection(self._place, self._tls)

    def _connect(self, connection: HttpConnection, end: float | None) -> None:
        try:
            connection.open(_left(end, CONNECT_SECONDS))
        except OSError as error:
            if not has_failed(error):
                raise
            _left(end, 0.0)
            raise NoResponseError(_reason_of(error), sent=False) from error

    def _response(self, connection: HttpConnection, call: ServiceCall[Any]) -> Reply:
        options, wait = self.options, call.wait_seconds
        headers = {**self._headers, **call.headers}
        end = clock() + _left(call.end, options.response_seconds + wait)
        silence_seconds = _left(call.end, options.timeout_seconds + wait)
        try:
            response = connection.send(
                call.method, call.target, call.body, headers, silence_seconds=silence_seconds, end=end
            )
            return Reply(response.status, cast(Mapping[str, str], response.headers), response.read())
        except FAILURES as error:
            if not has_failed(error):
                raise
            _left(call.end, 0.0)
            raise NoResponseError(_reason_of(error), sent=True) from error


def _close_all(idle: deque[tuple[HttpConnection, float]]) -> None:
    with suppress(IndexError):
        while True:
            idle.pop()[0].close()


def _reason_of(error: Exception) -> str:
    """Return what an attempt met."""
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, ssl.SSLError):
        return tls_failure(error)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


_transports: weakref.WeakSet[BlockingTransport] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for transport in list(_transports):
        transport.leave_to_parent()


call_in_children(_leave_to_parent)


# What `asyncio` has for tasks, for threads.

clock = monotonic
sleep = time.sleep


def _left(end: float | None, seconds: float) -> float:
    """Return how long to wait for something that takes *seconds* at most. Raises TimeoutError if *end* has passed."""
    left = LONGEST_SECONDS if end is None else min(end - clock(), LONGEST_SECONDS)
    if left <= 0:
        raise TimeoutError
    return min(seconds, left)
