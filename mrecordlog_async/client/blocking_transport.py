"""`BlockingTransport`: the connections of a blocking client; and time, for the threads that call it.

What `Transport` does for the tasks of one event loop, for threads: the same limit of calls at once, the same deadlines,
and separate connections for long polls. Its coroutines never wait for an event loop: they block the thread, so `run`
returns what they return.

A forked child begins again with its own connections. What its parent made from the client stays the parent's.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from time import monotonic as clock
from typing import Any, TypeVar

from mrecordlog_async.client.connecting import connect_blocking, connect_unix
from mrecordlog_async.client.http1 import (
    CLOSED_BY_PEER,
    CONNECT_SECONDS,
    SCRATCH_BYTES,
    TOO_LONG,
    ClosedWhileIdleError,
    Exchange,
    Target,
    reason_of,
    tls_context,
)
from mrecordlog_async.client.interrupts import has_failed
from mrecordlog_async.client.options import CLOSED, ClientOptions
from mrecordlog_async.client.pool import ConnectionPool, close_all, left_until
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.protocol.responses import Reply
from mrecordlog_async.support.forks import call_in_children

T = TypeVar("T")

FORKED = "this belongs to the process that forked this one; make it again after the fork"

SLOT_SECONDS = 0.25
"""Longest time until a call that waits for a connection looks again: an exception of a handler may lose a wake-up."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what *coroutine* returns. It uses a `BlockingTransport`, so it never waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a call of a blocking client waits for an event loop")


class _SocketConnection:
    """A connection, with one exchange at a time. Any thread may call `shut`.

    Attributes:
        idle_since: When its last exchange ended; 0 for none.
        lost: It cannot be used any more.
    """

    def __init__(self, plug: socket.socket) -> None:
        plug.setblocking(False)
        self.idle_since = 0.0
        self.lost = self._is_shut = False
        self._plug = plug
        self._poll = select.poll()
        self._poll.register(plug)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    @property
    def is_quiet(self) -> bool:
        """True if nothing has arrived since the last response, not even the end of the connection."""
        return not self._wait(select.POLLIN, 0)

    async def exchange(self, request: Sequence[bytes | memoryview], silence: float, seconds: float) -> Reply:
        """Send *request*, and return the whole response. Raises OSError; the request may have been carried out then."""
        # Also after an exception of a signal handler: the rest of the response would be the next one's.
        self.lost = True
        exchange, end = Exchange(self._scratch), clock() + seconds
        try:
            sent = self._send(request, exchange, end)
            while not exchange.is_whole:
                if not self._wait(select.POLLIN, min(silence, left_until(end, clock()))):
                    raise TimeoutError(TOO_LONG)
                self._receive(exchange)
        except CLOSED_BY_PEER as error:
            if self.idle_since and not exchange.heard and has_failed(error):
                raise ClosedWhileIdleError(reason_of(error)) from error
            raise
        if self._is_shut:  # a body without a length ends where that cut it off
            raise ConnectionAbortedError(CLOSED)
        self.idle_since, self.lost = clock(), not (exchange.reusable and sent)
        return exchange.reply()

    def _send(self, request: Sequence[bytes | memoryview], exchange: Exchange, end: float) -> bool:
        """Return whether all of it was sent: a service may refuse a body, and read no more of it."""
        ready = select.POLLOUT  # a connection takes the first bytes: waiting for that would cost each call a poll
        try:
            for piece in request:
                left = memoryview(piece)
                while left:
                    # No deadline for silence: nothing need arrive before all is sent, however long that takes.
                    ready = ready or self._wait(select.POLLIN | select.POLLOUT, left_until(end, clock()))
                    if ready & ~select.POLLOUT:
                        self._receive(exchange)
                    if exchange.is_whole:
                        return False
                    if ready & select.POLLOUT:
                        left = left[self._attempt(self._plug.send, left) or 0 :]
                    ready = 0
        except CLOSED_BY_PEER as error:
            if not has_failed(error):
                raise
            return False
        return True

    def _receive(self, exchange: Exchange) -> None:
        """Take what has arrived."""
        count = self._attempt(self._plug.recv_into, exchange.room())
        if count:
            exchange.received(count)
        elif count is not None:
            exchange.end()

    @staticmethod
    def _attempt(act: Callable[[memoryview], int], data: memoryview) -> int | None:
        """Return how many bytes were sent or received; None if none can be yet, such as a part of a TLS record."""
        try:
            return act(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            if not has_failed(error):
                raise
            return None

    def _wait(self, events: int, seconds: float) -> int:
        """Wait until bytes can be sent or received; return what of it, 0 after *seconds*."""
        if isinstance(self._plug, ssl.SSLSocket) and self._plug.pending():
            return select.POLLIN  # received and decrypted before: the socket itself has nothing
        self._poll.modify(self._plug, events)
        for _, ready in self._poll.poll(1_000 * seconds):
            return ready
        return 0

    def close(self) -> None:
        """Close it."""
        self._plug.close()

    def shut(self) -> None:
        """End the exchange that another thread waits for, as if its response were lost."""
        self._is_shut = True
        with suppress(OSError):  # it is not connected any more
            socket.socket.shutdown(self._plug, socket.SHUT_RDWR)  # below TLS, whose own may only be used by its thread


class BlockingTransport(ConnectionPool[_SocketConnection]):
    """Exchange requests for responses. Any thread may call."""

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options, weakref.WeakSet())  # an exception may leave a connection in it
        self._tls: ssl.SSLContext | None = None
        self._begin()
        _transports.add(self)

    def _begin(self) -> None:
        """Begin without a connection: at first, and in a forked child, as other threads may hold its parent's locks."""
        self._life = object()
        # A call has one while it runs. Not a semaphore: its lock is held for good if a handler raises in it. Nor a
        # SimpleQueue: `get` minds neither its time nor handlers while other threads take each slot first.
        self._slots = deque([None] * self.options.connections)
        self._freed = threading.Lock()  # held until a slot is free, or while nobody has looked since
        self._freed.acquire()
        self._idle, self._busy = deque(), weakref.WeakSet()
        # Held until the client closes. A plain lock: a signal handler that raises cannot leave it in a wrong state.
        self._open = threading.Lock()
        if not self._closed:
            self._open.acquire()
        self._end = weakref.finalize(self, close_all, self._idle)
        self._end.atexit = False

    def leave_to_parent(self) -> None:
        """Begin again in a forked child."""
        self._end.detach()
        close_all(self._idle)  # this process has copies of the parent's descriptors,
        for connection in list(self._busy):  # which would keep open what the parent closes
            connection.close()
        self._begin()

    def check(self) -> None:
        """Raise LogClosedError if the client is closed."""
        self._check_open()

    def usage_check(self) -> Callable[[], None]:
        """Return what raises LogClosedError where readers that are made now may not be used."""
        return partial(self._check_life, self._life)

    def _check_life(self, life: object) -> None:
        if life is not self._life:
            raise LogClosedError(FORKED)
        self.check()

    async def close(self) -> None:
        """Close all connections. Calls of other threads end with an error."""
        if self._closed:
            return
        self._closed = True
        with suppress(RuntimeError):  # a handler has released it
            self._open.release()
        for connection in list(self._busy):
            connection.shut()
        close_all(self._idle)

    # What readers and producers wait with.

    lock = nullcontext  # `blocking` has its own
    clock = staticmethod(clock)

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251  # for a thread, which runs no event loop

    async def pause(self, seconds: float, end: float | None) -> None:
        """Wait before another attempt, or until the client closes. Raises TimeoutError at *end*."""
        if self._open.acquire(timeout=min(seconds, left_until(end, clock()))):
            self._open.release()  # the next one that waits
        left_until(end, clock())

    # Exchanges.

    async def exchange(self, call: ServiceCall[Any], left_seconds: float) -> Reply:
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
            return await self._exchange(call)
        slots = list[None]()  # has the slot wherever a signal handler raises
        try:
            self._take_slot(slots, call, max(left_seconds, CONNECT_SECONDS))
            return await self._exchange(call)
        finally:
            if slots:
                self._slots.append(None)
                self._wake_one()

    def _take_slot(self, slots: list[None], call: ServiceCall[Any], seconds: float) -> None:
        """Wait until fewer calls run than there may be connections, and add this one's slot to *slots*."""
        end = clock() + min(seconds, self._left(call))
        while not slots:
            try:
                # One step: no signal handler can raise after `pop` and before the slot is in the list.
                slots.extend(map(deque.pop, (self._slots,)))
            except IndexError:
                left = end - clock()
                if left <= 0:
                    raise self._none_free(call) from None
                self._freed.acquire(timeout=min(left, SLOT_SECONDS))
        if self._slots:  # one wake-up may stand for several slots
            self._wake_one()

    def _wake_one(self) -> None:
        """Have a call that waits for a slot look again."""
        if self._freed.locked():
            with suppress(RuntimeError):  # another thread has released it
                self._freed.release()

    async def _connect(self, seconds: float) -> _SocketConnection:
        if self._tls is None and self._target.secure:
            self._tls = tls_context()
        return _SocketConnection(_plug(self._target, self._tls, seconds))


def _plug(target: Target, tls: ssl.SSLContext | None, seconds: float) -> socket.socket:
    """Return a socket that is connected to *target*. Raises OSError."""
    if target.unix is not None:
        return connect_unix(target.unix)
    plug = connect_blocking(target.address, target.port, seconds)
    try:
        plug.settimeout(seconds)
        return plug if tls is None else tls.wrap_socket(plug, server_hostname=target.host)
    except BaseException:
        plug.close()
        raise


_transports: weakref.WeakSet[BlockingTransport] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for transport in list(_transports):
        transport.leave_to_parent()


call_in_children(_leave_to_parent)
