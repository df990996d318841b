"""Connections: aiohttp's, with the limits that it does not have. Everything used of aiohttp is public.

aiohttp's protocol gets what a connection receives from a `Connection`, which counts bytes and seconds and parses
nothing. The bridge tells it when a request is served (`begin`, `end`), so it knows which bytes nobody takes yet.

1. A connection that has not sent a whole head within `header_seconds`, or within `HEAD_BYTES`, is closed.
2. One that was idle between requests for `idle_seconds` is cut; after a tenth of that while three quarters of all
   connections are in use. One that reads nothing of a response for `write_seconds` is cut.
3. aiohttp gets at most `PIECE_BYTES` that no request has claimed. What follows waits here until the request has ended,
   and so does what follows a body in the same packet: aiohttp would make requests of it that nobody counts. If all
   connections together hold more than `unread_bytes`, those that hold most are cut.
4. A connection counts from `accept` on, during its TLS handshake too, so that connections never take the descriptors
   that the log needs. At the limit it replaces a slow handshake, or the connection that has been idle longest; if there
   is neither, it gets a 503, or in TLS no response.
5. At most `HANDSHAKES` are under way. Above that those older than `SLOW_SECONDS` are cut, and new connections wait in
   the socket's queue: honest clients need milliseconds, and a flood moves on as fast as its connections become old.

One timer checks all connections every second, so these deadlines cost a request nothing. Bodies and responses have
their own deadlines (`bodies`, `sending`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiohttp import StreamReader, web

from mrecordlog_async.protocol.problems import CONTENT_TYPE, ProblemError, bad_request, too_many_connections
from mrecordlog_async.service.access_log import NO_REQUEST, log_access
from mrecordlog_async.service.app import App
from mrecordlog_async.service.bridge import BAD_CHUNK, STATUS_LINES, Bridge, date_line, title
from mrecordlog_async.service.http import HEAD_BYTES, LINGER_SECONDS, encoded, large_head
from mrecordlog_async.service.service import ConnectionCounts

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

logger = logging.getLogger("mrecordlog_async.service")
_quiet = logging.getLogger("mrecordlog_async.service.malformed")
_quiet.setLevel(logging.CRITICAL + 1)  # it logs a traceback for each malformed request of a client

PIECE_BYTES = 16 * 1024
PAUSE_SWEEPS, PROBES = 2, 32
"""Sweeps without a byte of a body after which it is looked at, and the pieces with which it is."""
TURNS = 5
"""Turns of the event loop in which aiohttp calls the handler of a whole head; after them it gets more bytes."""
CROWDED, HURRY = 0.75, 10
"""Share of all connections above which idle ones are cut sooner, and the factor by which they are."""
ACCEPTS_AT_ONCE = 16
HANDSHAKES = 256
"""TLS handshakes that are under way: one holds 130 KiB, and takes the event loop 0.3 ms."""
SLOW_SECONDS = 0.5
"""Age at which a handshake may be cut if another one needs its room."""
PAUSE_SECONDS = 1.0
"""Seconds without an accept after the system had no descriptor or memory for a connection."""
TLS_CLOSE_SECONDS, FOREVER = 2.0, 1e8
MALFORMED = (
    "malformed HTTP request: a path may need percent-encoding, a line may be longer than 8,190 bytes, or the lengths "
    "of the body contradict each other"
)


class _Transport(asyncio.Transport):
    """What aiohttp has of a transport. Both it and `Connection` pause reading, and neither resumes it for the other."""

    def __init__(self, real: asyncio.Transport) -> None:
        super().__init__()
        self.real, self.full, self.holds, self.lingers = real, False, False, False
        for name in ("write", "writelines", "abort", "is_closing", "get_extra_info", "get_write_buffer_size"):
            setattr(self, name, getattr(real, name))

    def pause_reading(self) -> None:
        """Pause, for aiohttp."""
        self.full = True
        self.hold(self.holds)

    def resume_reading(self) -> None:
        """Resume, for aiohttp."""
        if self.full:
            self.full = False
            self.hold(self.holds)

    def close(self) -> None:
        """Close, once what was written is sent."""
        if not self.lingers:
            self.real.close()

    def end_with(self, response: bytes, loop: asyncio.AbstractEventLoop) -> None:
        """Send *response* as the last one. What still arrives is read for a while: a reset would hide the response."""
        self.real.write(response)
        if self.real.can_write_eof():  # not with TLS
            self.real.write_eof()
        self.lingers = True
        for name in ("write", "writelines"):  # aiohttp responds, too
            setattr(self, name, _discard)
        self.full = False
        self.hold(False)
        loop.call_later(LINGER_SECONDS, self.real.close)

    def hold(self, holds: bool) -> None:
        """Pause or resume, for `Connection`."""
        self.holds = holds
        if not self.real.is_closing():
            if holds or self.full:
                self.real.pause_reading()
            else:
                self.real.resume_reading()


def _discard(data: object) -> None:
    """Take the place of a transport's methods that write."""


class Connection(asyncio.Protocol):
    """One connection.

    since: when it began to be idle. content: the body of the request being served. writer: what sends its response, if
    that is not one buffer. unclaimed: bytes that aiohttp has and no request yet. taken: bytes of `content` that the
    request has taken. fresh: sweeps until `content` is looked at, if nothing of it comes. paused: since when the client
    has read nothing, or 0. streams: a response that is charged elsewhere is being written. refused: status of the
    refusal that ended it, or 0. is_ending: it was cut in its handshake.
    """

    has_begun = False
    transport: _Transport  # once it has begun
    content: StreamReader | None = None
    writer: AbstractStreamWriter | None = None
    gone: asyncio.Future[None] | None = None
    server: tuple[Any, ...] = ()
    client: tuple[Any, ...] | None = None
    missing: int | None = None
    requests = unclaimed = taken = fresh = turns = refused = 0
    seen = -1  # requests that had begun at the last sweep
    paused = 0.0
    has_waited = streams = is_ending = False

    def __init__(self, others: Connections, accepted: socket.socket) -> None:
        self.others, self.loop, self.accepted = others, others.loop, accepted
        self.inner, self.since, self.held = others.server(), self.loop.time(), bytearray()
        others.open[self] = None

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        local, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self.server = local[:2] if isinstance(local, tuple) else (local or "unix", None)
        self.client = peer[:2] if isinstance(peer, tuple) else None
        self.transport, self.since, self.has_begun = _Transport(transport), self.loop.time(), True
        self.others.known[self.transport] = self
        self.inner.connection_made(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.others.leave(self)
        self.held.clear()
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)
        self.inner.connection_lost(exc)

    def eof_received(self) -> None:
        """End: half a close is a whole one."""
        self.inner.eof_received()

    def data_received(self, data: bytes) -> None:
        """Pass *data* on, or hold it until a request claims it."""
        content = self.content
        if self.transport.lingers:
            return
        if content is not None and not content.is_eof() and not self.held:
            self.fresh = PAUSE_SWEEPS
            if rest := self._pass_body(data, content):
                self.held += rest
                self.transport.hold(True)
        elif content is None and not self.held and self.unclaimed + len(data) <= PIECE_BYTES:
            self.unclaimed += len(data)
            self.inner.data_received(data)
        else:
            self.held += data
            self.transport.hold(True)
            if content is None and self.unclaimed < PIECE_BYTES and len(self.held) == len(data):
                self._claim()
            self._wait()

    def pause_writing(self) -> None:
        """Let responses wait: the client does not read."""
        self.paused = self.loop.time()
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """Let them continue."""
        self.paused = 0.0
        self.inner.resume_writing()
        self._wait()

    def begin(self, request: web.BaseRequest) -> None:
        """Note that *request* is being served."""
        self.content, self.writer = request.content, request.writer
        self.unclaimed, self.taken, self.fresh = 0, 0, PAUSE_SWEEPS
        self.requests += 1
        self.turns = TURNS if self.turns else 0  # a request may begin and end within one turn
        if not (content := request.content).is_eof():
            self.has_waited = True
            length = request.content_length
            self.missing = None if length is None else length - content.total_bytes
            if self.held:
                self.held[:] = self._pass_body(bytes(self.held), content)
                self.transport.hold(bool(self.held))

    def end(self) -> None:
        """Note that its response is sent."""
        if self.content is not None and self.content.is_eof():  # else it closes, and what it still sends is discarded
            self.content = self.writer = None
            if self.has_waited:  # aiohttp 3.14 loses count of requests, and may keep the next one unread
                self.inner.data_received(b"")
            if self.others.closing and not self.held:  # a head that was sent before the shutdown did not say so
                self.transport.close()
            self._wait()

    async def left(self) -> None:
        """Wait until the client has left."""
        if self.transport in self.others.known:
            self.gone = self.gone or self.loop.create_future()
            await asyncio.shield(self.gone)

    def _wait(self) -> None:
        if self.held and not self.turns and self.content is None:
            self.turns = TURNS
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Pass on another piece, if no request has begun for so long that it may be needed for one."""
        self.turns = 0 if self.content is not None or self.paused or not self.held else self.turns - 1
        if self.turns:
            self.loop.call_soon(self._turn)
        elif self.held and self.content is None and not self.paused and self.unclaimed < HEAD_BYTES:
            self._claim()
            self._wait()

    def _claim(self) -> None:
        """Pass on a piece that no request has claimed yet."""
        size = min(len(self.held), PIECE_BYTES)
        self.unclaimed += size
        self._pass(size)

    def _pass_body(self, data: bytes, content: StreamReader) -> bytes:
        """Pass on what belongs to the body being received; return the rest."""
        begin = 0
        while begin < len(data) and not content.is_eof() and self.missing != 0:
            end = begin + (PIECE_BYTES if self.missing is None else self.missing)  # aiohttp finds the last chunk
            piece = data[begin:end]
            if self.missing is not None:
                self.missing -= len(piece)
            self.inner.data_received(piece)
            begin = end
        return data[begin:]

    def _pass(self, size: int) -> None:
        piece = bytes(self.held[:size])
        del self.held[:size]
        if not self.held:
            self.transport.hold(False)
        self.inner.data_received(piece)

    def refuse(self, problem: ProblemError) -> None:
        """Respond to what is not read further, and close; cut it if a response has begun."""
        self.held.clear()
        if self.streams or self.paused or (self.writer is not None and self.writer.output_size):
            self.transport.abort()
        elif not self.transport.is_closing() and not self.transport.lingers:
            self.refused = problem.status
            self.others.note(problem, self.client, is_request=self.content is not None)
            self.transport.end_with(refusal(problem), self.loop)

    def check_body(self) -> None:
        """Refuse a body that pauses, if aiohttp can read no more of it.

        aiohttp tells nobody of a malformed chunk before the request has ended. It queues an error for each piece that
        follows, even for an empty one, and stops reading when 32 wait. It stops for a body that no request takes, too,
        but here all is taken. A version that does otherwise leaves the body to its deadline.
        """
        content = self.content
        if self.fresh and content is not None and not content.is_eof():
            self.fresh -= 1
            if not self.fresh and content.total_bytes == self.taken and not self.transport.is_closing():
                for _ in range(0 if self.transport.full else PROBES):
                    self.inner.data_received(b"")
                if self.transport.full:
                    self.refuse(bad_request(BAD_CHUNK, "bad_body"))

    @property
    def is_idle(self) -> bool:
        """Whether no request is served, or has been since the last sweep; one that closes serves none."""
        return (self.content is None or self.transport.is_closing()) and self.seen == self.requests

    def cut(self) -> None:
        """Cut the connection; one in its handshake finds the end of its stream."""
        self.others.counts.cut += 1
        self.others.leave(self)
        with suppress(OSError):
            if self.has_begun:
                self.transport.abort()
            else:
                self.is_ending = True
                self.others.ending += 1
                self.accepted.shutdown(socket.SHUT_RDWR)

    def unread(self) -> int:
        """Return the bytes that it holds and nobody has taken, in either direction."""
        size = len(self.held) + self.unclaimed
        size += 0 if self.content is None else self.content.total_bytes - self.taken
        return size + (self.transport.get_write_buffer_size() if self.paused and not self.streams else 0)


class Connections:
    """Accept connections, and cut those that are idle or slow, or hold too much.

    open: those that are accepted. known: those that have begun, by their transport. beginning: those that have not, in
    TLS in their handshake. ending: those of them that are cut and still have their descriptor. closing: each ends with
    its response.
    """

    def __init__(self, app: App, *, access_log: bool = False) -> None:
        self.loop, self._service, self.options = asyncio.get_running_loop(), app.service, app.service.options
        self.counts: ConnectionCounts = app.service.connections
        self.counts.known = True
        self.open: dict[Connection, None] = {}
        self.known: dict[Any, Connection] = {}
        self.beginning = self.ending = 0
        self.server = web.Server(
            self._respond, request_factory=self._request, access_log=None, logger=_quiet, auto_decompress=False,
            keepalive_timeout=FOREVER, lingering_time=0,
        )  # fmt: skip
        self._access_log, self._tasks = access_log, set[asyncio.Task[None]]()
        self._bridge = Bridge(app, access_log=access_log)
        self._sockets: Sequence[socket.socket] = ()
        self._tls: dict[str, Any] = {}
        self._emptied = asyncio.Event()
        self._swept, self.closing = 0.0, False
        self._waiting: asyncio.TimerHandle | None = None  # for a handshake to end, or to become slow

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = self.known.get(request.transport)
        if connection is None:
            raise ConnectionResetError("the client left before its request was admitted")
        connection.begin(request)
        try:
            return await self._bridge.serve(request, connection)
        finally:
            connection.end()

    def _request(
        self,
        message: Any,  # aiohttp exports its class under no public name
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        request = web.BaseRequest(message, payload, protocol, writer, task, self.loop)
        if message.method == "UNKNOWN" and request.transport in self.known:  # what aiohttp makes of malformed HTTP
            self.known[request.transport].refuse(bad_request(MALFORMED))
        return request

    def listen(self, sockets: Sequence[socket.socket], context: ssl.SSLContext | None = None) -> None:
        """Accept connections at *sockets*, with TLS if there is a *context*."""
        seconds = {"ssl_handshake_timeout": self.options.header_seconds, "ssl_shutdown_timeout": TLS_CLOSE_SECONDS}
        self._sockets, self._tls = sockets, {} if context is None else {"ssl": context, **seconds}
        for one in sockets:
            one.setblocking(False)
        self._resume()

    def _close(self) -> None:
        """Accept no more, and cut those that have not begun: their clients have sent no request yet."""
        for one in self._sockets:
            self.loop.remove_reader(one.fileno())
            one.close()
        self._sockets = ()
        for connection in [one for one in self.open if not one.has_begun]:
            connection.cut()

    def leave(self, connection: Connection) -> None:
        """Count *connection* no longer."""
        self.open.pop(connection, None)
        if connection.has_begun:
            self.known.pop(connection.transport, None)
        if not self.open:
            self._emptied.set()

    def _resume(self) -> None:
        self._waiting = None
        for one in self._sockets:
            self.loop.add_reader(one.fileno(), self._accept, one)

    def _pause(self, seconds: float) -> asyncio.TimerHandle:
        """Accept nothing for a while: the event loop would find the next connection again in every turn."""
        for one in self._sockets:
            self.loop.remove_reader(one.fileno())
        return self.loop.call_later(seconds, self._resume)

    def _accept(self, listening: socket.socket) -> None:
        """Accept a few connections: at least one waits. If others still do, the event loop calls this again."""
        if self._are_too_many() and not self._cut_handshakes():
            self._waiting = self._pause(SLOW_SECONDS / 10)
            return
        for _ in range(ACCEPTS_AT_ONCE):
            if self.ending or self._are_too_many():
                return
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                facts = {"event": "not_accepted", "seconds": PAUSE_SECONDS}
                logger.error("no connection is accepted for %g s: %s", PAUSE_SECONDS, error, extra={"facts": facts})
                self._pause(PAUSE_SECONDS)
                return
            accepted.setblocking(False)
            self._take(accepted)

    def _are_too_many(self) -> bool:
        return bool(self._tls) and self.beginning - self.ending >= HANDSHAKES

    def _take(self, accepted: socket.socket) -> None:
        """Admit a connection, or refuse it."""
        if len(self.open) < self.options.connections or self._cut_handshakes() or self._cut_idle():
            self.beginning += 1
            self._tasks.add(task := self.loop.create_task(self._begin(Connection(self, accepted))))
            task.add_done_callback(self._tasks.discard)
            return
        self.counts.refused += 1
        text = f"{len(self.open)} connections are open, which is the limit; clients wait or hold too many"
        self._service.refused.note("connections", text)
        self.note(problem := too_many_connections(len(self.open), self.options.connections), None)
        with accepted, suppress(OSError):
            if not self._tls:  # before its handshake, a client of TLS understands nothing
                accepted.send(refusal(problem))

    def note(self, problem: ProblemError, client: tuple[Any, ...] | None, *, is_request: bool = False) -> None:
        """Count a refusal that the application does not see, and log it; that of a request is logged at its end."""
        problems = self._service.problems
        problems[problem.status] = problems.get(problem.status, 0) + 1
        if self._access_log and not is_request:
            log_access({"client": client, **NO_REQUEST}, problem.status, len(problem.document()), 0.0)

    async def _begin(self, connection: Connection) -> None:
        """Give the connection to aiohttp, after the TLS handshake if there is one."""
        self.counts.handshakes += bool(self._tls)
        try:
            await self.loop.connect_accepted_socket(lambda: connection, connection.accepted, **self._tls)
        except OSError:  # the client left, or its handshake failed, took too long, or was cut
            connection.accepted.close()
        finally:
            self.beginning -= 1
            if self._waiting is not None:
                self._waiting.cancel()
                self._resume()
            self.ending -= connection.is_ending
            if not connection.has_begun:
                self.leave(connection)
            elif connection.is_ending:  # its handshake was done in the same turn
                connection.transport.abort()

    def _cut_handshakes(self) -> bool:
        """Cut the oldest handshakes, if they are slow; return whether there were any."""
        late = self.loop.time() - SLOW_SECONDS
        slow = [one for one in self.open if not one.has_begun and one.since <= late]
        for one in slow[: max(HANDSHAKES // 16, 1)]:  # `open` is in the order in which they were accepted
            one.cut()
        return bool(slow)

    def _cut_idle(self) -> bool:
        """Cut the connection that has been idle longest; return False if none was at the last two sweeps."""
        idle = (one for one in self.known.values() if one.is_idle and one.since < self._swept)
        longest = min(idle, key=lambda one: one.since, default=None)
        if longest is not None:
            longest.cut()
        return longest is not None

    async def end(self, seconds: float, stop: asyncio.Event) -> None:
        """Let clients have their responses, for at most *seconds* or until *stop*; then cut all connections.

        Connections that are idle close at once, the others after their response.
        """
        self._service.begin_shutdown()  # first: tails that wait would otherwise be waited for
        self._close()
        until = self.loop.time() + seconds
        for _ in range(TURNS):  # what has arrived is served
            await asyncio.sleep(0)
        self.closing = True
        for one in [one for one in self.known.values() if one.content is None]:
            one.transport.close()
        if not await self._ends(self._service.finished(), until, stop):
            text, dropped = "%d requests did not finish in time and are dropped", self._service.active
            logger.warning(text, dropped, extra={"facts": {"event": "dropped", "requests": dropped}})
        elif self.open:
            self._emptied.clear()
            await self._ends(self._emptied.wait(), until, stop)
        for one in list(self.known.values()):
            one.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await asyncio.sleep(0)

    async def _ends(self, what: Coroutine[Any, Any, object], until: float, stop: asyncio.Event) -> bool:
        """Wait for *what*, but not past *until*, nor after *stop*; return whether it has ended."""
        waits = [self.loop.create_task(what), self.loop.create_task(stop.wait())]
        seconds = max(until - self.loop.time(), 0)
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return waits[0] in done

    def check(self) -> None:
        """Check every connection. Called every second."""
        self.sweep(self.loop.time())

    def sweep(self, now: float) -> None:
        """Check every connection once."""
        options, self.counts.open, self._swept = self.options, len(self.open), now
        idle_seconds = options.idle_seconds / (HURRY if len(self.open) >= CROWDED * options.connections else 1)
        for one in list(self.known.values()):
            if not one.is_idle:
                one.since, one.seen = now, one.requests
            seconds = idle_seconds if one.requests else options.header_seconds
            if now - one.since >= seconds or (one.paused and now - one.paused >= options.write_seconds):
                one.cut()
            elif one.unclaimed >= HEAD_BYTES and now > one.since and not one.paused:  # nothing claimed it meanwhile
                one.refuse(large_head())
            else:
                one.check_body()
        self._cut_largest()

    def _cut_largest(self) -> None:
        """Cut the connections that hold most, until all together hold at most `unread_bytes`."""
        held = {one: one.unread() for one in self.known.values()}
        self.counts.unread_bytes = sum(held.values())
        for one in sorted(held, key=held.__getitem__, reverse=True):
            if self.counts.unread_bytes <= self.options.unread_bytes:
                return
            self.counts.unread_bytes -= held[one]
            one.cut()


def refusal(problem: ProblemError) -> bytes:
    """Return the bytes of a response that is sent without aiohttp."""
    body = problem.document()
    headers = {"connection": "close", "content-type": CONTENT_TYPE, "content-length": str(len(body)), **problem.headers}
    lines = [b"%b: %b\r\n" % (title(name), value) for name, value in encoded(headers)]
    return b"".join([STATUS_LINES[problem.status], date_line(), *lines, b"\r\n", body])
