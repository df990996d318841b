"""Listening: the sockets of the service, and the way of a connection from `accept` to its first request.

1. A connection counts from `accept` on, during its TLS handshake too: an event loop's own server would count it only
   after the handshake. One that is not admitted is closed at once, so connections hold no more descriptors than
   `connections` says.
2. A handshake ends within `header_seconds`. At most `HANDSHAKES` are under way, because no budget is charged for what
   one holds. Above that, those older than `SLOW_SECONDS` are cut, and new connections wait in the socket's queue until
   there is one: honest clients need milliseconds, and a flood moves on as fast as its connections become old.
3. At the limit of connections, slow handshakes are cut too. Otherwise a new connection replaces the one that has been
   idle longest (`Connections.admit`). If there is neither, it gets a 503, or in TLS no response.
4. A new connection waits until those that were cut for it have closed their descriptors.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from mrecordlog_async.service.wire.connections import Connection, Connections

logger = logging.getLogger("mrecordlog_async.serve")

BACKLOG = 4_096
"""Connections that wait to be accepted; the system may allow fewer (`net.core.somaxconn`)."""
ACCEPTS_AT_ONCE = 16
"""Connections accepted in one turn of the event loop: a handshake takes about half a millisecond of its time."""
HANDSHAKES = 256
"""TLS handshakes that are under way. One holds about 130 KiB, and takes the event loop 0.3 ms."""
SLOW_SECONDS = 0.5
"""Age at which a handshake is cut if others need its room."""
PAUSE_SECONDS = 1.0
"""Seconds without an accept after the system had no descriptor or memory for a connection."""


@dataclass(slots=True)
class Arrival:
    """An accepted connection that has not begun: in TLS, its handshake is under way."""

    accepted: socket.socket
    since: float
    task: asyncio.Task[None] | None = None
    is_cut: bool = False

    def cut(self) -> None:
        """End it: its transport finds the end of the stream, and closes the descriptor within the next turns."""
        self.is_cut = True
        with suppress(OSError):
            self.accepted.shutdown(socket.SHUT_RDWR)


class Listener:
    """Accepts connections at its sockets until it is closed."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        connections: Connections,
        context: ssl.SSLContext | None = None,
        handshake_seconds: float | None = None,
    ) -> None:
        """Begin to accept. *context*: of the service's certificate; None for plain HTTP."""
        self._sockets = sockets
        self._connections = connections
        self._context = context
        self._handshake_seconds = handshake_seconds if context is not None else None
        self._arrivals: dict[Connection, Arrival] = {}  # oldest first
        self._cut = 0  # arrivals that are cut and still have their descriptor
        self._closed = False
        self._waiting: asyncio.TimerHandle | None = None  # for a handshake to end, or to become slow
        self._loop = asyncio.get_running_loop()
        for listening in sockets:
            listening.setblocking(False)
        self._resume()

    @property
    def port(self) -> int:
        """The port of the first socket."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening, and cut the connections that have not begun: their clients have sent no request yet."""
        self._closed = True
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        for arrival in self._arrivals.values():
            arrival.cut()

    def _resume(self) -> None:
        if not self._closed:
            self._waiting = None
            for listening in self._sockets:
                self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _wait(self, seconds: float) -> asyncio.TimerHandle:
        """Accept nothing for a while: the event loop would find the next connection again in every turn."""
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
        return self._loop.call_later(seconds, self._resume)

    def _accept(self, listening: socket.socket) -> None:
        """Accept a few connections: at least one waits. If others still do, the event loop calls this again."""
        if self._context is not None and (seconds := self._cut_handshakes()):
            self._waiting = self._wait(seconds)
        for _ in range(ACCEPTS_AT_ONCE):
            if self._cut or self._are_too_many():
                return
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                facts = {"event": "not_accepted", "seconds": PAUSE_SECONDS}
                logger.error("no connection is accepted for %g s: %s", PAUSE_SECONDS, error, extra={"facts": facts})
                self._wait(PAUSE_SECONDS)
                return
            accepted.setblocking(False)
            self._take(accepted)

    def _are_too_many(self) -> bool:
        return self._context is not None and len(self._arrivals) >= HANDSHAKES

    def _cut_handshakes(self) -> float:
        """Cut slow handshakes if their room is needed. Return the seconds to wait until one is slow, or 0."""
        too_many = self._are_too_many()
        if self._cut or not self._arrivals or not (too_many or self._connections.are_full):
            return 0.0
        slow_since = self._loop.time() - SLOW_SECONDS
        for arrival in islice(self._arrivals.values(), max(HANDSHAKES // 16, 1)):
            if arrival.since > slow_since:
                break
            self._connections.counts.cut += 1
            self._cut += 1
            arrival.cut()
        oldest = next(iter(self._arrivals.values()))
        return oldest.since - slow_since if too_many and not self._cut else 0.0

    def _take(self, accepted: socket.socket) -> None:
        """Admit a connection, or refuse it."""
        connection = self._connections.admit()
        if connection is not None:
            arrival = self._arrivals[connection] = Arrival(accepted, self._loop.time())
            arrival.task = self._loop.create_task(self._begin(connection, arrival))
            return
        with accepted, suppress(OSError):
            if self._context is None:  # before its handshake, a client of TLS understands nothing
                accepted.send(self._connections.refusal())

    async def _begin(self, connection: Connection, arrival: Arrival) -> None:
        """Give the connection to aiohttp, after the TLS handshake if there is one."""
        self._connections.counts.handshakes += self._context is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, arrival.accepted, ssl=self._context, ssl_handshake_timeout=self._handshake_seconds
            )
        except OSError:  # the client left, its handshake failed or took too long, or it was cut
            arrival.accepted.close()
        finally:
            self._connections.leave(connection)
            self._arrivals.pop(connection, None)
            self._cut -= arrival.is_cut
            if self._waiting is not None:
                self._waiting.cancel()
                self._resume()


async def bind(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of *host*; raise OSError if there is none."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    without: OSError | None = None  # the system has no such address: IPv6 may be off
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                without = error
        if not sockets and without is not None:
            raise without
    except BaseException:
        for one in sockets:
            one.close()
        raise
    return sockets


def bind_unix(path: str) -> socket.socket:
    """Return a listening Unix socket at *path*."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(path)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
