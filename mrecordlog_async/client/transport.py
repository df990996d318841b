"""`Transport`: the connections of an asyncio client, for the tasks of its event loop.

1. At most `connections` calls run at once; others wait in line, in order of arrival and for a limited time.
2. A long poll has its own connection: it waits for records, and no other call should wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from mrecordlog_async.client import connecting
from mrecordlog_async.client.http1 import (
    CLOSED_BY_PEER,
    CONNECT_SECONDS,
    CUT_OFF,
    SCRATCH_BYTES,
    TOO_LONG,
    ClosedWhileIdleError,
    Exchange,
    reason_of,
    tls_context,
)
from mrecordlog_async.client.options import CLOSED, ClientOptions
from mrecordlog_async.client.pool import ConnectionPool, left_until
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.protocol.responses import Reply

ELSEWHERE = (
    "the client belongs to another event loop, that of its first call: make one client in each loop, or use a "
    "BlockingRecordLogClient from all threads"
)
"""Message of the error for a call on another event loop, such as that of a second asyncio.run."""


class _Connection(asyncio.BufferedProtocol):
    """A connection, with one exchange at a time.

    Attributes:
        idle_since: When its last exchange ended; 0 for none.
        lost: It cannot be used any more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.idle_since = 0.0
        self.lost = False
        self._loop = loop
        self._transport: asyncio.Transport
        self._exchange: Exchange | None = None
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._response: asyncio.Future[None] = loop.create_future()  # done once the response is whole
        self._full: asyncio.Future[None] | None = None  # until asyncio has sent most of what was written
        self._sent = True
        self._heard = self._silence = self._end = 0.0

    async def exchange(self, request: Sequence[bytes | memoryview], silence: float, seconds: float) -> Reply:
        """Send *request*, and return the whole response. Raises OSError; the request may have been carried out then."""
        exchange = self._exchange = Exchange(self._scratch)
        self._response, self._sent = self._loop.create_future(), False
        self._heard = self._loop.time()
        self._silence, self._end = silence, self._heard + seconds
        self._watch()
        try:
            await self._send(request)
            await self._response
            return exchange.reply()
        except CLOSED_BY_PEER as error:
            if self.idle_since and not exchange.heard:
                raise ClosedWhileIdleError(reason_of(error)) from error
            raise
        finally:
            self._timer.cancel()
            self._exchange, self.idle_since = None, self._heard
            if not (exchange.reusable and self._sent) or self._transport.get_write_buffer_size():
                self.close()

    async def _send(self, request: Sequence[bytes | memoryview]) -> None:
        for piece in request:
            if self._full is not None:
                await asyncio.wait((self._full, self._response), return_when=asyncio.FIRST_COMPLETED)
            if self._response.done():  # a service may refuse a body before it has arrived
                return
            self._transport.write(piece)
        self._sent = True

    @property
    def is_quiet(self) -> bool:
        """True if nothing has arrived since the last response, not even the end of the connection."""
        return not self.lost

    def close(self) -> None:
        """Close the connection; an exchange under way ends as if its response were lost."""
        self.lost = True
        self._transport.abort()
        self._settle(ConnectionAbortedError(CLOSED))

    def _watch(self) -> None:
        self._timer = self._loop.call_at(min(self._heard + self._silence, self._end), self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if not self._sent or self._transport.get_write_buffer_size():  # nothing arrives before the request was sent
            self._heard = now
        if now < self._end and now < self._heard + self._silence:
            self._watch()
        else:
            self._settle(TimeoutError(TOO_LONG))

    def _settle(self, error: Exception | None) -> None:
        if self._exchange is None or self._response.done():
            return
        if error is None:
            self._response.set_result(None)
        else:
            self._response.set_exception(error)
            self._response.exception()  # marks it as retrieved: a caller that is cancelled never asks

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note what bytes are written to."""
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop are of no such class

    def pause_writing(self) -> None:
        """Write no more for now."""
        self._full = self._loop.create_future()

    def resume_writing(self) -> None:
        """Write on."""
        if self._full is not None:
            self._full.set_result(None)
            self._full = None

    def get_buffer(self, _: int) -> memoryview:
        """Return where to receive the next bytes."""
        return self._scratch if self._exchange is None else self._exchange.room()

    def buffer_updated(self, count: int) -> None:
        """Take a part of the response."""
        if self._exchange is None:  # nothing was asked
            self.close()
            return
        self._heard = self._loop.time()
        self._take(self._exchange, partial(self._exchange.received, count))

    def connection_lost(self, error: Exception | None) -> None:
        """Take the end of the connection."""
        self.lost = True
        if error is not None:
            self._settle(error if isinstance(error, OSError) else ConnectionResetError(CUT_OFF))
        elif self._exchange is not None:
            self._take(self._exchange, self._exchange.end)

    def _take(self, exchange: Exchange, step: Callable[[], None]) -> None:
        try:
            step()
        except ConnectionError as error:
            self._settle(error)
        else:
            if exchange.is_whole:
                self._settle(None)


class Transport(ConnectionPool[_Connection]):
    """Exchange requests for responses. Belongs to one event loop."""

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options, set())
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first call
        self._slots = asyncio.Semaphore(options.connections)
        self._closing = asyncio.Event()
        self._tls = tls_context() if self._target.secure else None

    def usage_check(self) -> Callable[[], None]:
        """Return what raises LogClosedError where readers that are made now may not be used."""
        return self.check

    def check(self) -> None:
        """Raise LogClosedError on another event loop than that of the first call."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise LogClosedError(ELSEWHERE)
            self._loop = loop

    async def close(self) -> None:
        """Close all connections. Running calls end with an error, including those that pause before another attempt."""
        self._closed = True
        self._closing.set()
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # in which asyncio closes them

    # What readers and producers wait with.

    lock = asyncio.Lock
    sleep = staticmethod(asyncio.sleep)

    @staticmethod
    def clock() -> float:
        """Return the time that `idle_since` and the `end` of calls are in."""
        return asyncio.get_running_loop().time()

    async def pause(self, seconds: float, end: float | None) -> None:
        """Wait before another attempt, or until the client closes. Raises TimeoutError at *end*."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, left_until(end, self.clock()))):
                await self._closing.wait()
        left_until(end, self.clock())

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
        if call.wait_seconds:
            return await self._exchange(call)
        if self._slots.locked():
            try:
                async with asyncio.timeout(min(max(left_seconds, CONNECT_SECONDS), self._left(call))):
                    await self._slots.acquire()
            except TimeoutError:
                raise self._none_free(call) from None
        else:
            await self._slots.acquire()  # does not wait
        try:
            return await self._exchange(call)
        finally:
            self._slots.release()

    async def _connect(self, seconds: float) -> _Connection:
        async with asyncio.timeout(seconds):
            made = await self._made()
        if made.lost:  # it ended before an exchange began: that one would wait for its deadline
            raise ConnectionResetError(CUT_OFF)
        return made

    async def _made(self) -> _Connection:
        loop, target = asyncio.get_running_loop(), self._target
        made = _Connection(loop)
        if target.unix is None:
            plug = await connecting.connect(target.address, target.port)
        else:
            plug = connecting.connect_unix(target.unix)
        try:
            if target.unix is None:
                host = target.host if target.secure else None
                await loop.create_connection(lambda: made, sock=plug, ssl=self._tls, server_hostname=host)
            else:
                await loop.create_unix_connection(lambda: made, sock=plug)
        except BaseException:
            plug.close()
            raise
        return made
