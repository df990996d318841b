"""`ConnectionPool`: which connection a call is sent on, and what it means if that is lost. For tasks and for threads.

1. The connection that was used last is used again, unless it has ended, or has idled for `IDLE_SECONDS`.
2. Each attempt has deadlines for connecting, for silence and for the whole response, so a server that sends byte by
   byte cannot block a call.
3. `Sender` decides what is sent twice. One case is decided here: a connection that was used before and ends before
   anything has arrived may have been closed because it was idle. A call that may be repeated freely is sent again then.

A transport is one, and adds what a task or a thread needs: a place in line, time, and the connections themselves. Any
number of threads may use one, so each look at the idle connections takes what it finds in the same step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import MutableSet, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from mrecordlog_async.client.http1 import (
    CONNECT_SECONDS,
    IDLE_SECONDS,
    NOT_CONNECTED,
    TOO_LONG,
    ClosedWhileIdleError,
    reason_of,
)
from mrecordlog_async.client.interrupts import has_failed
from mrecordlog_async.client.options import CLOSED, ClientOptions
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.protocol.attempts import NoResponseError, Repeat
from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.protocol.responses import Reply

LONGEST_SECONDS = 86_400.0
"""Longest wait for a connection or a response: locks and sockets refuse an infinite one."""


class PooledConnection(Protocol):
    """A connection, with one exchange at a time.

    Attributes:
        idle_since: When its last exchange ended; 0 for none.
        lost: It cannot be used any more.
    """

    idle_since: float
    lost: bool

    @property
    def is_quiet(self) -> bool:
        """True if nothing has arrived since the last response, not even the end of the connection."""

    async def exchange(self, request: Sequence[bytes | memoryview], silence: float, seconds: float) -> Reply:
        """Send *request*, and return the whole response. Raises OSError; the request may have been carried out then."""

    def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=PooledConnection)


class ConnectionPool(ABC, Generic[C]):
    """The connections of one client.

    Attributes:
        options: How it connects.
    """

    def __init__(self, options: ClientOptions, busy: MutableSet[C]) -> None:
        self.options = options.checked()
        self._target = options.target()
        self._closed = False
        self._idle: deque[C] = deque()
        self._busy = busy

    @staticmethod
    @abstractmethod
    def clock() -> float:
        """Return the time that the `end` of calls is in."""

    @abstractmethod
    async def _connect(self, seconds: float) -> C:
        """Return a new connection. Raises OSError."""

    def _left(self, call: ServiceCall[Any]) -> float:
        return left_until(call.end, self.clock())

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError(CLOSED)

    async def _exchange(self, call: ServiceCall[Any]) -> Reply:
        self._check_open()
        request = self._target.request(call.method, call.target, call.headers, call.body)
        kept = self._free()
        try:
            if kept is not None and call.repeat is Repeat.FREELY:
                with suppress(ClosedWhileIdleError):
                    return await self._on(kept, request, call)
                kept = None
            return await self._on(kept or await self._connected(call), request, call)
        except OSError as error:
            raise self._loss(error, call, sent=True) from error

    def _free(self) -> C | None:
        """Return the connection that was used last, and close those that have been idle for long."""
        begun = self.clock() - IDLE_SECONDS
        with suppress(IndexError):
            while self._idle[0].idle_since <= begun:
                self._idle.popleft().close()
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.is_quiet:
                    return connection
                connection.close()
        return None

    async def _connected(self, call: ServiceCall[Any]) -> C:
        """Return a new connection. Raises NoResponseError: nothing was sent."""
        try:
            return await self._connect(min(CONNECT_SECONDS, self._left(call)))
        except OSError as error:
            raise self._loss(error, call, sent=False) from error

    def _none_free(self, call: ServiceCall[Any]) -> NoResponseError:
        self._left(call)
        return NoResponseError(f"none of the client's {self.options.connections} connections became free", sent=False)

    def _loss(self, error: OSError, call: ServiceCall[Any], *, sent: bool) -> NoResponseError:
        """Return what *error* means. Raises it if a signal handler has, and TimeoutError at the end of *call*."""
        if not has_failed(error):
            raise error
        self._left(call)
        return NoResponseError(reason_of(error, TOO_LONG if sent else NOT_CONNECTED), sent=sent)

    async def _on(self, connection: C, request: Sequence[bytes | memoryview], call: ServiceCall[Any]) -> Reply:
        options, wait = self.options, call.wait_seconds
        self._busy.add(connection)
        try:
            self._check_open()  # now `close` finds the connection: nothing is sent on one that it did not find
            seconds = min(options.response_seconds + wait, self._left(call))
            return await connection.exchange(request, options.timeout_seconds + wait, seconds)
        finally:
            self._busy.discard(connection)
            if connection.lost:
                connection.close()
            else:  # even if the caller is cancelled, once the whole response is there
                self._idle.append(connection)
            if self._closed:  # meanwhile
                close_all(self._idle)


def left_until(end: float | None, now: float) -> float:
    """Return how many seconds are left until *end*. Raises TimeoutError if it has passed."""
    left = LONGEST_SECONDS if end is None else min(end - now, LONGEST_SECONDS)
    if left <= 0:
        raise TimeoutError(TOO_LONG)
    return left


def close_all(idle: deque[C]) -> None:
    """Close connections; other threads may take some of them."""
    with suppress(IndexError):
        while True:
            idle.pop().close()
